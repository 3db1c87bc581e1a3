// SPDX-License-Identifier: Apache-2.0
/* Attention backward for sm_90a: wgmma, and TMA copies by one producer thread (wgmma.h).
 *
 * The two passes are those of attention_sm80.cu, for the same reason: each recomputes the scores, seven
 * matmuls instead of five, so that there is no reduction across blocks and every sum has a fixed order. A
 * single pass of five matmuls would have to accumulate dq in a fixed sequence of key blocks, and wait: that
 * costs FlashAttention-3 up to 38 % of its rate (2601.21824), and two matmuls of seven are 29 %.
 *
 *                       rows   x  y      columns   u  w        s = x u^T       first  += ds u
 *     for dk and dv     keys   k  v      queries   q  dout     dp = y w^T      second += p w
 *     for dq            queries q dout   keys      k  v        ds = p (dp - delta)
 *
 * A work tile has 128 rows, 64 for each of a block's two consumer warpgroups, which do not synchronize with
 * each other: while one computes weights, the other uses the tensor cores. A third warpgroup has one active
 * thread, the producer, which prefetches columns:
 *
 *     producer   empty? | announce bytes to full, start copies of u, w, lse, delta
 *     consumers  full?  | s, dp | p | second += p w, and meanwhile ds | first += ds u | arrive at empty
 *
 * The kernel is persistent, with one block per multiprocessor, each looping over its share of the work tiles:
 * while results of one are stored, columns of the next are loaded, and the other warpgroup may already
 * process it.
 *
 * Weights and their gradients stay in registers from one wgmma to the next. s and dp read u and w along their
 * rows (K-major), the sums read the same tiles across them (MN-major).
 *
 * Caution: every warp must arrive at empty once per column tile, also for tiles that its warpgroup skips. */
#include "kernels/cuda/attention/attention_bwd_sm90.h"

/* Rounds an accumulator to an operand of the next wgmma. */
template <class T, int N>
__device__ __forceinline__ void narrow_all(uint32_t (&to)[N / 2][4], const float (&from)[N][4])
{
    UNROLL_ALL
    for (int i = 0; i < 2 * N; i++)
        to[i / 4][i % 4] = narrow_pair<T>(from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
    wgmma_hold(to);
}

template <class T, int N>
__device__ __forceinline__ void narrow_kept(uint32_t (&to)[N / 2][4], const float (&from)[N][4],
                                            const struct pair_bits<N> &kept)
{
    UNROLL_ALL
    for (int i = 0; i < 2 * N; i++) {
        const int n = i / 2, j = i % 2 * 2;
        to[i / 4][i % 4] =
            narrow_pair<T>(kept.at(n, j) ? from[n][j] : 0.0F, kept.at(n, j + 1) ? from[n][j + 1] : 0.0F);
    }
    wgmma_hold(to);
}

struct alignas(8) float_pair {
    float at[2];
};

/* A warpgroup's operands and accumulators. RARE: documents, dropout, a window or ALiBi are possible;
 * the other instances are spared their registers. */
template <class T, int D, int PASS, bool RARE> struct gradient {
    using is = back_sizes<D, PASS>;
    static constexpr bool KEYS = is::KEYS;
    static constexpr int N = is::N;
    float first[D / 8][4], second[KEYS ? D / 8 : 1][4];
    struct float_pair lse, delta; // of this lane's rows, if those are queries
    float slope;                  // ALiBi's, of the current head

    /* lse or delta of columns that are queries, for the four elements of tile n; x is that of the rows. */
    static __device__ __forceinline__ struct float_pair of_tile(const float *columns, int n,
                                                                const struct float_pair &x)
    {
        const int in_group = static_cast<int>(threadIdx.x % 4);
        return KEYS ? *reinterpret_cast<const struct float_pair *>(columns + 8 * n + 2 * in_group) : x;
    }

    /* Converts scores to weights. `row` is this lane's first. Masked weights are set to 0 afterwards, instead
     * of the scores to -infinity before: so a branch follows the exponentials, across which ptxas does not
     * move the wait for dp. Otherwise it would wait before them. */
    __device__ __forceinline__ void weigh(float (&s)[1][N][4], const operands<T> &a, const float *of_columns,
                                          int row, int column, const struct pair_bits<N> &same_document) const
    {
        const int first_row = row - static_cast<int>(threadIdx.x % WARP / 4); // of the warp's 16
        if (RARE && a.slopes.heads > 0)
            bias_scores<KEYS, 1, N>(s, slope, row, column);
        UNROLL_ALL
        for (int n = 0; n < N; n++) {
            const struct float_pair sum = of_tile(of_columns, n, lse);
            UNROLL_ALL
            for (int i = 0; i < 4; i++)
                s[0][n][i] = exp2_fast(fmaf(s[0][n][i], a.scale_log2, -sum.at[KEYS ? i % 2 : i / 2]));
        }
        const bool all = KEYS ? a.all_attend(column, is::COLUMNS, first_row, 16)
                              : a.all_attend(first_row, 16, column, is::COLUMNS);
        if (!RARE && !all)
            mask_scores<KEYS, 1, N>(s, 0.0F, row, column, a.sequence, a.sequence, nullptr, nullptr);
        if (RARE && !all)
            mask_distances<KEYS>(s[0], 0.0F, row, column, a.window);
        if (RARE && a.document != nullptr)
            mask_bits(s[0], 0.0F, same_document);
    }

    /* dp becomes ds; p are weights before dropout. */
    __device__ __forceinline__ void differentiate(float (&dp)[N][4], const float (&p)[N][4],
                                                  const operands<T> &a, const float *of_columns,
                                                  const struct pair_bits<N> &kept) const
    {
        if (RARE && a.dropout.drops) { // a loop of its own: one for both holds some of dp twice
            UNROLL_ALL
            for (int i = 0; i < 4 * N; i++)
                dp[i / 4][i % 4] = kept.at(i / 4, i % 4) ? dp[i / 4][i % 4] * a.dropout.rule.scale : 0.0F;
            wgmma_hold(dp);
        }
        UNROLL_ALL
        for (int n = 0; n < N; n++) {
            const struct float_pair less = of_tile(of_columns, n, delta);
            UNROLL_ALL
            for (int i = 0; i < 4; i++)
                dp[n][i] = p[n][i] * (dp[n][i] - less.at[KEYS ? i % 2 : i / 2]);
        }
    }

    /* Issues second += p w. */
    __device__ __forceinline__ void add_weighed(uint32_t (&weights)[N / 2][4], const float (&p)[N][4],
                                                const operands<T> &a, const struct pair_bits<N> &kept,
                                                const panels<T, D, is::COLUMNS> &w)
    {
        if (RARE && a.dropout.drops)
            narrow_kept<T, N>(weights, p, kept);
        else
            narrow_all<T, N>(weights, p);
        wgmma_fence();
        add_matmul<T, D, is::COLUMNS>(second, weights, w);
    }

    /* Processes one tile of columns. Rows of x and y from `mine` on are this warpgroup's. */
    __device__ __forceinline__ void add_tile(const operands<T> &a, const struct query_stats &of,
                                             const struct block_coord &at, const back_smem<T, D, PASS> &smem,
                                             const back_stage<T, D, PASS> &c, int mine, int row, int column)
    {
        float s[1][N][4], dp[N][4];
        uint32_t weights[KEYS ? N / 2 : 1][4], ds[N / 2][4];
        pair_bits<N> same_document = {}, kept = {};
        if (RARE && a.document != nullptr) // first, while there are free registers
            compute_same_document(same_document, row, a.sequence, a.document + at.row,
                                  of.document + at.number * of.padded + column, is::COLUMNS);
        if (RARE && a.dropout.drops)
            compute_kept<KEYS>(kept, a.dropout, at, row, column);
        wgmma_fence();
        multiply_rows<T, D, is::COLUMNS>(s[0], smem.x, mine, c.u);
        multiply_rows<T, D, is::COLUMNS>(dp, smem.y, mine, c.w);
        wgmma_wait<1>();
        wgmma_hold(s[0]);
        weigh(s, a, c.lse, row, column, same_document);
        if constexpr (KEYS && !RARE) // overlaps with dp becoming ds; RARE lacks the registers for that
            add_weighed(weights, s[0], a, kept, c.w);
        wgmma_wait<KEYS && !RARE ? 1 : 0>(); // for dp
        wgmma_hold(dp);
        differentiate(dp, s[0], a, c.delta, kept);
        if constexpr (KEYS && RARE)
            add_weighed(weights, s[0], a, kept, c.w);
        narrow_all<T, N>(ds, dp);
        wgmma_fence();
        add_matmul<T, D, is::COLUMNS>(first, ds, c.u);
        wgmma_wait<0>();
        wgmma_hold(first);
        wgmma_hold(ds);
        if constexpr (KEYS) {
            wgmma_hold(second);
            wgmma_hold(weights);
        }
    }
};

/* Stores a sum, scaled by `factor` and rounded, to rows [first + mine, ...) of `to`, staged through the
 * warp's own 16 rows of a released tile so that global stores are full 16-byte chunks. */
template <class T, int D>
__device__ __forceinline__ void store_rows(const rows<T> &to, int64_t row, int64_t column, int first,
                                           int mine, int sequence, const float (&sum)[D / 8][4], float factor,
                                           const panels<T, D, ROWS> &by)
{
    const int lane = static_cast<int>(threadIdx.x % WARP), group = lane / 4, in_group = lane % 4;
    UNROLL_ALL
    for (int d = 0; d < D / 8; d++)
        UNROLL_ALL
    for (int half = 0; half < 2; half++)
        *reinterpret_cast<uint32_t *>(by.at(mine + 8 * half + group, d) + 2 * in_group) =
            narrow_pair<T>(sum[d][2 * half] * factor, sum[d][2 * half + 1] * factor);
    __syncwarp();
    for (int i = lane; i < 16 * (D / 8); i += WARP) {
        const int r = mine + i / (D / 8), chunk = i % (D / 8);
        if (first + r < sequence)
            *reinterpret_cast<vec<T> *>(to.row(row + first + r) + column + 8 * chunk) =
                *reinterpret_cast<const vec<T> *>(by.at(r, chunk));
    }
}

/* Interleaves the copies: columns that have arrived can be processed while others wait for their rows. */
template <class T, int D, int PASS>
__device__ __forceinline__ void produce(const struct maps &maps, const operands<T> &a,
                                        const struct query_stats &of, const struct order &order,
                                        const back_smem<T, D, PASS> &smem)
{
    ring<back_sizes<D, PASS>::STAGES> t;
    UNROLL(1)
    for (int round = 0; order.assigned(round) < order.work_tiles(); round++) {
        back_work_tile<D, PASS> p(order, order.assigned(round), a);
        bool rows = false;
        UNROLL(1)
        for (; p.left > 0; p.next(), t.next()) {
            mbarrier_wait(smem.empty + t.stage, t.parity ^ 1);
            smem.at(t.stage).start(maps, of, p.at, p.column, smem.full + t.stage);
            if (!rows)
                smem.start_rows(maps, p, static_cast<unsigned>(round % 2));
            rows = true;
        }
    }
}

/* A work tile, of which `consumer` has 64 rows. `round`: its index within the block. */
template <class T, int D, int PASS, bool RARE>
__device__ __forceinline__ void consume(const operands<T> &a, const struct query_stats &of,
                                        back_work_tile<D, PASS> p, const back_smem<T, D, PASS> &smem,
                                        int consumer, int round, ring<back_sizes<D, PASS>::STAGES> &t)
{
    using is = back_sizes<D, PASS>;
    constexpr bool KEYS = is::KEYS;
    const int lane = static_cast<int>(threadIdx.x % WARP), mine = consumer * WARPGROUP_ROWS,
              warp_row = mine + static_cast<int>(threadIdx.x % WARPGROUP) / WARP * 16,
              row = p.begin + warp_row + lane / 4;
    gradient<T, D, PASS, RARE> sum = {};
    for (int i = 0; !KEYS && i < 2; i++) {
        const int64_t query = of.first(p.at.head, p.at.number) + row + 8 * i;
        sum.lse.at[i] = of.lse[query];
        sum.delta.at[i] = of.delta[query];
    }
    mbarrier_wait(smem.ready + consumer, static_cast<unsigned>(round % 2));
    UNROLL(1)
    for (; p.left > 0; p.next(), t.next()) {
        if (RARE && p.column == p.from) // the first tile of a head
            sum.slope = a.slope_of(p.at.head);
        mbarrier_wait(smem.full + t.stage, t.parity);
        if (!KEYS || a.some_attend(p.column, is::COLUMNS, p.begin + mine, WARPGROUP_ROWS))
            sum.add_tile(a, of, p.at, smem, smem.at(t.stage), mine, row, p.column);
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(smem.empty + t.stage);
    }
    named_barrier(1 + consumer, WARPGROUP); // this warpgroup has finished reading its rows of x and y
    const int64_t column = static_cast<int64_t>(p.head()) * D;
    store_rows<T, D>(KEYS ? a.dk : a.dq, p.at.row, column, p.begin, warp_row, a.sequence, sum.first, a.scale,
                     smem.x);
    if constexpr (KEYS)
        store_rows<T, D>(a.dv, p.at.row, column, p.begin, warp_row, a.sequence, sum.second,
                         RARE && a.dropout.drops ? a.dropout.rule.scale : 1.0F, smem.y);
    async_fence(); // orders these accesses before the copies of the next rows
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(smem.done + consumer);
}

template <class T, int D, int PASS, bool RARE>
__global__ void __launch_bounds__(THREADS, 1)
    attention_bwd_sm90(const __grid_constant__ struct maps maps, const operands<T> a,
                       const struct query_stats of, const struct order order)
{
    DYNAMIC_SHARED(unsigned char, memory);
    const back_smem<T, D, PASS> smem(memory);
    // Uniform across the warp, and known to the compiler as such.
    const int warpgroup = __shfl_sync(ALL_LANES, static_cast<int>(threadIdx.x) / WARPGROUP, 0);
    smem.prepare(maps);
    if (warpgroup == 0) {
        release_registers<PRODUCER_REGISTERS>(); // first: the consumers wait for them
        if (threadIdx.x == 0)
            produce(maps, a, of, order, smem);
    } else {
        acquire_registers<CONSUMER_REGISTERS>();
        ring<back_sizes<D, PASS>::STAGES> t;
        UNROLL(1)
        for (int round = 0; order.assigned(round) < order.work_tiles(); round++)
            consume<T, D, PASS, RARE>(a, of, back_work_tile<D, PASS>(order, order.assigned(round), a), smem,
                                      warpgroup - 1, round, t);
    }
}

/* Eight elements of a head per thread. */
template <class T, int D>
__global__ void __launch_bounds__(2 * WARPGROUP)
    attention_bwd_delta_sm90(operands<T> a, const struct query_stats of)
{
    constexpr int LANES = D / VECTOR_WIDTH;
    const int lane = static_cast<int>(threadIdx.x) % LANES, head = static_cast<int>(blockIdx.y),
              query = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const int64_t token = static_cast<int64_t>(blockIdx.z) * a.sequence + query,
                  column = static_cast<int64_t>(head) * D + VECTOR_WIDTH * lane;
    const bool present = query < a.sequence;
    float sum = 0.0F;
    if (present) {
        const vec<float> x = a.dout.load(token, column, VECTOR_WIDTH),
                         y = a.out.load(token, column, VECTOR_WIDTH);
        UNROLL_ALL
        for (int i = 0; i < VECTOR_WIDTH; i++)
            sum = fmaf(x.at[i], y.at[i], sum);
    }
    UNROLL_ALL
    for (int other = LANES / 2; other > 0; other /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, other);
    if (lane != 0)
        return;
    const int64_t to = of.first(head, blockIdx.z) + query;
    of.delta[to] = sum;
    of.lse[to] = present ? a.lse.row(head)[token] * LOG2_E : 0.0F;
    if (head == 0 && of.document != nullptr)
        of.document[static_cast<int64_t>(blockIdx.z) * of.padded + query] = present ? a.document[token] : 0;
}

template <class T, int D, int PASS, bool RARE>
static enum status differentiate(struct cuda_queue *queue, const struct attention_backward *op,
                                 const struct maps &maps, const struct operands<T> &a,
                                 const struct query_stats &of)
{
    const struct order order = order_of(&op->forward, ROWS, PASS == TO_KEYS);
    dim3 grid(1);
    TRY(blocks_for(queue, order, &grid));
    return LAUNCH(queue, (attention_bwd_sm90<T, D, PASS, RARE>), grid, THREADS,
                  (back_smem<T, D, PASS>::BYTES), maps, a, of, order);
}

static enum status query_stats_of(struct cuda_queue *queue, const struct attention_forward *op, int64_t heads,
                                  struct query_stats *out)
{
    const int64_t padded = blocks_of(op->sequence, ATTENTION_TILE) * ATTENTION_TILE,
                  queries = heads * op->batch * padded, tokens = op->batch * padded;
    void *memory;
    TRY(cuda_scratch(queue, static_cast<size_t>(2 * queries + tokens) * sizeof(float), &memory));
    out->lse = static_cast<float *>(memory);
    out->delta = out->lse + queries;
    out->document = op->document != NULL ? reinterpret_cast<int32_t *>(out->delta + queries) : NULL;
    out->padded = static_cast<int>(padded);
    out->sequences = static_cast<int>(op->batch);
    return OK;
}

template <class T, int D>
static enum status backward(struct cuda_queue *queue, const struct attention_backward *op)
{
    const struct attention_forward *f = &op->forward;
    const struct operands<T> a = operands_of<T>(op, NULL);
    struct query_stats of;
    struct maps maps;
    TRY(query_stats_of(queue, f, a.heads, &of));
    TRY(tensor_map_of(queue, &f->q, f->batch, D, BOX_ROWS, &maps.q));
    TRY(tensor_map_of(queue, &f->k, f->batch, D, BOX_ROWS, &maps.k));
    TRY(tensor_map_of(queue, &f->v, f->batch, D, BOX_ROWS, &maps.v));
    TRY(tensor_map_of(queue, &op->dout, f->batch, D, BOX_ROWS, &maps.dout));
    const dim3 queries(static_cast<unsigned>(of.padded * (D / VECTOR_WIDTH) / (2 * WARPGROUP)),
                       static_cast<unsigned>(a.heads), static_cast<unsigned>(f->batch));
    TRY(LAUNCH(queue, (attention_bwd_delta_sm90<T, D>), queries, 2 * WARPGROUP, 0, a, of));
    if (a.document != NULL || a.dropout.drops || f->window > 0 || f->alibi.heads > 0) {
        TRY((differentiate<T, D, TO_KEYS, true>(queue, op, maps, a, of)));
        return differentiate<T, D, TO_QUERIES, true>(queue, op, maps, a, of);
    }
    TRY((differentiate<T, D, TO_KEYS, false>(queue, op, maps, a, of)));
    return differentiate<T, D, TO_QUERIES, false>(queue, op, maps, a, of);
}

bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_backward *op)
{
    const struct tensor *const copied[] = {&op->forward.q, &op->forward.k, &op->forward.v, &op->dout};
    bool suits = queue->encode != NULL && attention_suits_mma(op) && op->forward.softcap == 0.0F;
    for (int i = 0; i < 4; i++)
        suits = suits && tensor_map_suits(copied[i], op->forward.head_dim);
    return suits;
}

enum status attention_bwd_sm90ward(struct cuda_queue *queue, const struct attention_backward *op)
{
    const bool narrow = op->forward.head_dim == 64;
    if (op->forward.q.dtype == BF16)
        return narrow ? backward<bf16, 64>(queue, op) : backward<bf16, 128>(queue, op);
    return narrow ? backward<f16, 64>(queue, op) : backward<f16, 128>(queue, op);
}
