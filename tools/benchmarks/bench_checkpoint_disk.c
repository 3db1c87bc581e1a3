// SPDX-License-Identifier: Apache-2.0
/* Checkpoints on a disk: the rates of saving and of loading, next to those of dd.
 *
 *     bench_checkpoint_disk [-n ROUNDS] [--load CHECKPOINT] KEY=VALUE...   in the current folder; the layout
 *
 * Each round writes as many bytes as the checkpoint has in blocks of 1 MiB and syncs them, like `dd bs=1M
 * conv=fsync`; saves; reads those bytes; and loads. What is read is not in the page cache. Ranks are threads.
 * --load: each round only loads this checkpoint, of any layout, which an earlier call left in saves/.
 * Prints the medians of the rounds. */
#include "base/clock.h"
#include "planner/plan/memory_plan.h"
#include "tools/benchmarks/bench_run.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };
enum { WRITE, SAVE, READ, LOAD, TIMES };

static const char plain[] = "bench_checkpoint.data";

struct bench {
    struct bench_run run;
    int rounds;
    char *load; // NULL: what each round saves
    double times[TIMES][BENCH_ROUNDS_MAX], bytes;
};

/* Removes a file from the page cache; sets *bytes to its size. */
static enum status make_cold(const char *path, int64_t *bytes)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const bool good = file >= 0 && fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
    *bytes = file >= 0 ? lseek(file, 0, SEEK_END) : 0;
    if (file >= 0)
        close(file);
    return good ? OK : fail(IO_ERROR, "%s: %s", path, strerror(errno));
}

static enum status folder_cold(const char *folder, double *total)
{
    DIR *files = opendir(folder);
    if (files == NULL)
        return fail(IO_ERROR, "%s: %s", folder, strerror(errno));
    enum status status = OK;
    *total = 0.0;
    for (const struct dirent *entry; status == OK && (entry = readdir(files)) != NULL;) {
        char path[4096];
        int64_t bytes = 0;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        status = make_cold(path, &bytes);
        *total += (double)bytes;
    }
    closedir(files);
    return status;
}

static enum status write_plain(char *block, double bytes)
{
    const int file = open(plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = file >= 0;
    for (double done = 0.0; good && done < bytes; done += BLOCK)
        good = write(file, block, BLOCK) == BLOCK;
    good = good && fsync(file) == 0;
    if (file >= 0)
        close(file);
    return good ? OK : fail(IO_ERROR, "%s: %s", plain, strerror(errno));
}

static enum status read_plain(char *block)
{
    const int file = open(plain, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? 1 : -1;
    while (got > 0)
        got = read(file, block, BLOCK);
    if (file >= 0)
        close(file);
    return got == 0 ? OK : fail(IO_ERROR, "%s: %s", plain, strerror(errno));
}

/* Waits for all ranks; rank 0 stores the time since `start`. */
static enum status lap(struct rank_state *w, struct bench *b, int what, int round, double start)
{
    TRY(group_barrier(w->groups->world, w->compute));
    if (w->world->rank == 0)
        b->times[what][round] = clock_s() - start;
    return OK;
}

static enum status write_round(struct rank_state *w, struct bench *b, int round, char *block)
{
    w->step = round + 1;
    TRY(group_barrier(w->groups->world, w->compute));
    double start = clock_s();
    if (w->world->rank == 0)
        TRY(write_plain(block, b->bytes));
    TRY(lap(w, b, WRITE, round, start));
    start = clock_s();
    TRY(checkpoint_save(w));
    return lap(w, b, SAVE, round, start);
}

static enum status read_round(struct rank_state *w, struct bench *b, int round, const char *path, char *block)
{
    const bool first = w->world->rank == 0;
    int64_t bytes;
    if (first) {
        TRY(folder_cold(path, &b->bytes));
        TRY(make_cold(plain, &bytes));
    }
    TRY(group_barrier(w->groups->world, w->compute));
    double start = clock_s();
    if (first)
        TRY(read_plain(block));
    TRY(lap(w, b, READ, round, start));
    if (first)
        TRY(make_cold(plain, &bytes)); // loading gets the same pages
    TRY(group_barrier(w->groups->world, w->compute));
    start = clock_s();
    TRY(checkpoint_load(w, path, CHECKPOINT_RESUME));
    return lap(w, b, LOAD, round, start);
}

static enum status round_of(struct rank_state *w, struct bench *b, int round, char *block)
{
    char *path = NULL;
    if (b->load != NULL)
        return read_round(w, b, round, b->load, block);
    TRY(write_round(w, b, round, block));
    TRY(store_find(b->run.recipe->checkpoint.save, &path));
    const enum status status = read_round(w, b, round, path, block);
    free(path);
    return status;
}

/* Finds out the size of the checkpoint, and writes a plain file of that size. */
static enum status prepare(struct rank_state *w, struct bench *b, char *block)
{
    char *path = NULL;
    if (b->load == NULL) {
        TRY(checkpoint_save(w));
        TRY(store_find(b->run.recipe->checkpoint.save, &path));
    }
    enum status status = OK;
    if (w->world->rank == 0)
        status = folder_cold(b->load != NULL ? b->load : path, &b->bytes);
    free(path);
    return status == OK && b->load != NULL && w->world->rank == 0 ? write_plain(block, b->bytes) : status;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct bench *b = argument;
    struct rank_state state;
    char *block = malloc(BLOCK);
    if (block == NULL)
        die_of(NO_MEMORY, "no memory for a block");
    memset(block, 1, BLOCK);
    TRY(memory_plan_create_rank(&b->run.run, world, &state));
    TRY(prepare(&state, b, block));
    for (int i = 0; i < b->rounds; i++)
        TRY(round_of(&state, b, i, block));
    free(block);
    rank_destroy(&state);
    return OK;
}

static void report(struct bench *b)
{
    double median[TIMES], ratio[2][BENCH_ROUNDS_MAX];
    for (int i = 0; i < b->rounds; i++) {
        ratio[0][i] = b->times[WRITE][i] / b->times[SAVE][i];
        ratio[1][i] = b->times[READ][i] / b->times[LOAD][i];
    }
    for (int what = 0; what < TIMES; what++)
        median[what] = 1e-6 * b->bytes / bench_median(b->times[what], b->rounds);
    printf("%.2f GB, medians of %d rounds, MB/s: ", 1e-9 * b->bytes, b->rounds);
    if (b->load == NULL)
        printf("plain write %.0f, save %.0f, %.2f of it; ", median[WRITE], median[SAVE],
               bench_median(ratio[0], b->rounds));
    printf("plain read %.0f, load %.0f, %.2f of it\n", median[READ], median[LOAD],
           bench_median(ratio[1], b->rounds));
}

/* load: a checkpoint, or NULL. */
static enum status bench(const char *const *keys, int count, const char *load, struct bench *b)
{
    TRY(bench_run_create(keys, (size_t)count, &b->run));
    if (load != NULL)
        TRY(checkpoint_resolve(load, &b->load));
    TRY(world_run("local", recipe_world_size(b->run.recipe), rank_main, b));
    report(b);
    bench_run_destroy(&b->run);
    free(b->load);
    unlink(plain);
    return OK;
}

int main(int argc, char **argv)
{
    int first = 1;
    const char *load = NULL;
    struct bench b = {.rounds = bench_rounds(argc, argv, &first, 5)};
    if (first + 1 < argc && strcmp(argv[first], "--load") == 0) {
        load = argv[first + 1];
        first += 2;
    }
    if (b.rounds == 0 || argc - first > BENCH_KEYS_MAX) {
        fprintf(stderr, "usage: bench_checkpoint_disk [-n ROUNDS] [--load CHECKPOINT] KEY=VALUE...\n");
        return 2;
    }
    const enum status status = bench((const char *const *)argv + first, argc - first, load, &b);
    if (status != OK)
        fprintf(stderr, "bench_checkpoint_disk: %s\n", fail_text());
    return status_exit(status);
}
