// SPDX-License-Identifier: Apache-2.0
/* Several ranks as threads, each with a device of several compute threads, at the same time: the pool's
 * handshakes and one-thread BLAS calls under ThreadSanitizer, which Criterion does not support. Every rank
 * multiplies the same matrices: all results must be bit-identical. */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 4, M = 700, N = 500, K = 96, ROUNDS = 200 };

struct rank {
    int index;
    const char *device;
    const float *a, *b;
    float *c;
    enum status status;
    char why[256];
};

static void count_task(void *context, int64_t task)
{
    ((int64_t *)context)[task]++;
}

/* Many small jobs, some after a pause long enough for the threads to fall asleep. */
static enum status small_jobs(struct device *device)
{
    int64_t done[64] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        cpu_parallel(device, 1 + round % 64, count_task, done);
        if (round % 20 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    int64_t sum = 0, wanted = 0;
    for (int i = 0; i < 64; i++)
        sum += done[i];
    for (int round = 0; round < ROUNDS; round++)
        wanted += 1 + round % 64;
    return sum == wanted ? OK
                         : fail(OUT_OF_BOUND, "%lld tasks ran of %lld", (long long)sum, (long long)wanted);
}

static enum status multiply(struct rank *rank, struct device *device)
{
    struct stream *stream;
    TRY(stream_create(device, "compute", &stream));
    struct gemm args = {.a = tensor_2d((void *)(uintptr_t)rank->a, F32, M, K),
                        .b = tensor_2d((void *)(uintptr_t)rank->b, F32, N, K),
                        .c = tensor_2d(rank->c, F32, M, N),
                        .transpose_b = true};
    enum status status = gemm(stream, args);
    if (status == OK)
        status = stream_sync(stream);
    stream_destroy(stream);
    return status;
}

static enum status rank_body(struct rank *rank)
{
    struct device *device;
    TRY(device_open(&(struct device_options){.name = rank->device, .threads = 1 + rank->index % 3}, &device));
    enum status status = small_jobs(device);
    if (status == OK)
        status = multiply(rank, device);
    device_close(device);
    return status;
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;
    rank->status = rank_body(rank);
    snprintf(rank->why, sizeof rank->why, "%s", fail_text());
    return NULL;
}

int main(void)
{
    float *a = malloc(M * K * sizeof *a), *b = malloc(N * K * sizeof *b);
    philox_normal(philox_named(1, "a"), 0, 0, M * K, a);
    philox_normal(philox_named(1, "b"), 0, 0, N * K, b);
    struct rank ranks[RANKS] = {0};
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.index = r, .device = r % 2 == 0 ? "cpu" : "strict", .a = a, .b = b};
        ranks[r].c = calloc(M * N, sizeof(float));
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
            return 1;
    }
    int bad = 0;
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        if (ranks[r].status != OK)
            fprintf(stderr, "rank %d: %s\n", r, ranks[r].why);
        bool same = memcmp(ranks[r].c, ranks[0].c, M * N * sizeof(float)) == 0;
        if (!same)
            fprintf(stderr, "the result of rank %d differs from that of rank 0\n", r);
        bad += ranks[r].status != OK || !same;
    }
    for (int r = 0; r < RANKS; r++)
        free(ranks[r].c);
    free(a);
    free(b);
    return bad == 0 ? 0 : 1;
}
