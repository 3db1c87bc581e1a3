// SPDX-License-Identifier: Apache-2.0
/* Checkpoints in memory: the rates of saving and loading, next to that of memcpy.
 *
 *     bench_checkpoint [-n ROUNDS] [--cpu] MEMORY_DIR KEY=VALUE...      a folder on a tmpfs; the layout
 *
 * Each round measures memcpy of as many bytes as the ranks hold, by as many threads and into memory that was
 * used before; then a save in memory, and loading it. Ranks are threads, on virtual nodes: CUBOID_NODE=a,b.
 * Prints the medians of the rounds, and of the ratio within a round. --cpu: processor time of rank 0 instead
 * of elapsed time, for a machine with other load. */
#include "base/clock.h"
#include "planner/plan/memory_plan.h"
#include "tools/benchmarks/bench_run.h"
#include "trainer/checkpoint/in_memory/memory_checkpoint.h"
#include "trainer/checkpoint/in_memory/memory_save.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
    struct bench_run run;
    int rounds;
    bool cpu_time;
    double copy_s[BENCH_ROUNDS_MAX], save_s[BENCH_ROUNDS_MAX], load_s[BENCH_ROUNDS_MAX],
        bytes; // of rank 0; all ranks' bytes
};

static double now_s(const struct bench *b)
{
    struct timespec time;
    if (!b->cpu_time)
        return clock_s();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Waits for all ranks, and returns the time since `start`. */
static enum status lap(struct rank_state *w, const struct bench *b, double start, double *out)
{
    const double own = now_s(b) - start;
    TRY(group_barrier(w->groups->world, w->compute));
    *out = b->cpu_time ? own : now_s(b) - start;
    return OK;
}

static enum status rounds(struct rank_state *w, struct memory_checkpoints *memory, struct bench *b,
                          char *from, char *to, size_t bytes)
{
    const bool first = w->world->rank == 0;
    for (int i = 0; i < b->rounds; i++) {
        double times[3], start = 0.0;
        char *path = NULL;
        TRY(group_barrier(w->groups->world, w->compute));
        start = now_s(b);
        memcpy(to, from, bytes);
        TRY(lap(w, b, start, &times[0]));
        w->step = i + 1;
        start = now_s(b);
        TRY(memory_checkpoints_save(memory));
        TRY(lap(w, b, start, &times[1]));
        start = now_s(b);
        TRY(checkpoint_load_newest(w, memory, -1, &path));
        TRY(lap(w, b, start, &times[2]));
        if (path == NULL)
            return fail(BAD_CHECKPOINT, "no checkpoint in memory");
        free(path);
        if (first) {
            b->copy_s[i] = times[0];
            b->save_s[i] = times[1];
            b->load_s[i] = times[2];
        }
    }
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct bench *b = argument;
    struct rank_state state;
    struct memory_checkpoints *memory = NULL;
    struct rank_writer writer;
    TRY(memory_plan_create_rank(&b->run.run, world, &state));
    TRY(memory_checkpoints_open(&state, &memory));
    rank_writer_create(&state, &writer);
    const size_t bytes = rank_writer_bytes(&writer);
    rank_writer_free(&writer);
    char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
    if (from == NULL || to == NULL)
        die_of(NO_MEMORY, "no memory for %zu bytes", bytes);
    memset(from, 1, bytes);
    memset(to, 1, bytes);
    TRY(rounds(&state, memory, b, from, to, bytes));
    if (world->rank == 0)
        b->bytes = (double)bytes * world->size;
    free(from);
    free(to);
    memory_checkpoints_remove(memory);
    memory_checkpoints_close(memory);
    rank_destroy(&state);
    return OK;
}

static void report(struct bench *b)
{
    double ratio[BENCH_ROUNDS_MAX];
    for (int i = 0; i < b->rounds; i++)
        ratio[i] = b->copy_s[i] / b->load_s[i];
    const double copy_s = bench_median(b->copy_s, b->rounds), save_s = bench_median(b->save_s, b->rounds),
                 load_s = bench_median(b->load_s, b->rounds), gb = b->bytes / 1e9;
    printf("%.2f GB, medians of %d rounds: memcpy %.2f GB/s, save %.2f GB/s, load %.2f GB/s, "
           "%.2f of memcpy\n",
           gb, b->rounds, gb / copy_s, gb / save_s, gb / load_s, bench_median(ratio, b->rounds));
}

static enum status bench(int count, char **arguments, struct bench *b)
{
    char memory[256];
    const char *keys[BENCH_KEYS_MAX + 2] = {memory, "checkpoint.non_persistent_save_interval=1"};
    snprintf(memory, sizeof memory, "checkpoint.memory_dir=%s", arguments[0]);
    for (int i = 1; i < count; i++)
        keys[i + 1] = arguments[i];
    TRY(bench_run_create(keys, (size_t)count + 1, &b->run));
    TRY(world_run("local", recipe_world_size(b->run.recipe), rank_main, b));
    report(b);
    bench_run_destroy(&b->run);
    return OK;
}

int main(int argc, char **argv)
{
    int first = 1;
    struct bench b = {.rounds = bench_rounds(argc, argv, &first, 9)};
    b.cpu_time = first < argc && strcmp(argv[first], "--cpu") == 0;
    first += b.cpu_time;
    if (first >= argc || b.rounds == 0 || argc - first > BENCH_KEYS_MAX) {
        fprintf(stderr, "usage: bench_checkpoint [-n ROUNDS] [--cpu] MEMORY_DIR KEY=VALUE...\n");
        return 2;
    }
    const enum status status = bench(argc - first, argv + first, &b);
    if (status != OK)
        fprintf(stderr, "bench_checkpoint: %s\n", fail_text());
    return status_exit(status);
}
