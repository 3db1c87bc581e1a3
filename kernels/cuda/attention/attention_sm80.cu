// SPDX-License-Identifier: Apache-2.0
/* Attention on tensor cores (2307.08691), for bf16 and f16, head dimensions 64 and 128, sm_80 and newer.
 *
 * Each warp owns some rows of scores throughout: the accumulator of one matmul is the left operand of the
 * next, lane by lane (mma.h), so weights and their gradients stay in registers. Tiles of q, k, v and dout are
 * in shared memory (tile.h).
 *
 * Forward:  rows are queries.    s = q k^T     p = e^(scale s - max)     out += p v
 *
 * The backward pass uses one kernel for two passes, which differ in their rows:
 *
 *                       rows   x  y      columns   u  w        s = x u^T       first  += ds u
 *     for dk and dv     keys   k  v      queries   q  dout     dp = y w^T      second += p w
 *     for dq            queries q dout   keys      k  v        ds = p (dp - delta)
 *
 * Each recomputes s and dp, seven matmuls instead of five. In return there is no reduction across blocks and
 * no atomics, and every sum has the order of heads and columns.
 *
 * Caution: all lanes of a warp must execute every mma; a warp may skip a tile, but no barrier. */
#include "kernels/cuda/attention/attention_pairs.h"
#include "kernels/cuda/tensor_core/tile.h"

/* M tiles of 16 rows per warp, N tiles of 8 columns per column tile. More rows per warp need fewer reads of
 * shared memory per mma; limits are 255 registers per thread, and the 99 KiB of shared memory per block on
 * compute capability 8.6 and 8.9. */
enum { FORWARD, TO_KEYS, TO_QUERIES }; // passes
template <int D, int PASS> struct plan;
template <> struct plan<64, FORWARD> {
    static constexpr int WARPS = 4, M = 2, N = 8;
};
template <> struct plan<128, FORWARD> {
    static constexpr int WARPS = 4, M = 2, N = 4;
};
template <> struct plan<64, TO_KEYS> {
    static constexpr int WARPS = 4, M = 2, N = 4;
};
template <> struct plan<128, TO_KEYS> {
    static constexpr int WARPS = 8, M = 1, N = 4;
};
template <> struct plan<64, TO_QUERIES> {
    static constexpr int WARPS = 4, M = 2, N = 4;
};
template <> struct plan<128, TO_QUERIES> {
    static constexpr int WARPS = 8, M = 1, N = 4;
};

template <int D, int PASS> struct sizes : plan<D, PASS> {
    using is = plan<D, PASS>;
    static constexpr int WARP_ROWS = 16 * is::M, ROWS = is::WARPS * WARP_ROWS, COLUMNS = 8 * is::N,
                         THREADS = is::WARPS * WARP;
};

/* A query's running state across tiles: the largest score, this lane's share of the sum, the row of out. */
template <int D, int M> struct softmax_state {
    float out[M][D / 8][4], max[M][2], sum[M][2];
};

/* Converts scores to weights e^(scale (s - max)), and rescales the running state. */
template <int D, int M, int N>
__device__ void update_softmax(struct softmax_state<D, M> &state, float s[M][N][4], int m, int half,
                               float scale_log2)
{
    float max = state.max[m][half];
    UNROLL_ALL
    for (int n = 0; n < N; n++)
        max = fmaxf(max, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    // A fully masked query has no maximum yet: 0 in its place avoids inf - inf.
    const float base = max == -INFINITY ? 0.0F : max * scale_log2;
    const float rescale = exp2_fast(fmaf(state.max[m][half], scale_log2, -base));
    float sum = state.sum[m][half] * rescale;
    UNROLL_ALL
    for (int n = 0; n < N; n++) {
        UNROLL_ALL
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            s[m][n][j] = exp2_fast(fmaf(s[m][n][j], scale_log2, -base));
            sum += s[m][n][j];
        }
    }
    UNROLL_ALL
    for (int d = 0; d < D / 8; d++) {
        state.out[m][d][2 * half] *= rescale;
        state.out[m][d][2 * half + 1] *= rescale;
    }
    state.max[m][half] = max;
    state.sum[m][half] = sum;
}

template <int M, int N> __device__ void drop_weights(float s[M][N][4], int m, uint32_t kept)
{
    UNROLL_ALL
    for (int n = 0; n < N; n++)
        UNROLL_ALL
    for (int i = 0; i < 4; i++)
        s[m][n][i] = (kept >> (4 * n + i) & 1) != 0 ? s[m][n][i] : 0.0F;
}

/* The scores of this warp's queries, masked. `row` is this lane's first; `document` has those of the keys. */
template <int M, int N, class T, int D>
__device__ void make_scores(float s[M][N][4], const operands<T> &a, const struct block_coord &at,
                            const tile<T, D> &q, int mine, const tile<T, D> &k, int row, int key, float slope,
                            const int32_t *document)
{
    multiply_rows<M, N>(s, q, mine, k);
    if (a.to_cap > 0.0F)
        cap_scores<M, N>(s, a.cap, a.to_cap);
    if (slope != 0.0F)
        bias_scores<false, M, N>(s, slope, row, key);
    if (a.document != nullptr ||
        !a.all_attend(row - static_cast<int>(threadIdx.x % WARP / 4), 16 * M, key, 8 * N))
        mask_scores<false, M, N>(s, -INFINITY, row, key, a.sequence, a.window, a.documents_of(at.row),
                                 document);
}

/* Stores out and lse of this warp's queries. */
template <class T, int D, int M>
__device__ void finish_queries(const operands<T> &a, const struct block_coord &at, int first, int mine,
                               struct softmax_state<D, M> &state, const tile<T, D> &q)
{
    const int lane = static_cast<int>(threadIdx.x % WARP);
    float factor[M][2];
    UNROLL_ALL
    for (int m = 0; m < M; m++) {
        UNROLL_ALL
        for (int half = 0; half < 2; half++) {
            const int query = first + mine + 16 * m + 8 * half + lane / 4;
            float sum = state.sum[m][half];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            factor[m][half] = (a.dropout.drops ? a.dropout.rule.scale : 1.0F) / sum;
            if (lane % 4 == 0 && query < a.sequence)
                a.lse.row(at.head)[at.row + query] = state.max[m][half] * a.scale + logf(sum);
        }
    }
    store_rows<M>(a.out, at.row, static_cast<int64_t>(at.head) * D, first, mine, a.sequence, state.out,
                  factor, q);
}

template <class T, int D>
__global__ void __launch_bounds__((sizes<D, FORWARD>::THREADS)) attention_fwd_sm80(operands<T> a)
{
    using is = sizes<D, FORWARD>;
    DYNAMIC_SHARED(T, memory);
    const tile<T, D> q = {memory}, k = {memory + is::ROWS * D}, v = {k.data + is::COLUMNS * D};
    int32_t *const document = reinterpret_cast<int32_t *>(v.data + is::COLUMNS * D);
    const int lane = static_cast<int>(threadIdx.x % WARP), warp = static_cast<int>(threadIdx.x / WARP);
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * is::ROWS; // longest first
    const int mine = warp * is::WARP_ROWS, head = static_cast<int>(blockIdx.y),
              group = head / (a.heads / a.groups);
    const int end = first + is::ROWS < a.sequence ? first + is::ROWS : a.sequence;
    const struct block_coord at = {static_cast<int64_t>(blockIdx.z) * a.sequence, blockIdx.z, head, group};
    const int64_t shared_column = static_cast<int64_t>(group) * D;
    const float slope = a.slope_of(head);
    struct softmax_state<D, is::M> state = {
    };
    for (int i = 0; i < 2 * is::M; i++)
        state.max[i / 2][i % 2] = -INFINITY;
    const auto start_keys = [&](int key) {
        start_rows<T, D, is::COLUMNS, is::THREADS>(k, a.k, at.row, shared_column, key, a.sequence);
        if (a.document != nullptr)
            start_elements<is::COLUMNS>(document, a.document + at.row, key, a.sequence);
        cp_async_commit();
    };
    start_rows<T, D, is::ROWS, is::THREADS>(q, a.q, at.row, static_cast<int64_t>(head) * D, first,
                                            a.sequence);
    const int begin = a.first_key(first, is::COLUMNS);
    start_keys(begin);
    for (int key = begin; key < end; key += is::COLUMNS) {
        float s[is::M][is::N][4];
        const int row = first + mine + lane / 4;
        // Attended to by any of this warp's queries.
        const bool seen = a.some_attend(first + mine, is::WARP_ROWS, key, is::COLUMNS);
        cp_async_wait<0>();
        __syncthreads(); // these keys have arrived, and the previous values are no longer in use
        start_rows<T, D, is::COLUMNS, is::THREADS>(v, a.v, at.row, shared_column, key, a.sequence);
        cp_async_commit();
        if (seen)
            make_scores<is::M, is::N>(s, a, at, q, mine, k, row, key, slope, document);
        cp_async_wait<0>();
        __syncthreads(); // the values have arrived, and these keys are no longer in use
        if (key + is::COLUMNS < end)
            start_keys(key + is::COLUMNS);
        if (!seen)
            continue;
        UNROLL_ALL
        for (int i = 0; i < 2 * is::M; i++)
            update_softmax<D, is::M, is::N>(state, s, i / 2, i % 2, a.scale_log2);
        UNROLL_ALL
        for (int m = 0; m < is::M; m++)
            if (a.dropout.drops)
                drop_weights<is::M, is::N>(s, m,
                                           kept_weights<is::N, false>(a.dropout, at, row + 16 * m, key));
        add_matmul<is::M, is::N>(state.out, s, v);
    }
    finish_queries<T, D, is::M>(a, at, first, mine, state, q);
}

/* The columns of a tile, double-buffered: the next ones are loaded during the computation. */
template <class T, int D, int PASS> struct stage {
    tile<T, D> u, w;
    float *lse, *delta; // for columns that are queries
    int32_t *document;

    /* Elements of T per stage; per-column values take four bytes each. */
    static constexpr int NUMBERS = 2 * sizes<D, PASS>::COLUMNS * D + 3 * 2 * sizes<D, PASS>::COLUMNS;

    __device__ explicit stage(T *memory)
        : u{memory}, w{memory + sizes<D, PASS>::COLUMNS * D},
          lse(reinterpret_cast<float *>(memory + 2 * sizes<D, PASS>::COLUMNS * D)),
          delta(lse + sizes<D, PASS>::COLUMNS),
          document(reinterpret_cast<int32_t *>(delta + sizes<D, PASS>::COLUMNS))
    {
    }

    __device__ void start(const operands<T> &a, const struct block_coord &at, int head, int column) const
    {
        using is = sizes<D, PASS>;
        constexpr bool KEYS = PASS == TO_KEYS;
        const int64_t at_column = static_cast<int64_t>(KEYS ? head : at.group) * D;
        start_rows<T, D, is::COLUMNS, is::THREADS>(u, KEYS ? a.q : a.k, at.row, at_column, column,
                                                   a.sequence);
        start_rows<T, D, is::COLUMNS, is::THREADS>(w, KEYS ? a.dout : a.v, at.row, at_column, column,
                                                   a.sequence);
        if (KEYS) {
            start_elements<is::COLUMNS, float>(lse, a.lse.row(head) + at.row, column, a.sequence);
            start_elements<is::COLUMNS, float>(delta, a.delta + head * a.tokens + at.row, column, a.sequence);
        }
        if (a.document != nullptr)
            start_elements<is::COLUMNS>(document, a.document + at.row, column, a.sequence);
        cp_async_commit();
    }
};

/* A warp's operands and accumulators in a backward pass. */
template <class T, int D, int PASS> struct gradient {
    using is = sizes<D, PASS>;
    static constexpr bool KEYS = PASS == TO_KEYS;
    float first[is::M][D / 8][4], second[KEYS ? is::M : 1][KEYS ? D / 8 : 1][4];
    struct of_query row_query[is::M][2]; // if rows are queries

    /* s and dp, a tile's scores and the gradients of its weights, become weights and ds. */
    template <bool CAPPED>
    __device__ void make_gradients(float s[is::M][is::N][4], float dp[is::M][is::N][4], const operands<T> &a,
                                   const struct block_coord &at, const stage<T, D, PASS> &c, int row,
                                   int column) const
    {
        const int lane = static_cast<int>(threadIdx.x % WARP);
        UNROLL_ALL for (int m = 0; m < is::M; m++)
        {
            uint32_t kept = 0xffffffffU;
            float factor = 1.0F;
            if (a.dropout.drops) {
                kept = kept_weights<is::N, KEYS>(a.dropout, at, row + 16 * m, column);
                factor = a.dropout.rule.scale;
            }
            UNROLL_ALL
            for (int i = 0; i < 4 * is::N; i++) {
                const int of = 8 * (i / 4) + lane % 4 * 2 + i % 2;
                const struct of_query query =
                    KEYS ? of_query{c.lse[of] * LOG2_E, c.delta[of]} : row_query[m][i % 4 / 2];
                make_gradient<CAPPED>(s[m][i / 4][i % 4], dp[m][i / 4][i % 4], query, (kept >> i & 1) != 0,
                                      a.scale_log2, factor, a.to_cap);
            }
        }
    }

    /* Processes one tile of columns. `row` is this lane's first. */
    __device__ void add_tile(const operands<T> &a, const struct block_coord &at, const tile<T, D> &x,
                             const tile<T, D> &y, const stage<T, D, PASS> &c, int mine, int row, int column)
    {
        const int tile_row = row - static_cast<int>(threadIdx.x % WARP / 4);
        float s[is::M][is::N][4], dp[is::M][is::N][4];
        multiply_rows<is::M, is::N>(s, x, mine, c.u);
        if (a.to_cap > 0.0F)
            cap_scores<is::M, is::N>(s, a.cap, a.to_cap);
        if (a.slopes.heads > 0)
            bias_scores<KEYS, is::M, is::N>(s, a.slope_of(at.head), row, column);
        if (a.document != nullptr || !(KEYS ? a.all_attend(column, is::COLUMNS, tile_row, is::WARP_ROWS)
                                            : a.all_attend(tile_row, is::WARP_ROWS, column, is::COLUMNS)))
            mask_scores<KEYS, is::M, is::N>(s, -INFINITY, row, column, a.sequence, a.window,
                                            a.documents_of(at.row), c.document);
        multiply_rows<is::M, is::N>(dp, y, mine, c.w);
        if (a.to_cap > 0.0F)
            make_gradients<true>(s, dp, a, at, c, row, column);
        else
            make_gradients<false>(s, dp, a, at, c, row, column);
        if constexpr (KEYS)
            add_matmul<is::M, is::N>(second, s, c.w);
        add_matmul<is::M, is::N>(first, dp, c.u);
    }

    __device__ void store(const operands<T> &a, const struct block_coord &at, const tile<T, D> &x,
                          const tile<T, D> &y, int begin, int mine) const
    {
        const int64_t column = static_cast<int64_t>(KEYS ? at.group : at.head) * D;
        float factor[is::M][2];
        for (int i = 0; i < 2 * is::M; i++)
            factor[i / 2][i % 2] = a.scale;
        store_rows<is::M>(KEYS ? a.dk : a.dq, at.row, column, begin, mine, a.sequence, first, factor, x);
        for (int i = 0; i < 2 * is::M; i++)
            factor[i / 2][i % 2] = a.dropout.drops ? a.dropout.rule.scale : 1.0F;
        if constexpr (KEYS)
            store_rows<is::M>(a.dv, at.row, column, begin, mine, a.sequence, second, factor, y);
    }
};

template <class T, int D, int PASS>
__global__ void __launch_bounds__((sizes<D, PASS>::THREADS)) attention_bwd_sm80(operands<T> a)
{
    using is = sizes<D, PASS>;
    constexpr bool KEYS = PASS == TO_KEYS;
    DYNAMIC_SHARED(T, memory);
    const tile<T, D> x = {memory}, y = {memory + is::ROWS * D};
    T *const stages = y.data + is::ROWS * D; // two stages
    using columns = stage<T, D, PASS>;
    const int lane = static_cast<int>(threadIdx.x % WARP),
              mine = static_cast<int>(threadIdx.x / WARP) * is::WARP_ROWS;
    // Longest first.
    const int begin = static_cast<int>(KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * is::ROWS;
    const int row = begin + mine + lane / 4, each = a.heads / a.groups, of = static_cast<int>(blockIdx.y);
    struct block_coord at = {static_cast<int64_t>(blockIdx.z) * a.sequence, blockIdx.z, KEYS ? of * each : of,
                             KEYS ? of : of / each};
    const int64_t at_row = static_cast<int64_t>(KEYS ? at.group : at.head) * D;
    start_rows<T, D, is::ROWS, is::THREADS>(x, KEYS ? a.k : a.q, at.row, at_row, begin, a.sequence);
    start_rows<T, D, is::ROWS, is::THREADS>(y, KEYS ? a.v : a.dout, at.row, at_row, begin, a.sequence);
    gradient<T, D, PASS> sum = {};
    for (int i = 0; !KEYS && i < 2 * is::M; i++) {
        const int query = row + 8 * i;
        if (query < a.sequence)
            sum.row_query[i / 2][i % 2] = {a.lse.row(at.head)[at.row + query] * LOG2_E,
                                           a.delta[at.head * a.tokens + at.row + query]};
    }
    // Queries that attend to these keys, for each head of the group; or keys of these queries.
    const int last = (begin + is::ROWS > a.sequence ? a.sequence : begin + is::ROWS) - 1;
    const int from = KEYS ? begin : a.first_key(begin, is::COLUMNS), to = KEYS ? a.end_query(last) : last + 1;
    const int steps = (to - from + is::COLUMNS - 1) / is::COLUMNS * (KEYS ? each : 1);
    int column = from;
    columns(stages + steps % 2 * columns::NUMBERS).start(a, at, at.head, column);
    for (int left = steps; left > 0; left--) {
        const bool wraps = column + is::COLUMNS >= to; // continues with the group's next head
        const int next = wraps ? from : column + is::COLUMNS;
        cp_async_wait<0>();
        __syncthreads(); // this step's columns have arrived, and the previous ones are no longer in use
        if (left > 1)
            columns(stages + (left - 1) % 2 * columns::NUMBERS).start(a, at, at.head + (wraps ? 1 : 0), next);
        if (KEYS ? a.some_attend(column, is::COLUMNS, begin + mine, is::WARP_ROWS)
                 : a.some_attend(begin + mine, is::WARP_ROWS, column, is::COLUMNS))
            sum.add_tile(a, at, x, y, columns(stages + left % 2 * columns::NUMBERS), mine, row, column);
        column = next;
        at.head += KEYS && wraps ? 1 : 0;
    }
    sum.store(a, at, x, y, begin, mine);
}

static dim3 grid_of(int rows, int64_t sequence, int heads, int64_t batch)
{
    return {static_cast<unsigned>(blocks_of(sequence, rows)), static_cast<unsigned>(heads),
            static_cast<unsigned>(batch)};
}

template <class T, int D>
static enum status forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    using is = sizes<D, FORWARD>;
    const struct operands<T> a = operands_of<T>(op);
    const size_t bytes = static_cast<size_t>(is::ROWS + 2 * is::COLUMNS) * D * sizeof(T) +
                         (a.document != nullptr ? is::COLUMNS * sizeof(int32_t) : 0);
    return LAUNCH(queue, (attention_fwd_sm80<T, D>), grid_of(is::ROWS, a.sequence, a.heads, op->batch),
                  is::THREADS, bytes, a);
}

template <class T, int D, int PASS>
static enum status differentiate(struct cuda_queue *queue, const struct operands<T> &a, int64_t batch)
{
    using is = sizes<D, PASS>;
    const size_t bytes = static_cast<size_t>(2 * is::ROWS * D + 2 * stage<T, D, PASS>::NUMBERS) * sizeof(T);
    return LAUNCH(queue, (attention_bwd_sm80<T, D, PASS>),
                  grid_of(is::ROWS, a.sequence, PASS == TO_KEYS ? a.groups : a.heads, batch), is::THREADS,
                  bytes, a);
}

template <class T, int D>
static enum status backward(struct cuda_queue *queue, const struct attention_backward *op, const float *delta)
{
    const struct operands<T> a = operands_of<T>(op, delta);
    TRY((differentiate<T, D, TO_KEYS>(queue, a, op->forward.batch)));
    return differentiate<T, D, TO_QUERIES>(queue, a, op->forward.batch);
}

/* 16-byte aligned rows. */
static bool is_aligned(const struct tensor &t)
{
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % 8 == 0;
}

/* ALiBi's bias would hide the capped score, which the derivative of the cap needs. */
bool attention_suits_mma(const struct attention_forward *op)
{
    return (op->q.dtype == BF16 || op->q.dtype == F16) && (op->head_dim == 64 || op->head_dim == 128) &&
           op->scale > 0.0F && (op->softcap == 0.0F || op->alibi.heads == 0) && is_aligned(op->q) &&
           is_aligned(op->k) && is_aligned(op->v) && is_aligned(op->out);
}

bool attention_suits_mma(const struct attention_backward *op)
{
    return attention_suits_mma(&op->forward) && is_aligned(op->dout) && is_aligned(op->dq) &&
           is_aligned(op->dk) && is_aligned(op->dv);
}

enum status attention_mma_forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    if (op->q.dtype == BF16)
        return op->head_dim == 64 ? forward<bf16, 64>(queue, op) : forward<bf16, 128>(queue, op);
    return op->head_dim == 64 ? forward<f16, 64>(queue, op) : forward<f16, 128>(queue, op);
}

enum status attention_mma_backward(struct cuda_queue *queue, const struct attention_backward *op,
                                   const float *delta)
{
    const bool narrow = op->forward.head_dim == 64;
    if (op->forward.q.dtype == BF16)
        return narrow ? backward<bf16, 64>(queue, op, delta) : backward<bf16, 128>(queue, op, delta);
    return narrow ? backward<f16, 64>(queue, op, delta) : backward<f16, 128>(queue, op, delta);
}
