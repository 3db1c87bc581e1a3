// SPDX-License-Identifier: Apache-2.0
/* Scratch memory of the nccl transport for float sums in rank order (comm_nccl.c): received data before it is
 * added. Part of every build, because the dry transport accounts for it. */
#pragma once

#include "kernels/cuda/runtime/scratch.h" // declares whether there is an emulator, whose chunks are small
#include "kernels/tensor.h"

/* Scratch memory of one sum at a time, and the message size below which all ranks add all of it. */
enum {
    CHUNK_BYTES = CUDA_IS_EMULATED ? 1 << 16 : 64 << 20,
    SMALL_BYTES = CUDA_IS_EMULATED ? 1 << 8 : 64 << 10,
};

/* Returns the elements of one chunk of an all-reduce; for a maximum every rank gathers everything. */
static inline int64_t nccl_chunk(int ranks, size_t each, bool maximum)
{
    int64_t limit = CHUNK_BYTES / (int64_t)each;
    if (maximum)
        limit = limit / ranks > 0 ? limit / ranks : 1;
    return limit;
}

/* Returns true if every rank adds all of a chunk. */
static inline bool nccl_gathers(int ranks, int64_t count, size_t each, bool maximum)
{
    return maximum || (size_t)count * each <= SMALL_BYTES || count / ranks == 0;
}

/* Of one chunk: a share from each rank, or everything, or the remainder after the shares. */
static inline size_t nccl_chunk_scratch(int ranks, int64_t count, size_t each, bool maximum)
{
    int64_t share = count / ranks, rest = count % ranks;
    bool all = nccl_gathers(ranks, count, each, maximum);
    return (size_t)ranks * (size_t)(all ? count : share > rest ? share : rest) * each;
}

/* Of all chunks; all but the last are equal. */
static inline size_t nccl_all_reduce_scratch(int ranks, int64_t count, size_t each, bool maximum)
{
    int64_t limit = nccl_chunk(ranks, each, maximum), last = count % limit;
    size_t whole = count >= limit ? nccl_chunk_scratch(ranks, limit, each, maximum) : 0;
    size_t other = last > 0 ? nccl_chunk_scratch(ranks, last, each, maximum) : 0;
    return whole > other ? whole : other;
}

/* Returns the elements of a rank's slice that a reduce-scatter adds at a time. */
static inline int64_t nccl_slice_chunk(int ranks, size_t each)
{
    int64_t limit = CHUNK_BYTES / (int64_t)each / ranks;
    return limit > 0 ? limit : 1;
}

/* Of a rank whose slice has `mine` elements. */
static inline size_t nccl_reduce_scatter_scratch(int ranks, int64_t mine, size_t each)
{
    int64_t limit = nccl_slice_chunk(ranks, each);
    return (size_t)ranks * (size_t)(mine < limit ? mine : limit) * each;
}
