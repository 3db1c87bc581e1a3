// SPDX-License-Identifier: Apache-2.0
/* Attention forward with wgmma (2407.08608), for bf16 and f16, head dimensions 64 and 128, on compute
 * capability 9.0.
 *
 * A work tile is a few hundred queries of one head. The kernel is warp-specialized: one consumer warpgroup
 * per 64 queries, and a producer thread that copies their keys and values, tile by tile, from the diagonal to
 * the first:
 *
 *     producer:    k3 v3 | k2 v2 | k1 v1 ...                          as pipeline stages are released
 *     consumer 0:  q k3 | q k2, p3 v3 | weights p2 | q k1, p2 v2 | weights p1 ...
 *     consumer 1:         weights p3  | q k2, p3 v3 | weights p2 | ...
 *
 * The kernel is persistent, with one block per multiprocessor, each looping over its share of the work tiles:
 * while a consumer stores one tile's result, the next tile's keys are loaded, and the other consumers may
 * already process it.
 *
 * To keep the tensor cores busy, the next tile's scores are issued before this tile's values, so that a
 * consumer's exponentials overlap its own matmuls; and consumers issue theirs in turns (ping-pong), so that
 * the exponentials also overlap the other consumers' matmuls. Scores, weights and sums are in registers, in
 * the layout of attention_pairs.h.
 *
 * Caution: consumers must take the same number of turns, so all of them process all column tiles of a work
 * tile, including tiles that are fully masked for them. */
#include "kernels/cuda/attention/attention_order.h"
#include "kernels/cuda/attention/attention_pairs.h"
#include "kernels/cuda/tensor_core/tile.h"
#include "kernels/cuda/tensor_core/wgmma.h"

extern "C" {
#include "kernels/cuda/tensor_core/tensor_map.h"
}

/* STAGES: pipeline stages of keys and values; registers per consumer thread, and the producer's. */
template <int D> struct plan;
template <> struct plan<64> {
    static constexpr int CONSUMERS = 3, STAGES = 4, CONSUMER_REGISTERS = 160, PRODUCER_REGISTERS = 32;
};
template <> struct plan<128> {
    static constexpr int CONSUMERS = 2, STAGES = 2, CONSUMER_REGISTERS = 240, PRODUCER_REGISTERS = 24;
};

/* Shared-memory tiles are 64 columns wide; the tiles of a head's halves are adjacent. */
constexpr int PART = 64, QUERIES = 64, KEYS = 128;

template <int D> struct sizes : plan<D> {
    using is = plan<D>;
    static constexpr int ROWS = is::CONSUMERS * QUERIES, THREADS = (1 + is::CONSUMERS) * WARPGROUP;
    static_assert(registers_suffice(is::CONSUMERS, is::CONSUMER_REGISTERS, is::PRODUCER_REGISTERS),
                  "consumers would wait forever");
    static constexpr int QUERY_NUMBERS = QUERIES * D, KEY_NUMBERS = KEYS * D;
    static constexpr int BYTES = OPERAND_ATOM_BYTES +
                                 (is::CONSUMERS * QUERY_NUMBERS + 2 * is::STAGES * KEY_NUMBERS) * 2 +
                                 (2 * is::CONSUMERS + 4 * is::STAGES) * static_cast<int>(sizeof(uint64_t));
};

/* The copies, and the order of work tiles. */
template <class T> struct launch_args {
    CUtensorMap q, k, v;
    operands<T> a;
    struct order order;
};

/* Shared memory. */
template <class T, int D> struct smem {
    using is = sizes<D>;
    T *q, *k, *v;
    uint64_t *q_full, *q_empty, *k_full, *k_empty, *v_full, *v_empty; // per consumer, per stage

    __device__ explicit smem(unsigned char *memory)
    {
        memory += -shared_address(memory) & (OPERAND_ATOM_BYTES - 1U);
        q = reinterpret_cast<T *>(memory);
        k = q + is::CONSUMERS * is::QUERY_NUMBERS;
        v = k + is::STAGES * is::KEY_NUMBERS;
        q_full = reinterpret_cast<uint64_t *>(v + is::STAGES * is::KEY_NUMBERS);
        q_empty = q_full + is::CONSUMERS;
        k_full = q_empty + is::CONSUMERS;
        k_empty = k_full + is::STAGES;
        v_full = k_empty + is::STAGES;
        v_empty = v_full + is::STAGES;
    }

    /* Every consumer warp arrives when it has released a tile. */
    __device__ void open() const
    {
        for (int i = 0; i < is::CONSUMERS; i++) {
            mbarrier_init(q_full + i, 1);
            mbarrier_init(q_empty + i, WARPGROUP / WARP);
        }
        for (int i = 0; i < is::STAGES; i++) {
            mbarrier_init(k_full + i, 1);
            mbarrier_init(v_full + i, 1);
            mbarrier_init(k_empty + i, is::CONSUMERS * WARPGROUP / WARP);
            mbarrier_init(v_empty + i, is::CONSUMERS * WARPGROUP / WARP);
        }
        mbarrier_init_fence();
    }
};

/* The stage of the i-th tile, and the phase parity in which it is loaded. */
template <int STAGES> struct pipeline_state {
    int stage;
    unsigned parity;

    __device__ explicit pipeline_state(int i)
        : stage(i % STAGES), parity(static_cast<unsigned>(i / STAGES % 2))
    {
    }
};

/* A work tile: queries [first, first + ROWS) of a head, and `tiles` column tiles of its keys, down from the
 * one at key `last`. */
struct work_tile {
    struct block_coord at;
    int first, last, tiles;

    __device__ __forceinline__ int key(int i) const
    {
        return last - i * KEYS;
    }
};

template <class T, int D>
__device__ __forceinline__ struct work_tile work_tile_of(const launch_args<T> &args, int number)
{
    using is = sizes<D>;
    struct work_tile w;
    int sequence, tile;
    args.order.find(number, &w.at.head, &sequence, &tile);
    w.at.number = sequence;
    w.at.row = w.at.number * args.a.sequence;
    w.at.group = w.at.head / (args.a.heads / args.a.groups);
    w.first = (args.order.tiles - 1 - tile) * is::ROWS;
    const int end = w.first + is::ROWS < args.a.sequence ? w.first + is::ROWS : args.a.sequence;
    w.last = (end - 1) / KEYS * KEYS;
    w.tiles = (w.last - args.a.first_key(w.first, KEYS)) / KEYS + 1;
    return w;
}

/* Loads a box of keys or values to its stage, once that is released. */
template <class T, int D>
__device__ __forceinline__ void copy_keys(T *buffers, uint64_t *full, uint64_t *empty,
                                          const pipeline_state<plan<D>::STAGES> &t, const CUtensorMap *map,
                                          int group, int key, int number)
{
    T *const buffer = buffers + t.stage * sizes<D>::KEY_NUMBERS;
    mbarrier_wait(empty + t.stage, t.parity ^ 1);
    mbarrier_arrive_expecting(full + t.stage, sizes<D>::KEY_NUMBERS * 2);
    for (int part = 0; part < D / PART; part++)
        tensor_load(buffer + part * KEYS * PART, map, full + t.stage, part * PART, group, key, number);
}

/* Loads the queries of each consumer, once its previous ones are released. */
template <class T, int D>
__device__ __forceinline__ void copy_queries(const launch_args<T> &args, const smem<T, D> &d,
                                             const struct work_tile &w, unsigned parity)
{
    using is = sizes<D>;
    for (int i = 0; i < is::CONSUMERS; i++) {
        T *const buffer = d.q + i * is::QUERY_NUMBERS;
        mbarrier_wait(d.q_empty + i, parity ^ 1);
        mbarrier_arrive_expecting(d.q_full + i, is::QUERY_NUMBERS * 2);
        for (int part = 0; part < D / PART; part++)
            tensor_load(buffer + part * QUERIES * PART, &args.q, d.q_full + i, part * PART, w.at.head,
                        w.first + i * QUERIES, static_cast<int>(w.at.number));
    }
}

template <class T, int D>
__device__ __forceinline__ void produce(const launch_args<T> &args, const smem<T, D> &d)
{
    int begun = 0; // column tiles so far
    UNROLL(1)
    for (int round = 0; args.order.assigned(round) < args.order.work_tiles(); round++) {
        const struct work_tile w = work_tile_of<T, D>(args, args.order.assigned(round));
        const int number = static_cast<int>(w.at.number);
        UNROLL(1)
        for (int i = 0; i < w.tiles; i++, begun++) {
            const pipeline_state<plan<D>::STAGES> t(begun);
            const int key = w.key(i);
            copy_keys<T, D>(d.k, d.k_full, d.k_empty, t, &args.k, w.at.group, key, number);
            if (i == 0) // before any values: no consumer takes its turn until all have finished the previous
                        // work tile
                copy_queries<T, D>(args, d, w, static_cast<unsigned>(round % 2));
            copy_keys<T, D>(d.v, d.v_full, d.v_empty, t, &args.v, w.at.group, key, number);
        }
    }
}

/* A consumer warpgroup and its work tile. PAIRS: documents, dropout, a window or ALiBi are possible; the
 * other instances are spared their registers. */
template <class T, int D, bool PAIRS> struct consumer {
    using is = sizes<D>;
    const launch_args<T> &args;
    const smem<T, D> &d;
    const struct work_tile w;
    const int number, row; // consumer index; row of this lane's first query
    float s[1][KEYS / 8][4], out[1][D / 8][4], max[2], sum[2], rescale[2];
    uint32_t p[KEYS / 16][4];
    struct pair_bits<KEYS / 8> same_document, kept;
    const float slope;

    __device__ __forceinline__ consumer(const launch_args<T> &args_, const smem<T, D> &smem_,
                                        const struct work_tile &work_, int number_)
        : args(args_), d(smem_), w(work_), number(number_),
          row(work_.first + number_ * QUERIES +
              static_cast<int>(threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4)),
          slope(PAIRS ? args_.a.slope_of(work_.at.head) : 0.0F)
    {
        for (int i = 0; i < 2; i++) {
            max[i] = -INFINITY;
            sum[i] = rescale[i] = 0.0F;
        }
        for (int i = 0; i < D / 2; i++)
            out[0][i / 4][i % 4] = 0.0F;
    }

    /* s = q k^T. */
    __device__ __forceinline__ void begin_scores(const pipeline_state<is::STAGES> &t)
    {
        const uint64_t q = rows_operand(d.q + number * is::QUERY_NUMBERS),
                       k = rows_operand(d.k + t.stage * is::KEY_NUMBERS);
        UNROLL_ALL
        for (int i = 0; i < D / 16; i++)
            wgmma<T, KEYS>(s[0], operand_after(q, i / 4 * QUERIES * OPERAND_ROW_BYTES + i % 4 * 32),
                           operand_after(k, i / 4 * KEYS * OPERAND_ROW_BYTES + i % 4 * 32), i > 0);
        wgmma_commit();
    }

    /* out += p v. */
    __device__ __forceinline__ void begin_values(const pipeline_state<is::STAGES> &t)
    {
        const uint64_t v = columns_operand(d.v + t.stage * is::KEY_NUMBERS, KEYS * OPERAND_ROW_BYTES);
        UNROLL_ALL
        for (int i = 0; i < KEYS / 16; i++)
            wgmma<T, D, true>(out[0], p[i], operand_after(v, i * 16 * OPERAND_ROW_BYTES), true);
        wgmma_commit();
    }

    __device__ __forceinline__ void release(uint64_t *empty) const
    {
        if (threadIdx.x % WARP == 0)
            mbarrier_arrive(empty);
    }

    /* Converts scores to weights e^(scale (s - max)), and computes the rescaling factor. */
    __device__ __forceinline__ void update_softmax(int half)
    {
        const float scale_log2 = args.a.scale_log2;
        float larger = max[half];
        UNROLL_ALL
        for (int n = 0; n < KEYS / 8; n++)
            larger = fmaxf(larger, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
        larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 1));
        larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 2));
        // A fully masked query has no maximum yet: 0 in its place avoids inf - inf.
        const float base = larger == -INFINITY ? 0.0F : larger * scale_log2;
        rescale[half] = exp2_fast(fmaf(max[half], scale_log2, -base));
        max[half] = larger;
        float added = sum[half] * rescale[half];
        UNROLL_ALL
        for (int n = 0; n < KEYS / 8; n++) {
            UNROLL_ALL
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[0][n][i] = exp2_fast(fmaf(s[0][n][i], scale_log2, -base));
                added += s[0][n][i];
            }
        }
        sum[half] = added;
    }

    /* The causal mask. */
    __device__ __forceinline__ void hide(int key)
    {
        const int t = static_cast<int>(threadIdx.x % 4) * 2;
        UNROLL_ALL
        for (int i = 0; i < KEYS / 2; i++) {
            const int query = row + i / 2 % 2 * 8, other = key + i / 4 * 8 + t + i % 2;
            float &score = s[0][i / 4][i % 4];
            score = other <= query ? score : -INFINITY;
        }
    }

    /* The documents and the dropout of a tile: before its scores, while their registers are free. */
    __device__ __forceinline__ void compute_bits(int i)
    {
        const int key = w.key(i);
        if (PAIRS && args.a.document != nullptr) {
            const int32_t *const document = args.a.document + w.at.row;
            compute_same_document(same_document, row, args.a.sequence, document, document + key,
                                  args.a.sequence - key);
        }
        if (PAIRS && args.a.dropout.drops)
            compute_kept<false>(kept, args.a.dropout, w.at, row, key);
    }

    __device__ __forceinline__ void weigh(int i)
    {
        const int key = w.key(i), first = row & ~15; // of this warp's 16 rows
        if (PAIRS && args.a.slopes.heads > 0)
            bias_scores<false, 1, KEYS / 8>(s, slope, row, key);
        if (PAIRS && !args.a.all_attend(row, 9, key, KEYS)) // of this lane's rows
            mask_distances<false>(s[0], -INFINITY, row, key, args.a.window);
        if (PAIRS && args.a.document != nullptr)
            mask_bits(s[0], -INFINITY, same_document);
        if (!PAIRS && key + KEYS > first)
            hide(key);
        update_softmax(0);
        update_softmax(1);
        if (PAIRS && args.a.dropout.drops)
            mask_bits(s[0], 0.0F, kept);
    }

    /* Rounds the weights to operands of the next wgmma. */
    __device__ __forceinline__ void round_weights()
    {
        UNROLL_ALL
        for (int i = 0; i < KEYS / 4; i++)
            p[i / 4][i % 4] = narrow_pair<T>(s[0][i / 2][i % 2 * 2], s[0][i / 2][i % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void shrink_sums()
    {
        UNROLL_ALL
        for (int i = 0; i < D / 2; i++)
            out[0][i / 4][i % 4] *= rescale[i / 2 % 2];
    }

    __device__ __forceinline__ void hold()
    {
        wgmma_hold(s[0]);
        wgmma_hold(out[0]);
        wgmma_hold(p);
    }

    /* Consumers issue their matmuls in turn. The first consumer's first turn needs no signal, and the last's
     * last sends none. */
    __device__ __forceinline__ void take_turn() const
    {
        named_barrier(1 + number, 2 * WARPGROUP);
    }

    __device__ __forceinline__ void give_turn(bool last) const
    {
        const int next = number + 1 < is::CONSUMERS ? number + 1 : 0;
        if (next != 0 || !last)
            named_barrier_arrive(1 + next, 2 * WARPGROUP);
    }

    /* `begun`: column tiles of the block's previous work tiles. */
    __device__ __forceinline__ void run(int begun, unsigned parity)
    {
        pipeline_state<is::STAGES> before(begun);
        if (number == 0 && w.tiles > 1)
            named_barrier_arrive(1, 2 * WARPGROUP);
        mbarrier_wait(d.q_full + number, parity);
        mbarrier_wait(d.k_full + before.stage, before.parity);
        compute_bits(0);
        wgmma_hold(s[0]);
        wgmma_fence();
        begin_scores(before);
        wgmma_wait<0>();
        wgmma_hold(s[0]);
        release(d.k_empty + before.stage);
        weigh(0);
        mbarrier_wait(d.v_full + before.stage, before.parity);
        round_weights();
        UNROLL(1)
        for (int i = 1; i < w.tiles; i++) {
            const pipeline_state<is::STAGES> t(begun + i);
            compute_bits(i);
            mbarrier_wait(d.k_full + t.stage, t.parity);
            take_turn();
            hold();
            wgmma_fence();
            begin_scores(t);
            begin_values(before);
            give_turn(i + 1 == w.tiles);
            wgmma_wait<1>(); // the scores
            wgmma_hold(s[0]);
            release(d.k_empty + t.stage);
            weigh(i);
            // Waits for the next values; also a branch, across which ptxas does not move the wait: it would
            // otherwise wait before the softmax.
            mbarrier_wait(d.v_full + t.stage, t.parity);
            wgmma_wait<0>(); // the values
            wgmma_hold(out[0]);
            wgmma_hold(p);
            release(d.v_empty + before.stage);
            round_weights();
            shrink_sums();
            before = t;
        }
        hold();
        wgmma_fence();
        begin_values(before);
        wgmma_wait<0>();
        wgmma_hold(out[0]);
        wgmma_hold(p);
        release(d.v_empty + before.stage);
    }

    /* Stores out and lse, staged through the queries' shared memory. */
    __device__ __forceinline__ void finish()
    {
        const int first = w.first + number * QUERIES, mine = (row & ~15) - first;
        float factor[1][2];
        UNROLL_ALL
        for (int half = 0; half < 2; half++) {
            const int query = row + 8 * half;
            float all = sum[half];
            all += __shfl_xor_sync(ALL_LANES, all, 1);
            all += __shfl_xor_sync(ALL_LANES, all, 2);
            factor[0][half] = (PAIRS && args.a.dropout.drops ? args.a.dropout.rule.scale : 1.0F) / all;
            if (threadIdx.x % 4 == 0 && query < args.a.sequence)
                args.a.lse.row(w.at.head)[w.at.row + query] = max[half] * args.a.scale + logf(all);
        }
        named_barrier(1 + is::CONSUMERS + number, WARPGROUP); // all its warps have finished with the queries
        store_rows<1>(args.a.out, w.at.row, static_cast<int64_t>(w.at.head) * D, first, mine, args.a.sequence,
                      out, factor, tile<T, D>{d.q + number * is::QUERY_NUMBERS});
        async_fence(); // orders these accesses before the copies
        __syncwarp();
        release(d.q_empty + number);
    }
};

template <class T, int D, bool PAIRS>
__global__ void __launch_bounds__((sizes<D>::THREADS), 1)
    attention_fwd_sm90(const __grid_constant__ launch_args<T> args)
{
    using is = sizes<D>;
    DYNAMIC_SHARED(unsigned char, memory);
    const smem<T, D> d(memory);
    // Uniform across the warp, and known to the compiler as such.
    const int group = __shfl_sync(ALL_LANES, static_cast<int>(threadIdx.x / WARPGROUP), 0);
    if (threadIdx.x == 0) {
        tensor_prefetch(&args.q);
        tensor_prefetch(&args.k);
        tensor_prefetch(&args.v);
        d.open();
    }
    __syncthreads();
    if (group == 0) {
        release_registers<is::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            produce<T, D>(args, d);
    } else {
        acquire_registers<is::CONSUMER_REGISTERS>();
        int begun = 0;
        UNROLL(1)
        for (int round = 0; args.order.assigned(round) < args.order.work_tiles(); round++) {
            consumer<T, D, PAIRS> c(args, d, work_tile_of<T, D>(args, args.order.assigned(round)), group - 1);
            c.run(begun, static_cast<unsigned>(round % 2));
            c.finish();
            begun += c.w.tiles;
        }
    }
}

template <class T, int D, bool PAIRS>
static enum status launch(struct cuda_queue *queue, const struct attention_forward *op)
{
    using is = sizes<D>;
    launch_args<T> args;
    args.a = operands_of<T>(op);
    args.order = order_of(op, is::ROWS, false);
    TRY(tensor_map_of(queue, &op->q, op->batch, D, QUERIES, &args.q));
    TRY(tensor_map_of(queue, &op->k, op->batch, D, KEYS, &args.k));
    TRY(tensor_map_of(queue, &op->v, op->batch, D, KEYS, &args.v));
    dim3 grid(1);
    TRY(blocks_for(queue, args.order, &grid));
    return LAUNCH(queue, (attention_fwd_sm90<T, D, PAIRS>), grid, is::THREADS, static_cast<size_t>(is::BYTES),
                  args);
}

template <class T, int D>
static enum status forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    const bool pairs =
        op->document != nullptr || op->dropout.probability > 0.0F || op->window > 0 || op->alibi.heads > 0;
    return pairs ? launch<T, D, true>(queue, op) : launch<T, D, false>(queue, op);
}

bool attention_suits_wgmma(const struct cuda_queue *queue, const struct attention_forward *op)
{
    return queue->encode != nullptr && attention_suits_mma(op) && op->softcap == 0.0F &&
           tensor_map_suits(&op->q, op->head_dim) && tensor_map_suits(&op->k, op->head_dim) &&
           tensor_map_suits(&op->v, op->head_dim);
}

enum status attention_wgmma_forward(struct cuda_queue *queue, const struct attention_forward *op)
{
    if (op->q.dtype == BF16)
        return op->head_dim == 64 ? forward<bf16, 64>(queue, op) : forward<bf16, 128>(queue, op);
    return op->head_dim == 64 ? forward<f16, 64>(queue, op) : forward<f16, 128>(queue, op);
}
