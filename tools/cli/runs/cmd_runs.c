// SPDX-License-Identifier: Apache-2.0
/* cuboid runs: finished runs, compared by metrics.jsonl and recipe.yaml of their folders. */
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/options.h"
#include "tools/cli/published_csv.h"
#include "tools/cli/recipe_argument.h"
#include "tools/cli/runs/run_dirs.h"
#include "trainer/run/run_summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char help_runs[] =
    "cuboid runs DIR ... [--csv]\n"
    "\n"
    "Compares finished runs: layout, step time (median without the first step), tokens/s, speed-up over\n"
    "the first run, peak memory of a rank, bubble, last loss, and the predicted step time if the run had a\n"
    "cluster profile. DIR is a run directory, with metrics.jsonl and recipe.yaml, or a folder of such.\n"
    "\n"
    "  --csv    print CSV for cuboid table and cuboid profile fit (cuboid table --columns)\n"
    "\n"
    "Exit status: 0 if any run could be read; 1 if none could; 2 for invalid usage.\n";

struct compared {
    const char *dir;
    struct recipe *recipe; // NULL: `reason`
    struct run_summary summary;
    char *reason;
};

/* ---- reading ---- */

/* Copies the first error. */
static char *reason_of(const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        if (!problems->list[i].warning)
            return text_copy(problems->list[i].text);
    return text_copy(fail_text());
}

/* Loads the recipe of a run; without its cluster profile if that cannot be read, since the path may be
 * relative to another folder. */
static enum status load_recipe(const char *path, struct recipe **out, struct problems *problems)
{
    static const char *const none[] = {"cluster.profile=none", "pipeline.auto_times=given"};
    struct problems others = {0};
    enum status status = planned_recipe_load(path, NULL, 0, 0, out, problems);
    if (status == BAD_RECIPE)
        status = planned_recipe_load(path, none, 2, 0, out, &others);
    problems_free(&others);
    return status;
}

static void read_run(const char *dir, struct compared *out)
{
    struct problems problems = {0};
    struct text path = {0};
    *out = (struct compared){.dir = dir};
    if (run_summary_read(dir, &out->summary) != OK) {
        out->reason = text_copy(fail_text());
        return;
    }
    text_add(&path, "%s/recipe.yaml", dir);
    if (load_recipe(path.chars, &out->recipe, &problems) != OK)
        out->reason = reason_of(&problems);
    problems_free(&problems);
    text_free(&path);
}

/* ---- output ---- */

static void add_layout(const struct recipe *recipe, struct text *out)
{
    static const char *const granularities[] = {"", " selective", " full"};
    const struct recipe_parallel *parallel = &recipe->parallel;
    text_add(out, "tp%d pp%d dp%d b%lld", parallel->tensor_parallel_size, parallel->pipeline_parallel_size,
             parallel->data_parallel_size, (long long)recipe->train.micro_batch_size);
    if (parallel->pipeline_parallel_size > 1)
        text_add(out, " %s v%d", recipe->pipeline.schedule, recipe->pipeline.virtual_stages);
    text_add(out, "%s%s%s", recipe->layers.sequence_parallel ? " sp" : "",
             granularities[recipe->layers.recompute.granularity],
             recipe->memory.offload_optimizer ? " offload" : "");
    if (recipe->data_parallel.zero_stage > 0)
        text_add(out, " z%d", recipe->data_parallel.zero_stage);
}

static void print_run(const struct compared *run, double first_tokens_per_s)
{
    const struct run_summary *summary = &run->summary;
    char memory[NUMBER_CHARS], predicted[NUMBER_CHARS], loss[NUMBER_CHARS];
    struct text layout = {0};
    if (run->recipe == NULL) {
        print_line(stdout, "%-24s %s", run->dir, run->reason);
        return;
    }
    add_layout(run->recipe, &layout);
    snprintf(predicted, sizeof predicted, summary->predicted_step_s > 0.0 ? "%.4g" : "-",
             summary->predicted_step_s);
    snprintf(loss, sizeof loss, isnan(summary->loss) ? "-" : "%.4f", summary->loss);
    print_line(stdout, "%-24s %5lld %9.4g %9s %9.0f %7.2fx %11s %6.1f%% %8s  %s", run->dir,
               (long long)summary->steps, summary->step_s, predicted, summary->tokens_per_s,
               first_tokens_per_s > 0.0 ? summary->tokens_per_s / first_tokens_per_s : 0.0,
               bytes_text(summary->memory_peak_bytes, memory), 100.0 * summary->bubble_fraction, loss,
               layout.chars);
    text_free(&layout);
}

static void print_runs(const struct compared *runs, int count)
{
    double first = 0.0;
    printf("%-24s %5s %9s %9s %9s %8s %11s %7s %8s  layout\n", "run", "steps", "step s", "predicted",
           "tokens/s", "speed-up", "memory", "bubble", "loss");
    for (int i = 0; i < count; i++) {
        first = first > 0.0 || runs[i].recipe == NULL ? first : runs[i].summary.tokens_per_s;
        print_run(&runs[i], first);
    }
}

static void add_row(const struct compared *run, struct text *out)
{
    const struct run_summary *summary = &run->summary;
    const int ranks = recipe_world_size(run->recipe);
    struct published_cells row = {0};
    published_set_text(&row, PUBLISHED_PAPER, "cuboid runs");
    published_set_text(&row, PUBLISHED_SOURCE, run->dir);
    published_set_text(&row, PUBLISHED_STATUS, "ok");
    published_set_recipe(&row, run->recipe);
    recipe_planned_text(run->recipe, &row.cell[PUBLISHED_OVERRIDES]);
    published_set_number(&row, PUBLISHED_STEP_TIME_S, summary->step_s);
    published_set_number(&row, PUBLISHED_TFLOPS_PER_GPU, summary->tflops_per_rank);
    published_set_number(&row, PUBLISHED_TOKENS_PER_S_PER_GPU, summary->tokens_per_s / ranks);
    published_set_number(&row, PUBLISHED_MEMORY_GB, 1e-9 * (double)summary->memory_peak_bytes);
    published_end_row(&row, out);
}

/* Runs that cannot be read are reported on standard error. */
static void print_csv(const struct compared *runs, int count)
{
    struct text out = {0};
    published_header(&out);
    for (int i = 0; i < count; i++)
        if (runs[i].recipe != NULL)
            add_row(&runs[i], &out);
        else
            print_line(stderr, "cuboid: %s", runs[i].reason);
    fputs(out.chars, stdout);
    text_free(&out);
}

/* ---- the command ---- */

static int compare(const char *const *dirs, int count, bool csv)
{
    struct run_dirs found = {0};
    int readable = 0;
    for (int i = 0; i < count; i++)
        run_dirs_add(dirs[i], &found);
    struct compared *runs = memory_zeroed((size_t)found.count, sizeof *runs, "the runs");
    for (int i = 0; i < found.count; i++)
        read_run(found.list[i], &runs[i]);
    if (csv)
        print_csv(runs, found.count);
    else
        print_runs(runs, found.count);
    for (int i = 0; i < found.count; i++) {
        readable += runs[i].recipe != NULL;
        recipe_destroy(runs[i].recipe);
        free(runs[i].reason);
    }
    free(runs);
    run_dirs_free(&found);
    return readable > 0 ? 0 : 1;
}

int cmd_runs(int argc, char **argv)
{
    bool csv = false;
    const struct option options[] = {{"--csv", OPTION_FLAG, &csv, 0, 0}};
    const char **dirs = memory_zeroed((size_t)argc + 1, sizeof *dirs, "the arguments");
    int count = 0, status = 0;
    status = exit_status_of_input(options_parse(argc, argv, options, 1, dirs, &count));
    if (status == 0 && count == 0)
        status = exit_status_of_input(fail(BAD_USAGE, "no run given; use cuboid runs DIR ..."));
    if (status == 0)
        status = compare(dirs, count, csv);
    free(dirs);
    return status;
}
