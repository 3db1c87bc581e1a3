// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/pool.h"

#include "base/memory.h"
#include "base/text.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/first_fit.h"

#include <stdlib.h>

#define SEGMENT_BYTES ((size_t)(CUDA_IS_EMULATED ? 1 : 64) << 20) // minimum size of a segment

struct segment {
    struct segment *next;
    void *data;
};

struct cuda_pool {
    struct segment *segments;
    struct first_fit *fit;
};

static enum status allocate(size_t bytes, void **out)
{
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess)
        return OK;
    (void)cudaGetLastError(); // clear it: the check after the next launch would report it
    char wanted[NUMBER_CHARS], left[CUDA_FREE_CHARS];
    return fail(NO_DEVICE_MEMORY, "cuda: cudaMalloc of %s: %s; %s", bytes_text((int64_t)bytes, wanted),
                cudaGetErrorString(error), cuda_free_text(left));
}

static enum status add_segment(struct cuda_pool *pool, size_t bytes)
{
    void *data = NULL;
    TRY(allocate(bytes, &data));
    struct segment *segment = memory_zeroed(1, sizeof *segment, "a pool");
    *segment = (struct segment){.next = pool->segments, .data = data};
    pool->segments = segment;
    first_fit_add(pool->fit, data, bytes);
    return OK;
}

enum status cuda_pool_create(size_t reserve_bytes, struct cuda_pool **out)
{
    struct cuda_pool *pool = memory_zeroed(1, sizeof *pool, "a pool");
    pool->fit = first_fit_create();
    const enum status status = reserve_bytes > 0 ? add_segment(pool, reserve_bytes) : OK;
    if (status == OK)
        *out = pool;
    else
        cuda_pool_destroy(pool);
    return status;
}

void cuda_pool_destroy(struct cuda_pool *pool)
{
    if (pool == NULL)
        return;
    while (pool->segments != NULL) {
        struct segment *segment = pool->segments;
        pool->segments = segment->next;
        cudaFree(segment->data);
        free(segment);
    }
    first_fit_destroy(pool->fit);
    free(pool);
}

enum status cuda_pool_alloc(struct cuda_pool *pool, size_t bytes, void **out)
{
    size_t occupied = first_fit_occupied(bytes);
    if (occupied == 0)
        return fail(NO_MEMORY, "cuda: %zu bytes is not a valid size", bytes);
    *out = first_fit_alloc(pool->fit, bytes);
    if (*out != NULL)
        return OK;
    enum status status = add_segment(pool, occupied > SEGMENT_BYTES ? occupied : SEGMENT_BYTES);
    if (status == NO_DEVICE_MEMORY &&
        occupied < SEGMENT_BYTES) // no memory for a full segment: allocate only the
                                  // bytes needed
        status = add_segment(pool, occupied);
    TRY(status);
    *out = first_fit_alloc(pool->fit, bytes);
    return OK;
}

void cuda_pool_free(struct cuda_pool *pool, void *data)
{
    first_fit_free(pool->fit, data);
}
