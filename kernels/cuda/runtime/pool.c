// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/pool.h"

#include "base/text.h"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/first_fit.h"

#include <stdlib.h>

#define PIECE_BYTES ((size_t)(CUDA_IS_EMULATED ? 1 : 64) << 20) // minimum size of a segment

struct piece {
    struct piece *next;
    void *data;
};

struct cuda_pool {
    struct piece *pieces;
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

static enum status add_piece(struct cuda_pool *pool, size_t bytes)
{
    struct piece *piece = malloc(sizeof *piece);
    void *data = NULL;
    enum status status = piece != NULL ? allocate(bytes, &data) : fail(NO_MEMORY, "no memory for a pool");
    if (status != OK) {
        free(piece);
        return status;
    }
    *piece = (struct piece){.next = pool->pieces, .data = data};
    pool->pieces = piece;
    return first_fit_add(pool->fit, data, bytes);
}

enum status cuda_pool_create(size_t reserve_bytes, struct cuda_pool **out)
{
    struct cuda_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return fail(NO_MEMORY, "no memory for a pool");
    enum status status = first_fit_create(&pool->fit);
    if (status == OK && reserve_bytes > 0)
        status = add_piece(pool, reserve_bytes);
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
    while (pool->pieces != NULL) {
        struct piece *piece = pool->pieces;
        pool->pieces = piece->next;
        cudaFree(piece->data);
        free(piece);
    }
    first_fit_destroy(pool->fit);
    free(pool);
}

enum status cuda_pool_take(struct cuda_pool *pool, size_t bytes, void **out)
{
    size_t room = first_fit_room(bytes);
    if (room == 0)
        return fail(NO_MEMORY, "cuda: %zu bytes is not a valid size", bytes);
    TRY(first_fit_take(pool->fit, bytes, out));
    if (*out != NULL)
        return OK;
    enum status status = add_piece(pool, room > PIECE_BYTES ? room : PIECE_BYTES);
    if (status == NO_DEVICE_MEMORY && room < PIECE_BYTES) // no room for a full segment: allocate only the
                                                          // bytes needed
        status = add_piece(pool, room);
    TRY(status);
    return first_fit_take(pool->fit, bytes, out);
}

void cuda_pool_give(struct cuda_pool *pool, void *data)
{
    first_fit_give(pool->fit, data);
}
