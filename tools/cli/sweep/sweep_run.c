// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/sweep/sweep_run.h"

#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "tools/cli/submit/submit.h"
#include "tools/cli/sweep/sweep_slurm.h"

#include <stdlib.h>
#include <string.h>

struct runner {
    const struct sweep *sweep;
    const struct sweep_run_options *options;
    struct measure measure;
};

/* Collects the overrides of the sweep, and those of the layout. */
static void make_overrides(const struct runner *runner, int64_t number, struct recipe_names *out)
{
    const struct sweep_file *file = runner->sweep->file;
    for (size_t i = 0; i < runner->options->override_count; i++)
        if (strcmp(runner->options->overrides[i], "cluster.device=dry") != 0)
            overrides_set(&planner_keys, out, runner->options->overrides[i]);
    for (int i = 0; i < file->axis_count; i++) {
        struct text word = {0};
        text_add(&word, "%s=%s", file->axes[i].key, file->axes[i].texts[sweep_value(file, number, i)]);
        overrides_set(&planner_keys, out, word.chars);
        text_free(&word);
    }
}

static void print_entry(const struct runner *runner, size_t index, const struct sweep_layout *layout,
                        const struct journal_entry *entry, const char *text)
{
    if (entry->state == RUN_DONE)
        print_line(stdout, "%4zu %-8s %10.4g %10.4g %+7.1f%%  %s", index + 1, run_state_name(entry->state),
                   layout->step_s, entry->step_s, 100.0 * (layout->step_s / entry->step_s - 1.0), text);
    else
        print_line(stdout, "%4zu %-8s %10.4g %10s %8s  %s", index + 1, run_state_name(entry->state),
                   layout->step_s, "-", "-", text);
    if (entry->state != RUN_DONE)
        measure_print_log(&runner->measure, layout->number);
    fflush(stdout);
}

/* What is needed to run a layout. */
struct layout_run {
    struct recipe *recipe;
    struct recipe_names overrides;
    struct measure_request request;
};

static enum status layout_run_make(const struct runner *runner, const struct sweep_layout *layout,
                                   const char *name, struct layout_run *out)
{
    const struct sweep *sweep = runner->sweep;
    *out = (struct layout_run){.recipe = NULL};
    TRY(sweep_recipe(sweep, layout->number, &out->recipe));
    make_overrides(runner, layout->number, &out->overrides);
    out->request = (struct measure_request){.name = name,
                                            .number = layout->number,
                                            .path = sweep->file->base,
                                            .overrides = &out->overrides,
                                            .recipe = out->recipe};
    return OK;
}

static void layout_run_free(struct layout_run *run)
{
    for (size_t i = 0; i < run->overrides.count; i++)
        free(run->overrides.list[i]);
    free(run->overrides.list);
    recipe_destroy(run->recipe);
}

static enum status run_layout(struct runner *runner, const struct sweep_layout *layout, const char *name,
                              struct journal_entry *out)
{
    struct layout_run run;
    TRY(layout_run_make(runner, layout, name, &run));
    const enum status status = measure_run(&runner->measure, &run.request, out);
    layout_run_free(&run);
    return status;
}

static enum status visit(struct runner *runner, size_t index, struct sweep_measured *out)
{
    const struct sweep_layout *layout = &runner->sweep->layouts[runner->sweep->best[index]];
    struct journal_entry entry;
    struct text text = {0};
    sweep_layout_text(runner->sweep->file, layout->number, &text);
    const enum status status = run_layout(runner, layout, text.chars, &entry);
    if (status == OK) {
        print_entry(runner, index, layout, &entry, text.chars);
        *out = (struct sweep_measured){.state = entry.state, .step_s = entry.step_s};
    }
    text_free(&text);
    return status;
}

/* ---- as job arrays ---- */

struct array_runner {
    struct slurm_runs runs;
    size_t *indices; // of the best layouts, [runs.count]
    struct recipe *recipe;
};

static const struct sweep_layout *best_layout(const struct runner *runner, size_t index)
{
    return &runner->sweep->layouts[runner->sweep->best[index]];
}

/* One node is enough if the recipe has no number of them. */
static enum status find_nodes(const struct recipe *recipe, struct slurm_run *out)
{
    if (recipe->cluster.nodes > 0 || recipe->cluster.gpus_per_node > 0)
        return submit_nodes(recipe, &out->nodes, &out->ranks_per_node);
    out->nodes = 1;
    out->ranks_per_node = recipe_world_size(recipe);
    return OK;
}

/* Adds the run of a layout that the journal does not have. */
static enum status add_run(const struct runner *runner, size_t index, const char *name,
                           struct array_runner *out)
{
    struct layout_run run;
    struct slurm_run *added = &out->runs.list[out->runs.count];
    TRY(layout_run_make(runner, best_layout(runner, index), name, &run));
    *added = (struct slurm_run){.number = run.request.number};
    out->indices[out->runs.count] = index;
    enum status status = find_nodes(run.recipe, added);
    if (status == OK) {
        measure_command(&runner->measure, &run.request, &added->command);
        out->runs.count++;
    }
    if (status == OK && out->recipe == NULL) {
        out->recipe = run.recipe;
        run.recipe = NULL;
    }
    layout_run_free(&run);
    return status;
}

static void take_entry(const struct runner *runner, size_t index, const struct journal_entry *entry,
                       struct sweep_measured *measured)
{
    struct text text = {0};
    sweep_layout_text(runner->sweep->file, best_layout(runner, index)->number, &text);
    print_entry(runner, index, best_layout(runner, index), entry, text.chars);
    measured[index] = (struct sweep_measured){.state = entry->state, .step_s = entry->step_s};
    text_free(&text);
}

/* Prints the layouts that the journal has, and collects the others. */
static enum status collect_runs(const struct runner *runner, size_t most, struct sweep_measured *measured,
                                struct array_runner *out)
{
    for (size_t i = 0; i < most; i++) {
        struct text name = {0};
        sweep_layout_text(runner->sweep->file, best_layout(runner, i)->number, &name);
        const struct journal_entry entry = journal_find(&runner->measure.journal, name.chars);
        enum status status = OK;
        if (entry.state == RUN_QUEUED)
            status = add_run(runner, i, name.chars, out);
        else
            take_entry(runner, i, &entry, measured);
        text_free(&name);
        TRY(status);
    }
    return OK;
}

static enum status wait_for_runs(struct runner *runner, struct array_runner *array,
                                 struct sweep_measured *measured)
{
    TRY(slurm_runs_start(&array->runs));
    for (size_t left = array->runs.count; left > 0; left--) {
        size_t which;
        struct text name = {0};
        struct journal_entry entry;
        TRY(slurm_runs_wait(&array->runs, &which));
        const int64_t number = array->runs.list[which].number;
        sweep_layout_text(runner->sweep->file, number, &name);
        enum status status =
            measure_record(&runner->measure, &(struct measure_request){.name = name.chars, .number = number},
                           array->runs.list[which].exit, &entry);
        text_free(&name);
        TRY(status);
        take_entry(runner, array->indices[which], &entry, measured);
    }
    return OK;
}

static enum status run_arrays(struct runner *runner, size_t most, struct sweep_measured *measured)
{
    struct array_runner array = {
        .runs = {.dir = runner->options->measure.dir,
                 .timeout_s = runner->options->measure.timeout_s,
                 .list = memory_zeroed(most, sizeof *array.runs.list, "the runs of a sweep")},
        .indices = memory_zeroed(most, sizeof *array.indices, "the runs of a sweep")};
    enum status status = collect_runs(runner, most, measured, &array);
    array.runs.recipe = array.recipe;
    if (status == OK && array.runs.count > 0)
        status = wait_for_runs(runner, &array, measured);
    if (status != OK)
        array.runs.name[0] = 0; // the arrays are left to the next start
    slurm_runs_end(&array.runs);
    free(array.indices);
    recipe_destroy(array.recipe);
    return status;
}

/* ---- all ---- */

/* Number of layouts to run; count 0: all. */
static size_t number_of_runs(const struct sweep *sweep, int64_t count)
{
    return count > 0 && (size_t)count < sweep->best_count ? (size_t)count : sweep->best_count;
}

/* Fails if the layout is a plan of another program. */
static enum status check_assumptions(const struct sweep *sweep, const struct sweep_layout *layout)
{
    struct recipe *recipe = NULL;
    struct text assumed = {0}, text = {0};
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    planned_assumed_text(recipe, &assumed);
    sweep_layout_text(sweep->file, layout->number, &text);
    enum status status = OK;
    if (assumed.length > 0)
        status = fail(BAD_RECIPE,
                      "%s: %s is for plans only, but --run trains the layout %s; remove assume.* from "
                      "%s, the axes and the command line, or plan without --run",
                      sweep->file->path, assumed.chars, text_chars(&text), sweep->file->base);
    text_free(&assumed);
    text_free(&text);
    recipe_destroy(recipe);
    return status;
}

enum status sweep_check_runs(const struct sweep *sweep, int64_t count)
{
    for (size_t i = 0; i < number_of_runs(sweep, count); i++)
        TRY(check_assumptions(sweep, &sweep->layouts[sweep->best[i]]));
    return OK;
}

static enum status run_all(struct runner *runner, struct sweep_measured *measured)
{
    const struct sweep *sweep = runner->sweep;
    const size_t most = number_of_runs(sweep, runner->options->count);
    const char *launch = runner->options->measure.launch;
    printf("runs in %s:\n%4s %-8s %10s %10s %8s  layout\n", runner->options->measure.dir, "", "status",
           "predicted", "measured", "error");
    fflush(stdout);
    if (launch != NULL && strcmp(launch, "slurm") == 0)
        return run_arrays(runner, most, measured);
    for (size_t i = 0; i < most; i++)
        TRY(visit(runner, i, &measured[i]));
    return OK;
}

enum status sweep_run(const struct sweep *sweep, const struct sweep_run_options *options,
                      struct sweep_measured *measured)
{
    struct runner runner = {.sweep = sweep, .options = options};
    struct text head = {0};
    text_add(&head, "sweep %s", sweep->file->base);
    for (size_t i = 0; i < options->override_count; i++)
        text_add(&head, " %s", options->overrides[i]);
    enum status status = measure_open(&options->measure, head.chars, &runner.measure);
    text_free(&head);
    TRY(status);
    status = run_all(&runner, measured);
    measure_close(&runner.measure);
    return status;
}
