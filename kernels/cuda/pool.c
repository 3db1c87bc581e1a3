// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pool.h"

#include "base/text.h"
#include "kernels/cuda/cuda.h"

#include <stdint.h>
#include <stdlib.h>

enum { ALIGNMENT = 256 };
#define PIECE_BYTES ((size_t)(CUDA_IS_EMULATED ? 1 : 64) << 20) // the least that is asked of CUDA at a time

/* A run of bytes, free or not; all runs of a piece in address order. */
struct run {
    struct run *next;
    char *data;
    size_t bytes;
    bool free;
};

struct piece {
    struct piece *next;
    struct run *runs;
};

struct cuda_pool {
    struct piece *pieces;
};

enum status cuda_pool_create(struct cuda_pool **out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? OK : fail(NO_MEMORY, "no memory for a pool");
}

void cuda_pool_destroy(struct cuda_pool *pool)
{
    while (pool != NULL && pool->pieces != NULL) {
        struct piece *piece = pool->pieces;
        pool->pieces = piece->next;
        cudaFree(piece->runs->data);
        while (piece->runs != NULL) {
            struct run *run = piece->runs;
            piece->runs = run->next;
            free(run);
        }
        free(piece);
    }
    free(pool);
}

/* Cuts `run` so that its first `bytes` stand alone. */
static enum status cut(struct run *run, size_t bytes)
{
    if (run->bytes == bytes)
        return OK;
    struct run *rest = malloc(sizeof *rest);
    if (rest == NULL)
        return fail(NO_MEMORY, "no memory for a pool");
    *rest =
        (struct run){.next = run->next, .data = run->data + bytes, .bytes = run->bytes - bytes, .free = true};
    run->next = rest;
    run->bytes = bytes;
    return OK;
}

static struct run *first_fit(struct cuda_pool *pool, size_t bytes)
{
    for (struct piece *piece = pool->pieces; piece != NULL; piece = piece->next)
        for (struct run *run = piece->runs; run != NULL; run = run->next)
            if (run->free && run->bytes >= bytes)
                return run;
    return NULL;
}

static enum status allocate(size_t bytes, void **out)
{
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess)
        return OK;
    (void)cudaGetLastError(); // it would be found again after the next launch
    size_t left = 0, total = 0;
    char wanted[NUMBER_CHARS], free_now[NUMBER_CHARS], all[NUMBER_CHARS];
    if (cudaMemGetInfo(&left, &total) != cudaSuccess)
        left = total = 0;
    return fail(NO_MEMORY, "cuda: cudaMalloc of %s: %s; %s of the GPU's %s are free",
                bytes_text((int64_t)bytes, wanted), cudaGetErrorString(error),
                bytes_text((int64_t)left, free_now), bytes_text((int64_t)total, all));
}

static enum status add_piece(struct cuda_pool *pool, size_t bytes, struct run **out)
{
    struct piece *piece = malloc(sizeof *piece);
    struct run *run = malloc(sizeof *run);
    void *data = NULL;
    enum status status = piece != NULL && run != NULL ? OK : fail(NO_MEMORY, "no memory for a pool");
    if (status == OK)
        status = allocate(bytes, &data);
    if (status != OK) {
        free(piece);
        free(run);
        return status;
    }
    *run = (struct run){.data = data, .bytes = bytes, .free = true};
    *piece = (struct piece){.next = pool->pieces, .runs = run};
    pool->pieces = piece;
    *out = run;
    return OK;
}

enum status cuda_pool_take(struct cuda_pool *pool, size_t bytes, void **out)
{
    if (bytes > SIZE_MAX / 2)
        return fail(NO_MEMORY, "cuda: %zu bytes are no size", bytes);
    // One alignment more than asked for: a kernel that runs over its end meets no neighbour at once.
    bytes = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    struct run *run = first_fit(pool, bytes);
    if (run == NULL)
        TRY(add_piece(pool, bytes > PIECE_BYTES ? bytes : PIECE_BYTES, &run));
    TRY(cut(run, bytes));
    run->free = false;
    *out = run->data;
    return OK;
}

void cuda_pool_give(struct cuda_pool *pool, void *data)
{
    for (struct piece *piece = pool->pieces; piece != NULL; piece = piece->next) {
        struct run *before = NULL, *run = piece->runs;
        while (run != NULL && run->data != (char *)data) {
            before = run;
            run = run->next;
        }
        if (run == NULL)
            continue;
        CHECK(!run->free);
        run->free = true;
        if (before == NULL || !before->free)
            before = run;
        while (before->next != NULL && before->next->free) {
            struct run *next = before->next;
            before->bytes += next->bytes;
            before->next = next->next;
            free(next);
        }
        return;
    }
    die(__FILE__, __LINE__, "cuda_pool_give", "%p is not of this pool", data);
}
