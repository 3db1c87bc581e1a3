// SPDX-License-Identifier: Apache-2.0
/* The tile scheduler of the persistent attention kernels, which launch one block per multiprocessor. A work
 * tile is a range of rows of one head. With a causal mask, tiles differ in length; each block runs its tiles
 * back to back and blocks do not steal work, so the shares must be balanced. */
#pragma once

#include "kernels/cuda/attention/attention.h"

/* Schedules as many heads at a time as fit their inputs in the L2 cache, longest tiles first. `heads` per
 * sequence: heads of k where keys are rows. */
struct order {
    int heads, sequences, tiles, together;

    __device__ __host__ int work_tiles() const
    {
        return heads * sequences * tiles;
    }

    /* Tile i: its head, its sequence, and its index, counted from the longest. */
    __device__ void find(int i, int *head, int *sequence, int *tile) const
    {
        const int first = i / (together * tiles) * together, left = heads * sequences - first,
                  here = left < together ? left : together, within = i % (together * tiles),
                  one = first + within % here;
        *head = one % heads;
        *sequence = one / heads;
        *tile = within / here;
    }

    /* The tile of this block in a round; none from work_tiles() on. Tiles become shorter, so the direction of
     * assignment alternates between rounds. */
    __device__ int assigned(int round) const
    {
        const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
        return round * grid + (round % 2 == 0 ? block : grid - 1 - block);
    }
};

/* `rows` per work tile. The columns of a tile are keys and values, shared by the heads of a group; or queries
 * and dout of all heads of a group. */
static inline struct order order_of(const struct attention_forward *op, int rows, bool rows_are_keys)
{
    constexpr int64_t CACHE_BYTES = 32 << 20;
    const int64_t heads = op->q.dim[1] / op->head_dim, groups = op->k.dim[1] / op->head_dim,
                  bytes = op->sequence * op->head_dim * 4 * (rows_are_keys ? heads / groups : 1),
                  resident = CACHE_BYTES > bytes ? CACHE_BYTES / bytes : 1,
                  together = rows_are_keys ? resident : resident * (heads / groups),
                  all = (rows_are_keys ? groups : heads) * op->batch;
    return {static_cast<int>(rows_are_keys ? groups : heads), static_cast<int>(op->batch),
            static_cast<int>(blocks_of(op->sequence, rows)),
            static_cast<int>(together < all ? together : all)};
}

/* One block per multiprocessor, or per tile if there are fewer tiles; fewer blocks if a test limits them. */
static inline enum status blocks_for(const struct cuda_queue *queue, const struct order &order, dim3 *out)
{
    int device, processors;
    TRY(cuda_check(queue, cudaGetDevice(&device), "cudaGetDevice"));
    TRY(cuda_check(queue, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                   "cudaDeviceGetAttribute"));
    int blocks = order.work_tiles() < processors ? order.work_tiles() : processors;
    if (queue->max_blocks > 0 && blocks > queue->max_blocks)
        blocks = queue->max_blocks;
    *out = dim3(static_cast<unsigned>(blocks));
    return OK;
}
