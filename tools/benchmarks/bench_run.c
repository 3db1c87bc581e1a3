// SPDX-License-Identifier: Apache-2.0
#include "tools/benchmarks/bench_run.h"

#include "base/file.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/checkpoint/run_record.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char recipe_file[] = "bench_checkpoint.yaml";
static const char recipe_text[] =
    "model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 64, vocab_size: 16384}\n"
    "train: {global_batch_size: 8, micro_batch_size: 1, train_iters: 1}\n"
    "optimizer: {lr: 1e-2, lr_decay_style: constant}\n"
    "tokenizer: {tokenizer_type: none}\n"
    "data: {mock_data: true}\n"
    "cluster: {threads_per_rank: 1}\n"
    "checkpoint: {save: saves, keep_last: 1}\n";

/* Gives the folder of checkpoints the id of a run, which those in memory need. */
static enum status name_run(const char *folder)
{
    struct run_record record;
    TRY(folder_make(folder));
    TRY(run_record_read(folder, &record));
    TRY(random_hex(record.run, RUN_CHARS - 1));
    return run_record_write(folder, &record);
}

enum status bench_run_create(const char *const *keys, size_t count, struct bench_run *out)
{
    struct problems problems = {0};
    *out = (struct bench_run){.recipe = NULL};
    TRY(file_write_atomic(recipe_file, recipe_text, sizeof recipe_text - 1));
    enum status status = planned_recipe_load(recipe_file, keys, count, 0, &out->recipe, &problems);
    unlink(recipe_file);
    problems_print(&problems, stderr);
    problems_free(&problems);
    if (status == OK)
        status = name_run(out->recipe->checkpoint.save);
    if (status == OK)
        status = run_create(out->recipe, false, &out->run);
    if (status != OK)
        recipe_destroy(out->recipe);
    return status;
}

void bench_run_destroy(struct bench_run *bench)
{
    run_destroy(&bench->run);
    recipe_destroy(bench->recipe);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *list, int count)
{
    qsort(list, (size_t)count, sizeof *list, ascending);
    return list[count / 2];
}

int bench_rounds(int argc, char **argv, int *next, int preset)
{
    int64_t rounds = 0;
    if (*next + 1 >= argc || strcmp(argv[*next], "-n") != 0)
        return preset;
    const bool good = integer_parse(argv[*next + 1], &rounds) && rounds >= 1 && rounds <= BENCH_ROUNDS_MAX;
    *next += 2;
    return good ? (int)rounds : 0;
}
