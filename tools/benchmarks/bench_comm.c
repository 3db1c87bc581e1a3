// SPDX-License-Identifier: Apache-2.0
/* Communication between ranks: latency and bandwidth of all_reduce by size, and of a message to the next
 * rank.
 *     bench_comm [RANKS]          threads of one process (2 by default)
 *     mpirun -n 2 bench_comm      processes
 * "moved" is the number of bytes of its own buffer that each rank reads and writes, the same for every
 * transport: an all_reduce of b bytes counts b, whatever the algorithm. */
#include "base/clock.h"
#include "base/text.h"
#include "parallel/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 64 << 20, BUDGET_MS = 150, REPEATS = 3 };

struct bench {
    struct group *all;
    struct stream *stream;
    struct buffer data;
};

static void all_reduce(struct bench *b, int64_t bytes)
{
    MUST(group_all_reduce(b->all, b->stream, tensor_1d(b->data.data, F32, bytes / 4), REDUCE_SUM));
    MUST(stream_sync(b->stream));
}

/* Sends to the next rank, receives from the previous one. */
static void ring(struct bench *b, int64_t bytes)
{
    int n = b->all->size, rank = b->all->rank;
    char *half = (char *)b->data.data + LARGEST / 2;
    struct message both[] = {
        {.data = tensor_1d(b->data.data, F32, bytes / 4), .peer = (rank + 1) % n, .send = true},
        {.data = tensor_1d(half, F32, bytes / 4), .peer = (rank + n - 1) % n, .send = false},
    };
    MUST(group_exchange(b->all, b->stream, both, 2));
    MUST(stream_sync(b->stream));
}

/* Measures the best of a few means, each over as many calls as the time allows; rank 0 decides how many. */
static double measure(struct bench *b, void (*call)(struct bench *b, int64_t bytes), int64_t bytes)
{
    double best = 1e30;
    int32_t calls = 4;
    for (int repeat = 0; repeat <= REPEATS; repeat++) {
        MUST(group_barrier(b->all, b->stream));
        double begin = clock_s();
        for (int i = 0; i < calls; i++)
            call(b, bytes);
        double each = (clock_s() - begin) / calls;
        best = repeat > 0 && each < best ? each : best;
        double fit = 1e-3 * BUDGET_MS / each;
        calls = fit > 20000 ? 20000 : fit < 2 ? 2 : (int32_t)fit;
        MUST(copy_to_device(b->stream, b->data.data, &calls, sizeof calls));
        MUST(group_broadcast(b->all, b->stream, tensor_1d(b->data.data, I32, 1), 0));
        MUST(copy_to_host(b->stream, &calls, b->data.data, sizeof calls));
        MUST(stream_sync(b->stream));
    }
    return best;
}

static enum status body(struct world *world, void *argument)
{
    (void)argument;
    struct device *device = NULL;
    struct bench b = {0};
    int ranks[1024];
    TRY(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &device));
    TRY(stream_create(device, "bench", &b.stream));
    TRY(buffer_alloc(device, PART_COMMUNICATION, LARGEST, &b.data));
    memset(b.data.data, 0, LARGEST);
    for (int r = 0; r < world->size && r < 1024; r++)
        ranks[r] = r;
    TRY(group_create(world, "all", 1, ranks, world->size, &b.all));
    if (world->rank == 0)
        printf("%s, %d ranks\n%12s %14s %12s %14s %12s\n", world->ops->name, world->size, "size",
               "all_reduce", "moved", "ring", "moved");
    const int64_t sizes[] = {8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t bytes = sizes[i];
        memset(b.data.data, 0, (size_t)bytes); // sums of zeros stay finite
        double sum = measure(&b, all_reduce, bytes), letter = measure(&b, ring, bytes);
        char size[NUMBER_CHARS];
        if (world->rank == 0)
            printf("%12s %11.1f us %7.2f GB/s %11.1f us %7.2f GB/s\n", bytes_text(bytes, size), 1e6 * sum,
                   1e-9 * (double)bytes / sum, 1e6 * letter, 1e-9 * (double)bytes / letter);
    }
    group_destroy(b.all);
    buffer_free(&b.data);
    stream_destroy(b.stream);
    device_close(device);
    return OK;
}

int main(int argc, char **argv)
{
    struct launcher launcher;
    int64_t size = 2;
    if (argc > 2 || (argc == 2 && (!integer_parse(argv[1], &size) || size < 2 || size > 1024))) {
        fprintf(stderr, "usage: bench_comm [RANKS], 2 to 1024, or mpirun -n RANKS bench_comm\n");
        return 2;
    }
    MUST(launcher_find(&launcher));
    if (world_run("auto", launcher.size > 0 ? 0 : (int)size, body, NULL) != OK) {
        if (launcher.rank <= 0)
            fprintf(stderr, "bench_comm: %s\n", fail_text());
        return 1;
    }
    return 0;
}
