// SPDX-License-Identifier: Apache-2.0
/* Checkpoints on a disk: the rates of saving and of loading, next to those of dd.
 *
 *     bench_checkpoint_disk [-n ROUNDS] KEY=VALUE...      in the current folder; the layout
 *
 * Each round writes as many bytes as the checkpoint has in blocks of 1 MiB and syncs them, like `dd bs=1M
 * conv=fsync`; saves; reads those bytes; and loads. What is read is not in the page cache. Ranks are threads.
 * Prints the medians of the rounds. */
#include "base/clock.h"
#include "tools/benchmarks/bench_run.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"

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

static enum status round_of(struct rank_state *w, struct bench *b, int round, char *block)
{
    const bool first = w->world->rank == 0;
    char *path = NULL;
    int64_t bytes;
    w->step = round + 1;
    TRY(group_barrier(w->groups->world, w->compute));
    double start = clock_s();
    if (first)
        TRY(write_plain(block, b->bytes));
    TRY(lap(w, b, WRITE, round, start));
    start = clock_s();
    TRY(checkpoint_save(w));
    TRY(lap(w, b, SAVE, round, start));
    TRY(checkpoint_find(b->run.recipe->checkpoint.save, &path));
    if (first) {
        TRY(folder_cold(path, &b->bytes));
        TRY(make_cold(plain, &bytes));
    }
    TRY(group_barrier(w->groups->world, w->compute));
    start = clock_s();
    if (first)
        TRY(read_plain(block));
    TRY(lap(w, b, READ, round, start));
    if (first)
        TRY(make_cold(plain, &bytes)); // loading gets the same pages
    TRY(group_barrier(w->groups->world, w->compute));
    start = clock_s();
    TRY(checkpoint_load(w, path, true));
    TRY(lap(w, b, LOAD, round, start));
    free(path);
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct bench *b = argument;
    struct rank_state state;
    char *block = malloc(BLOCK), *path = NULL;
    if (block == NULL)
        die_of(NO_MEMORY, "no memory for a block");
    memset(block, 1, BLOCK);
    TRY(rank_create(&b->run.run, world, true, &state));
    TRY(checkpoint_save(&state)); // for its size
    TRY(checkpoint_find(b->run.recipe->checkpoint.save, &path));
    if (world->rank == 0)
        TRY(folder_cold(path, &b->bytes));
    free(path);
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
    printf("%.2f GB, medians of %d rounds, MB/s: plain write %.0f, save %.0f, %.2f of it; plain read %.0f, "
           "load %.0f, %.2f of it\n",
           1e-9 * b->bytes, b->rounds, median[WRITE], median[SAVE], bench_median(ratio[0], b->rounds),
           median[READ], median[LOAD], bench_median(ratio[1], b->rounds));
}

static enum status bench(const char *const *keys, int count, struct bench *b)
{
    TRY(bench_run_create(keys, (size_t)count, &b->run));
    TRY(world_run("local", recipe_world_size(b->run.recipe), rank_main, b));
    report(b);
    bench_run_destroy(&b->run);
    unlink(plain);
    return OK;
}

int main(int argc, char **argv)
{
    int first = 1;
    struct bench b = {.rounds = bench_rounds(argc, argv, &first, 5)};
    if (b.rounds == 0 || argc - first > BENCH_KEYS_MAX) {
        fprintf(stderr, "usage: bench_checkpoint_disk [-n ROUNDS] KEY=VALUE...\n");
        return 2;
    }
    const enum status status = bench((const char *const *)argv + first, argc - first, &b);
    if (status != OK)
        fprintf(stderr, "bench_checkpoint_disk: %s\n", fail_text());
    return status_exit(status);
}
