// SPDX-License-Identifier: Apache-2.0
/* Work tiles of the attention backward kernel (attention_bwd_sm90.cu): their order, shared-memory layout,
 * producer, and operand descriptors.
 *
 *     x and y of both consumers | stage: u, w, lse, delta | stage | ... | barriers
 *
 * Caution: the base must be 1024-byte aligned, which CUDA does not guarantee; back_smem aligns it. */
#pragma once

#include "kernels/cuda/attention/attention_order.h"
#include "kernels/cuda/attention/attention_pairs.h"
#include "kernels/cuda/tensor_core/wgmma.h"

extern "C" {
#include "kernels/cuda/tensor_core/tensor_map.h"
}

enum { TO_KEYS, TO_QUERIES }; // passes

/* Columns and stages are limited by 240 registers per thread and 227 KiB of shared memory. */
template <int D, int PASS> struct back_sizes {
    static constexpr bool KEYS = PASS == TO_KEYS;
    static constexpr int COLUMNS = KEYS && D == 128 ? 64 : 128, STAGES = !KEYS && D == 128 ? 2 : 4,
                         N = COLUMNS / 8;
};
constexpr int CONSUMERS = 2, THREADS = (1 + CONSUMERS) * WARPGROUP;
constexpr int WARPGROUP_ROWS = 64, ROWS = CONSUMERS * WARPGROUP_ROWS; // per warpgroup, per block
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;      // 168 on average
static_assert(registers_suffice(CONSUMERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS),
              "consumers would wait forever");
constexpr int BOX_ROWS = 64, PANEL = 64, PANEL_CHUNKS = PANEL / 8; // rows per copy; columns of an operand

/* ROWS rows of D elements in shared memory, as wgmma operands: D / 64 panels of 64 columns each. */
template <class T, int D, int ROWS> struct panels {
    static constexpr int PANEL_ELEMENTS = ROWS * PANEL, PANEL_BYTES = PANEL_ELEMENTS * int{sizeof(T)},
                         BYTES = D / PANEL * PANEL_BYTES;
    T *data;

    /* Operand with rows from `row` on; the contraction runs along columns, 16 at a time, the k-th slice. */
    __device__ uint64_t along(int row, int k) const
    {
        constexpr int STEPS = PANEL / 16;
        return operand_after(rows_operand(data + k / STEPS * PANEL_ELEMENTS + row * PANEL),
                             k % STEPS * 16 * int{sizeof(T)});
    }

    /* Operand with all columns; the contraction runs along rows, 16 at a time, the k-th slice. */
    __device__ uint64_t across(int k) const
    {
        return columns_operand(data + 16 * k * PANEL, PANEL_BYTES);
    }

    __device__ T *at(int row, int chunk) const
    {
        return data + chunk / PANEL_CHUNKS * PANEL_ELEMENTS + row * PANEL +
               (chunk % PANEL_CHUNKS ^ row % 8) * 8;
    }

    /* Starts a copy of BOX_ROWS rows to the rows from `row` on, zeros past the sequence's end. */
    __device__ void start_box(int row, const CUtensorMap *map, uint64_t *barrier, int head, int first,
                              int64_t sequence) const
    {
        for (int p = 0; p < D / PANEL; p++)
            tensor_load(data + p * PANEL_ELEMENTS + row * PANEL, map, barrier, p * PANEL, head, first,
                        static_cast<int>(sequence));
    }

    __device__ void start(const CUtensorMap *map, uint64_t *barrier, int head, int first,
                          int64_t sequence) const
    {
        for (int row = 0; row < ROWS; row += BOX_ROWS)
            start_box(row, map, barrier, head, first + row, sequence);
    }
};

/* Issues s = x u^T, with x's rows from `mine` on, as one wgmma group. */
template <class T, int D, int COLUMNS>
__device__ __forceinline__ void multiply_rows(float (&s)[COLUMNS / 8][4], const panels<T, D, ROWS> &x,
                                              int mine, const panels<T, D, COLUMNS> &u)
{
    UNROLL_ALL
    for (int k = 0; k < D / 16; k++)
        wgmma<T, COLUMNS>(s, x.along(mine, k), u.along(0, k), k > 0);
    wgmma_commit();
}

/* Issues sum += s w, as one wgmma group. */
template <class T, int D, int COLUMNS>
__device__ __forceinline__ void add_matmul(float (&sum)[D / 8][4], const uint32_t (&s)[COLUMNS / 16][4],
                                           const panels<T, D, COLUMNS> &w)
{
    UNROLL_ALL
    for (int k = 0; k < COLUMNS / 16; k++)
        wgmma<T, D, true>(sum, s[k], w.across(k), true);
    wgmma_commit();
}

struct maps {
    CUtensorMap q, k, v, dout;
};

/* Outputs of compute_query_stats(), for sequences of `padded` queries (a multiple of the tile): lse in
 * units of log 2 and dout . out, [head][sequence][query]; documents, [sequence][token], or NULL. */
struct query_stats {
    float *lse, *delta;
    int32_t *document;
    int padded, sequences;

    __device__ int64_t first(int head, int64_t sequence) const
    {
        return (static_cast<int64_t>(head) * sequences + sequence) * padded;
    }
};

/* A work tile, 128 rows of a head, and its loop over column tiles: keys of these queries; or queries that
 * attend to these keys, for each head of the group. */
template <int D, int PASS> struct back_work_tile {
    using is = back_sizes<D, PASS>;
    struct block_coord at; // `head` is that of the columns, or of the rows if the columns are keys
    int begin, from, to, left, column;

    template <class T> __device__ back_work_tile(const struct order &order, int number, const operands<T> &a)
    {
        const int each = a.heads / a.groups;
        int one, of, tile;
        order.find(number, &one, &of, &tile);
        at.number = of;
        at.row = at.number * a.sequence;
        at.head = is::KEYS ? one * each : one;
        at.group = is::KEYS ? one : one / each;
        begin = (is::KEYS ? tile : order.tiles - 1 - tile) * ROWS;
        const int last = (begin + ROWS > a.sequence ? a.sequence : begin + ROWS) - 1;
        from = column = is::KEYS ? begin : a.first_key(begin, is::COLUMNS);
        to = is::KEYS ? a.end_query(last) : last + 1;
        left = (to - from + is::COLUMNS - 1) / is::COLUMNS * (is::KEYS ? each : 1);
    }

    /* Head of the rows. */
    __device__ int head() const
    {
        return is::KEYS ? at.group : at.head;
    }

    __device__ void next()
    {
        left--;
        column += is::COLUMNS;
        if (column >= to) {
            column = from;
            at.head += is::KEYS ? 1 : 0;
        }
    }
};

/* The current stage of the pipeline, and its phase parity. */
template <int STAGES> struct ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ void next()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <class T, int D, int PASS> struct back_stage {
    using is = back_sizes<D, PASS>;
    using tile = panels<T, D, is::COLUMNS>;
    static constexpr int STATS_BYTES = is::COLUMNS * int{sizeof(float)}, // for columns that are queries
        COPIED = 2 * tile::BYTES + (is::KEYS ? 2 * STATS_BYTES : 0),
                         BYTES = (COPIED + OPERAND_ATOM_BYTES - 1) / OPERAND_ATOM_BYTES * OPERAND_ATOM_BYTES;
    tile u, w;
    float *lse, *delta;

    __device__ explicit back_stage(unsigned char *memory)
        : u{reinterpret_cast<T *>(memory)}, w{reinterpret_cast<T *>(memory + tile::BYTES)},
          lse(reinterpret_cast<float *>(memory + 2 * tile::BYTES)), delta(lse + is::COLUMNS)
    {
    }

    /* One thread starts all copies of a stage; their bytes arrive at `full`. */
    __device__ void start(const struct maps &maps, const struct query_stats &of, const struct block_coord &at,
                          int column, uint64_t *full) const
    {
        const int head = is::KEYS ? at.head : at.group;
        mbarrier_arrive_expecting(full, COPIED);
        u.start(is::KEYS ? &maps.q : &maps.k, full, head, column, at.number);
        w.start(is::KEYS ? &maps.dout : &maps.v, full, head, column, at.number);
        if (is::KEYS) {
            const int64_t first = of.first(head, at.number) + column;
            bulk_load(lse, of.lse + first, STATS_BYTES, full);
            bulk_load(delta, of.delta + first, STATS_BYTES, full);
        }
    }
};

/* A block's shared memory. */
template <class T, int D, int PASS> struct back_smem {
    using is = back_sizes<D, PASS>;
    using tile = panels<T, D, ROWS>;
    static constexpr size_t BYTES = OPERAND_ATOM_BYTES + 2 * tile::BYTES +
                                    is::STAGES * back_stage<T, D, PASS>::BYTES +
                                    2 * (CONSUMERS + is::STAGES) * sizeof(uint64_t);
    tile x, y;
    unsigned char *stages;
    uint64_t *ready, *done; // barriers: rows of each consumer loaded, released
    uint64_t *full, *empty; // barriers: stage loaded, released

    __device__ explicit back_smem(unsigned char *memory)
    {
        unsigned char *const begin = memory + (-shared_address(memory) & (OPERAND_ATOM_BYTES - 1U));
        x.data = reinterpret_cast<T *>(begin);
        y.data = reinterpret_cast<T *>(begin + tile::BYTES);
        stages = begin + 2 * tile::BYTES;
        ready = reinterpret_cast<uint64_t *>(stages + is::STAGES * back_stage<T, D, PASS>::BYTES);
        done = ready + CONSUMERS;
        full = done + CONSUMERS;
        empty = full + is::STAGES;
    }

    __device__ back_stage<T, D, PASS> at(int i) const
    {
        return back_stage<T, D, PASS>(stages + i * back_stage<T, D, PASS>::BYTES);
    }

    __device__ void prepare(const struct maps &maps) const
    {
        if (threadIdx.x == 0) {
            tensor_prefetch(&maps.q);
            tensor_prefetch(&maps.k);
            tensor_prefetch(&maps.v);
            tensor_prefetch(&maps.dout);
            for (int i = 0; i < CONSUMERS; i++) {
                mbarrier_init(ready + i, 1);
                mbarrier_init(done + i, WARPGROUP / WARP);
            }
            for (int i = 0; i < is::STAGES; i++) {
                mbarrier_init(full + i, 1);
                mbarrier_init(empty + i, CONSUMERS * WARPGROUP / WARP);
            }
            mbarrier_init_fence();
        }
        __syncthreads();
    }

    /* One thread starts the copies of x and y, for each consumer once its previous rows are released. */
    __device__ void start_rows(const struct maps &maps, const back_work_tile<D, PASS> &p,
                               unsigned parity) const
    {
        for (int i = 0; i < CONSUMERS; i++) {
            const int mine = i * WARPGROUP_ROWS;
            mbarrier_wait(done + i, parity ^ 1);
            mbarrier_arrive_expecting(ready + i, 2 * tile::BYTES / CONSUMERS);
            x.start_box(mine, is::KEYS ? &maps.k : &maps.q, ready + i, p.head(), p.begin + mine, p.at.number);
            y.start_box(mine, is::KEYS ? &maps.v : &maps.dout, ready + i, p.head(), p.begin + mine,
                        p.at.number);
        }
    }
};
