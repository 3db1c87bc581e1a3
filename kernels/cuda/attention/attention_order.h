// SPDX-License-Identifier: Apache-2.0
/* Who does which portion of attention, and when, where there are as many blocks as multiprocessors: a portion
 * is some rows of one head. With a causal mask some are long and some are short; a block's own follow each
 * other without a pause, but nobody takes another's, so shares must be alike. */
#pragma once

#include "kernels/cuda/attention/attention.h"

/* Of so many heads at a time as the second-level cache has room for what all their portions read, the long
 * portions first. `heads` of each of the sequences: of k, where keys are rows. */
struct order {
    int heads, sequences, tiles, together;

    __device__ __host__ int portions() const
    {
        return heads * sequences * tiles;
    }

    /* The i-th: of which head of which sequence, and which tile, counted from the longest. */
    __device__ void find(int i, int *head, int *sequence, int *tile) const
    {
        const int first = i / (together * tiles) * together, left = heads * sequences - first,
                  here = left < together ? left : together, within = i % (together * tiles),
                  one = first + within % here;
        *head = one % heads;
        *sequence = one / heads;
        *tile = within / here;
    }

    /* What this block does in a round; portions() or more: nothing. They become shorter and shorter, so from
     * round to round they are dealt in the other direction. */
    __device__ int dealt(int round) const
    {
        const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
        return round * grid + (round % 2 == 0 ? block : grid - 1 - block);
    }
};

/* `rows` of a portion. Its columns are keys and values, which heads of a group share; or queries and dout of
 * all of a group. */
static inline struct order order_of(const struct attention_forward *op, int rows, bool rows_are_keys)
{
    constexpr int64_t CACHE_BYTES = 32 << 20;
    const int64_t heads = op->q.dim[1] / op->head_dim, groups = op->k.dim[1] / op->head_dim,
                  bytes = op->sequence * op->head_dim * 4 * (rows_are_keys ? heads / groups : 1),
                  room = CACHE_BYTES > bytes ? CACHE_BYTES / bytes : 1,
                  together = rows_are_keys ? room : room * (heads / groups),
                  all = (rows_are_keys ? groups : heads) * op->batch;
    return {static_cast<int>(rows_are_keys ? groups : heads), static_cast<int>(op->batch),
            static_cast<int>(blocks_of(op->sequence, rows)),
            static_cast<int>(together < all ? together : all)};
}

/* As many blocks as multiprocessors, or as portions; fewer where a test asks for it. */
static inline enum status blocks_for(const struct cuda_queue *queue, const struct order &order, dim3 *out)
{
    int device, processors;
    TRY(cuda_check(queue, cudaGetDevice(&device), "cudaGetDevice"));
    TRY(cuda_check(queue, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                   "cudaDeviceGetAttribute"));
    int blocks = order.portions() < processors ? order.portions() : processors;
    if (queue->most_blocks > 0 && blocks > queue->most_blocks)
        blocks = queue->most_blocks;
    *out = dim3(static_cast<unsigned>(blocks));
    return OK;
}
