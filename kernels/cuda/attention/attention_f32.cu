// SPDX-License-Identifier: Apache-2.0
/* Generic blockwise attention in fp32 (2205.14135), for every type and shape: the reference on the GPU, and
 * the fallback for shapes that tensor cores do not support (attention_sm80.cu, to which the ops here dispatch
 * otherwise). Other forward kernels must produce out and lse in this layout; other backward kernels read only
 * those.
 *
 * A tile is 32 queries by 32 keys. A warp has four queries; in the scores a lane is a key, in everything of a
 * head's width a lane is every 32nd column:
 *
 *     scores[4][lane = key] = scale q k^T        out[4][columns lane, lane + 32, ...] += p v
 *
 * The backward pass has no atomics: one kernel loops, for each block of keys, over all queries that attend to
 * it (dk, dv); another, for each block of queries, over all its keys (dq). Both recompute the probabilities
 * from lse. The results of a sequence and head depend on their own inputs alone. */
#include "kernels/cuda/attention/attention.h"

enum { TILE = 32, THREADS = 256, WARPS = THREADS / WARP, WARP_ROWS = TILE / WARPS, MAX_COLUMNS = 256 };

struct attention {
    struct any_rows q, k, v, out, dout, dq, dk, dv;
    rows<float> lse;
    float *delta;                     // [A, T]
    int64_t sequence, window, tokens; // without a window, `window` is the sequence
    int heads, groups, head_dim;
    float scale, softcap; // softcap 0: none
    struct slopes slopes;
    const int32_t *document;
    struct pair_dropout dropout;

    /* The first tile of keys that query `first` attends to. */
    __device__ int64_t first_key_tile(int64_t first) const
    {
        return first < window ? 0 : (first - window + 1) / TILE * TILE;
    }
};

static __device__ bool attends(const struct attention &a, int64_t row, int64_t query, int64_t key)
{
    return query < a.sequence && key <= query && query - key < a.window &&
           (a.document == nullptr || a.document[row + query] == a.document[row + key]);
}

static __device__ float pair_factor(const struct attention &a, const struct block_coord &at, int64_t query,
                                    int64_t key)
{
    if (!a.dropout.drops)
        return 1.0F;
    const uint64_t element = first_pair(a.dropout, at, query) + static_cast<uint64_t>(key);
    const uint64_t sample = static_cast<uint64_t>(a.dropout.sample[at.row]);
    return keeps(a.dropout, sample, element) ? a.dropout.rule.scale : 0.0F;
}

/* An odd row pitch: lanes that read one column of 32 rows hit 32 different banks. */
static __host__ __device__ int pitch_of(int head_dim)
{
    return head_dim | 1;
}

/* Loads rows [first, first + TILE) of one head to shared memory, zeros past the sequence's end. */
static __device__ void load_tile(const struct any_rows &from, const struct block_coord &at, int64_t column,
                                 int64_t first, const struct attention &a, float *tile)
{
    const int pitch = pitch_of(a.head_dim);
    UNROLL(1)
    for (int i = static_cast<int>(threadIdx.x); i < TILE * a.head_dim; i += THREADS) {
        const int r = i / a.head_dim, c = i % a.head_dim;
        tile[r * pitch + c] = first + r < a.sequence ? from.load(at.row + first + r, column + c) : 0.0F;
    }
}

static __device__ float dot(const float *x, const float *y, int count)
{
    float sum = 0.0F;
    UNROLL(4)
    for (int i = 0; i < count; i++)
        sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* line[column of this lane] += weight[0] row 0 + weight[stride] row 1 + ... of a tile. */
template <int CHUNKS>
__device__ void add_weighted_rows(float line[CHUNKS], const float *weight, int stride, const float *tile,
                                  int head_dim)
{
    const int lane = static_cast<int>(threadIdx.x % WARP), pitch = pitch_of(head_dim);
    UNROLL(2)
    for (int r = 0; r < TILE; r++) {
        for (int i = 0; i < CHUNKS; i++) {
            const int c = lane + i * WARP;
            if (c < head_dim)
                line[i] = fmaf(weight[r * stride], tile[r * pitch + c], line[i]);
        }
    }
}

template <int CHUNKS>
__device__ void store_line(const struct any_rows &to, int64_t row, int64_t column, const float line[CHUNKS],
                           float factor, int head_dim)
{
    const int lane = static_cast<int>(threadIdx.x % WARP);
    for (int i = 0; i < CHUNKS; i++)
        if (lane + i * WARP < head_dim)
            to.store(row, column + lane + i * WARP, line[i] * factor);
}

/* The score of a pair, and its derivative by scale q k. */
static __device__ float score_of(const struct attention &a, float product, float bias, float *derivative)
{
    *derivative = 1.0F;
    if (!(a.softcap > 0.0F))
        return fmaf(a.scale, product, bias);
    const float t = tanhf(a.scale * product / a.softcap);
    *derivative = fmaf(-t, t, 1.0F);
    return fmaf(a.softcap, t, bias);
}

/* A query's running state across tiles: the maximum, the sum, and the unnormalized row of out. */
template <int CHUNKS> struct softmax_state {
    float max, sum, out[CHUNKS];
};

/* Converts a query's scores of one tile to weights in `p`, and rescales the running state. */
template <int CHUNKS>
__device__ void update_softmax(struct softmax_state<CHUNKS> &r, float score, const struct attention &a,
                               const struct block_coord &at, int64_t query, int64_t key, float *p)
{
    const float max = fmaxf(r.max, warp_reduce(score, larger()));
    // A fully masked query has no maximum yet: 0 in its place avoids inf - inf.
    const float base = max == -INFINITY ? 0.0F : max, rescale = expf(r.max - base),
                weight = expf(score - base);
    r.max = max;
    r.sum = r.sum * rescale + warp_reduce(weight, plus());
    for (int i = 0; i < CHUNKS; i++)
        r.out[i] *= rescale;
    p[threadIdx.x % WARP] = weight != 0.0F ? weight * pair_factor(a, at, query, key) : 0.0F;
}

template <int CHUNKS> __global__ void __launch_bounds__(THREADS) attention_fwd_f32(struct attention a)
{
    DYNAMIC_SHARED(float, memory);
    const int pitch = pitch_of(a.head_dim), lane = static_cast<int>(threadIdx.x % WARP);
    const int mine = static_cast<int>(threadIdx.x / WARP) * WARP_ROWS; // this warp's first query
    float *const q = memory, *const k = q + TILE * pitch, *const v = k + TILE * pitch,
                 *const p = v + TILE * pitch;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * TILE;
    const int head = static_cast<int>(blockIdx.y), group = head / (a.heads / a.groups);
    const struct block_coord at = {blockIdx.z * a.sequence, blockIdx.z, head, group};
    const int64_t column = static_cast<int64_t>(head) * a.head_dim,
                  shared_column = static_cast<int64_t>(group) * a.head_dim;
    const float slope = a.slopes.of(head);
    struct softmax_state<CHUNKS> state[WARP_ROWS];
    for (int j = 0; j < WARP_ROWS; j++) {
        state[j].max = -INFINITY;
        state[j].sum = 0.0F;
        for (int i = 0; i < CHUNKS; i++)
            state[j].out[i] = 0.0F;
    }
    load_tile(a.q, at, column, first, a, q);
    for (int64_t key = a.first_key_tile(first); key <= first; key += TILE) {
        __syncthreads(); // the previous tile is no longer in use
        load_tile(a.k, at, shared_column, key, a, k);
        load_tile(a.v, at, shared_column, key, a, v);
        __syncthreads();
        for (int j = 0; j < WARP_ROWS; j++) {
            const int64_t query = first + mine + j;
            float unused;
            const float score = score_of(a, dot(q + (mine + j) * pitch, k + lane * pitch, a.head_dim),
                                         slope * static_cast<float>(key + lane - query), &unused);
            update_softmax(state[j], attends(a, at.row, query, key + lane) ? score : -INFINITY, a, at, query,
                           key + lane, p + (mine + j) * TILE);
        }
        __syncwarp(); // a warp reads only its own rows of p
        for (int j = 0; j < WARP_ROWS; j++)
            add_weighted_rows<CHUNKS>(state[j].out, p + (mine + j) * TILE, 1, v, a.head_dim);
        __syncwarp();
    }
    for (int j = 0; j < WARP_ROWS; j++) {
        const int64_t query = first + mine + j;
        if (query >= a.sequence)
            continue;
        store_line<CHUNKS>(a.out, at.row + query, column, state[j].out, 1.0F / state[j].sum, a.head_dim);
        if (lane == 0)
            a.lse.row(head)[at.row + query] = state[j].max + logf(state[j].sum);
    }
}

/* delta[h, t] = dout . out, one block per token. 2^shift threads, at most a warp, handle a head, VECTOR_WIDTH
 * columns each, so accesses are coalesced for any number of heads. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    attention_bwd_delta(rows<T> out, rows<T> dout, int heads, int head_dim, int shift, float *delta)
{
    const int64_t token = blockIdx.x, tokens = gridDim.x;
    const int end = ((heads << shift) + WARP - 1) / WARP * WARP; // full warps, because of the shuffles
    for (int i = static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
        const int head = i >> shift, column = VECTOR_WIDTH * (i - (head << shift));
        const int64_t at = static_cast<int64_t>(head) * head_dim + column,
                      left = head < heads ? head_dim - column : 0;
        const vec<T> of_out = out.read(token, at, left), of_dout = dout.read(token, at, left);
        const vec<float> x = rows<T>::widened(of_out), y = rows<T>::widened(of_dout);
        float sum = 0.0F;
        for (int k = 0; k < VECTOR_WIDTH; k++)
            sum = fmaf(y.at[k], x.at[k], sum);
        for (unsigned step = 1; step < 1U << shift; step *= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (column == 0 && head < heads)
            delta[head * tokens + token] = sum;
    }
}

/* The four tiles of the backward pass, and its two matrices [query][key]. */
struct smem {
    float *q, *dout, *k, *v, *p, *ds;
};

enum { PAIR_PITCH = TILE + 1 };

static __device__ struct smem smem_of(float *memory, int pitch)
{
    struct smem d;
    d.q = memory;
    d.dout = d.q + TILE * pitch;
    d.k = d.dout + TILE * pitch;
    d.v = d.k + TILE * pitch;
    d.p = d.v + TILE * pitch;
    d.ds = d.p + TILE * PAIR_PITCH;
    return d;
}

static size_t smem_bytes(int head_dim)
{
    return static_cast<size_t>(4 * TILE * pitch_of(head_dim) + 2 * TILE * PAIR_PITCH) * sizeof(float);
}

/* p = e^(score - lse) with the dropout factor, ds = p (dp factor - delta) scale, times the derivative of the
 * score; for this warp's queries. */
static __device__ void make_pairs(const struct attention &a, const struct block_coord &at,
                                  int64_t first_query, int64_t first_key, const struct smem &d)
{
    const int pitch = pitch_of(a.head_dim), lane = static_cast<int>(threadIdx.x % WARP);
    const float slope = a.slopes.of(at.head);
    for (int j = 0; j < WARP_ROWS; j++) {
        const int line = static_cast<int>(threadIdx.x / WARP) * WARP_ROWS + j;
        const int64_t query = first_query + line, key = first_key + lane;
        float p = 0.0F, ds = 0.0F;
        if (attends(a, at.row, query, key)) {
            const int64_t token = at.row + query;
            float derivative;
            const float score = score_of(a, dot(d.q + line * pitch, d.k + lane * pitch, a.head_dim),
                                         slope * static_cast<float>(key - query), &derivative);
            const float weight = expf(score - a.lse.row(at.head)[token]),
                        factor = pair_factor(a, at, query, key);
            const float dp = dot(d.dout + line * pitch, d.v + lane * pitch, a.head_dim);
            p = weight * factor;
            ds = weight * (dp * factor - a.delta[at.head * a.tokens + token]) * (a.scale * derivative);
        }
        d.p[line * PAIR_PITCH + lane] = p;
        d.ds[line * PAIR_PITCH + lane] = ds;
    }
}

template <int CHUNKS> __global__ void __launch_bounds__(THREADS) attention_bwd_dkdv_f32(struct attention a)
{
    DYNAMIC_SHARED(float, memory);
    const struct smem d = smem_of(memory, pitch_of(a.head_dim));
    const int mine = static_cast<int>(threadIdx.x / WARP) * WARP_ROWS, group = static_cast<int>(blockIdx.y);
    const int64_t first_key = static_cast<int64_t>(blockIdx.x) * TILE;
    const int64_t shared_column = static_cast<int64_t>(group) * a.head_dim;
    struct block_coord at = {blockIdx.z * a.sequence, blockIdx.z, 0, group};
    float dk[WARP_ROWS][CHUNKS] = {}, dv[WARP_ROWS][CHUNKS] = {};
    load_tile(a.k, at, shared_column, first_key, a, d.k);
    load_tile(a.v, at, shared_column, first_key, a, d.v);
    const int each = a.heads / a.groups;
    for (at.head = group * each; at.head < (group + 1) * each; at.head++) {
        const int64_t column = static_cast<int64_t>(at.head) * a.head_dim;
        const int64_t end =
            a.sequence - first_key < TILE - 1 + a.window ? a.sequence : first_key + TILE - 1 + a.window;
        for (int64_t query = first_key; query < end; query += TILE) {
            __syncthreads();
            load_tile(a.q, at, column, query, a, d.q);
            load_tile(a.dout, at, column, query, a, d.dout);
            __syncthreads();
            make_pairs(a, at, query, first_key, d);
            __syncthreads();
            for (int j = 0; j < WARP_ROWS; j++) {
                add_weighted_rows<CHUNKS>(dv[j], d.p + mine + j, PAIR_PITCH, d.dout, a.head_dim);
                add_weighted_rows<CHUNKS>(dk[j], d.ds + mine + j, PAIR_PITCH, d.q, a.head_dim);
            }
        }
    }
    for (int j = 0; j < WARP_ROWS; j++) {
        const int64_t key = first_key + mine + j;
        if (key >= a.sequence)
            continue;
        store_line<CHUNKS>(a.dk, at.row + key, shared_column, dk[j], 1.0F, a.head_dim);
        store_line<CHUNKS>(a.dv, at.row + key, shared_column, dv[j], 1.0F, a.head_dim);
    }
}

template <int CHUNKS> __global__ void __launch_bounds__(THREADS) attention_bwd_dq_f32(struct attention a)
{
    DYNAMIC_SHARED(float, memory);
    const struct smem d = smem_of(memory, pitch_of(a.head_dim));
    const int mine = static_cast<int>(threadIdx.x / WARP) * WARP_ROWS, head = static_cast<int>(blockIdx.y);
    const int group = head / (a.heads / a.groups);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * TILE;
    const int64_t column = static_cast<int64_t>(head) * a.head_dim,
                  shared_column = static_cast<int64_t>(group) * a.head_dim;
    const struct block_coord at = {blockIdx.z * a.sequence, blockIdx.z, head, group};
    float dq[WARP_ROWS][CHUNKS] = {};
    load_tile(a.q, at, column, first, a, d.q);
    load_tile(a.dout, at, column, first, a, d.dout);
    for (int64_t key = a.first_key_tile(first); key <= first; key += TILE) {
        __syncthreads();
        load_tile(a.k, at, shared_column, key, a, d.k);
        load_tile(a.v, at, shared_column, key, a, d.v);
        __syncthreads();
        make_pairs(a, at, first, key, d);
        __syncwarp(); // a warp reads only its own rows of ds
        for (int j = 0; j < WARP_ROWS; j++)
            add_weighted_rows<CHUNKS>(dq[j], d.ds + (mine + j) * PAIR_PITCH, 1, d.k, a.head_dim);
    }
    for (int j = 0; j < WARP_ROWS; j++)
        if (first + mine + j < a.sequence)
            store_line<CHUNKS>(a.dq, at.row + first + mine + j, column, dq[j], 1.0F, a.head_dim);
}

static struct attention attention_of(const struct attention_forward *op)
{
    struct attention a = {};
    a.q = any_rows_of(op->q);
    a.k = any_rows_of(op->k);
    a.v = any_rows_of(op->v);
    a.out = any_rows_of(op->out);
    a.lse = floats(op->lse);
    a.sequence = op->sequence;
    a.window = window_of(op);
    a.tokens = op->q.dim[0];
    a.head_dim = static_cast<int>(op->head_dim);
    a.heads = static_cast<int>(op->q.dim[1] / op->head_dim);
    a.groups = static_cast<int>(op->k.dim[1] / op->head_dim);
    a.scale = op->scale;
    a.softcap = op->softcap;
    a.slopes = slopes_of(op);
    a.document = op->document;
    a.dropout = pair_dropout_of(op);
    return a;
}

static enum status check_size(const struct attention &a, int64_t batch)
{
    if (a.head_dim > MAX_COLUMNS)
        return fail(NOT_SUPPORTED,
                    "cuda: attention supports head dimensions up to %d, not %d (model.kv_channels)",
                    static_cast<int>(MAX_COLUMNS), a.head_dim);
    if (a.heads > MAX_GRID_Y || batch > MAX_GRID_Y)
        return fail(NOT_SUPPORTED, "cuda: attention supports at most %d heads and sequences, not %d and %lld",
                    static_cast<int>(MAX_GRID_Y), a.heads, static_cast<long long>(batch));
    return OK;
}

template <int CHUNKS>
static enum status forward(struct cuda_queue *queue, const struct attention &a, dim3 grid)
{
    const size_t bytes = static_cast<size_t>(3 * TILE * pitch_of(a.head_dim) + TILE * TILE) * sizeof(float);
    return LAUNCH(queue, attention_fwd_f32<CHUNKS>, grid, THREADS, bytes, a);
}

enum status cuda_own_attention_forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    const struct attention a = attention_of(op);
    enum attention_kernels kernels = ATTENTION_GENERIC;
    TRY(check_size(a, op->batch));
    if (attention_suits_wgmma(queue, op)) {
        kernels = ATTENTION_WGMMA;
        TRY(attention_wgmma_forward(queue, op));
    } else if (attention_suits_mma(op)) {
        kernels = ATTENTION_MMA;
        TRY(attention_mma_forward(queue, op));
    } else {
        dim3 grid(static_cast<unsigned>(blocks_of(a.sequence, TILE)), static_cast<unsigned>(a.heads),
                  static_cast<unsigned>(op->batch));
        TRY(a.head_dim <= 2 * WARP ? forward<2>(queue, a, grid) : forward<8>(queue, a, grid));
    }
    queue->launches->forward[kernels] = true;
    return OK;
}

template <int CHUNKS>
static enum status backward(struct cuda_queue *queue, const struct attention &a, int64_t batch)
{
    const unsigned tiles = static_cast<unsigned>(blocks_of(a.sequence, TILE)),
                   sequences = static_cast<unsigned>(batch);
    const size_t bytes = smem_bytes(a.head_dim);
    dim3 keys(tiles, static_cast<unsigned>(a.groups), sequences),
        queries(tiles, static_cast<unsigned>(a.heads), sequences);
    TRY(LAUNCH(queue, attention_bwd_dkdv_f32<CHUNKS>, keys, THREADS, bytes, a));
    return LAUNCH(queue, attention_bwd_dq_f32<CHUNKS>, queries, THREADS, bytes, a);
}

static enum status make_delta(struct cuda_queue *queue, const struct attention &a, struct tensor out,
                              struct tensor dout)
{
    int shift = 0;
    while (VECTOR_WIDTH << shift < a.head_dim)
        shift++;
    return with_type(out.dtype, [=](auto number) {
        using T = decltype(number);
        rows<T> x = rows_of<T>(out), y = rows_of<T>(dout);
        x.wide = x.wide && a.head_dim % VECTOR_WIDTH == 0; // so is every head
        y.wide = y.wide && a.head_dim % VECTOR_WIDTH == 0;
        return LAUNCH(queue, attention_bwd_delta<T>, dim3(static_cast<unsigned>(a.tokens)),
                      threads_for(static_cast<int64_t>(a.heads) << shift, THREADS), 0, x, y, a.heads,
                      a.head_dim, shift, a.delta);
    });
}

enum status cuda_own_attention_backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    struct attention a = attention_of(&op->forward);
    TRY(check_size(a, op->forward.batch));
    if (attention_suits_wgmma(queue, op)) {
        TRY(attention_bwd_sm90ward(queue, op));
        queue->launches->backward[ATTENTION_WGMMA] = true;
        return OK;
    }
    a.dout = any_rows_of(op->dout);
    a.dq = any_rows_of(op->dq);
    a.dk = any_rows_of(op->dk);
    a.dv = any_rows_of(op->dv);
    void *delta;
    TRY(cuda_scratch(queue, static_cast<size_t>(a.heads * a.tokens) * sizeof(float), &delta));
    a.delta = static_cast<float *>(delta);
    TRY(make_delta(queue, a, op->forward.out, op->dout));
    const bool mma = attention_suits_mma(op);
    if (mma)
        TRY(attention_mma_backward(queue, op, a.delta));
    else
        TRY(a.head_dim <= 2 * WARP ? backward<2>(queue, a, op->forward.batch)
                                   : backward<8>(queue, a, op->forward.batch));
    queue->launches->backward[mma ? ATTENTION_MMA : ATTENTION_GENERIC] = true;
    return OK;
}

/* ---- conversion of lse to cuDNN's layout ---- */

/* Strides in elements between sequences, and between heads. */
struct lse_steps {
    int64_t sequence, head;
};

static __global__ void attention_copy_lse(const float *from, lse_steps from_steps, float *to,
                                          lse_steps to_steps, int64_t heads, int64_t tokens)
{
    const int64_t sequence = blockIdx.x / heads, head = blockIdx.x % heads;
    from += sequence * from_steps.sequence + head * from_steps.head;
    to += sequence * to_steps.sequence + head * to_steps.head;
    for (int64_t i = threadIdx.x; i < tokens; i += blockDim.x)
        to[i] = from[i];
}

static enum status launch_copy_lse(struct cuda_queue *queue, const struct attention_forward *op,
                                   const float *from, lse_steps from_steps, float *to, lse_steps to_steps)
{
    const int64_t heads = op->lse.dim[0];
    return LAUNCH(queue, attention_copy_lse, dim3(static_cast<unsigned>(heads * op->batch)),
                  threads_for(op->sequence, THREADS), 0, from, from_steps, to, to_steps, heads, op->sequence);
}

static lse_steps own_steps(const struct attention_forward *op)
{
    return {op->sequence, op->lse.stride[0]};
}

static lse_steps packed_steps(const struct attention_forward *op)
{
    return {op->lse.dim[0] * op->sequence, op->sequence};
}

enum status cuda_pack_lse(struct cuda_queue *queue, const struct attention_forward *op, float *packed)
{
    return launch_copy_lse(queue, op, static_cast<const float *>(op->lse.data), own_steps(op), packed,
                           packed_steps(op));
}

enum status cuda_unpack_lse(struct cuda_queue *queue, const struct attention_forward *op, const float *packed)
{
    return launch_copy_lse(queue, op, packed, packed_steps(op), static_cast<float *>(op->lse.data),
                           own_steps(op));
}
