// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/sweep/sweep_run.h"

#include "trainer/plan/published/published.h"

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
            overrides_set(out, runner->options->overrides[i]);
    for (int i = 0; i < file->axis_count; i++) {
        struct text word = {0};
        text_add(&word, "%s=%s", file->axes[i].key, file->axes[i].texts[sweep_value(file, number, i)]);
        overrides_set(out, word.chars);
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

static enum status run_layout(struct runner *runner, const struct sweep_layout *layout, const char *name,
                              struct journal_entry *out)
{
    const struct sweep *sweep = runner->sweep;
    struct recipe_names overrides = {0};
    struct recipe *recipe = NULL;
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    make_overrides(runner, layout->number, &overrides);
    const struct measure_request request = {.name = name,
                                            .number = layout->number,
                                            .path = sweep->file->base,
                                            .overrides = &overrides,
                                            .recipe = recipe};
    const enum status status = measure_run(&runner->measure, &request, out);
    for (size_t i = 0; i < overrides.count; i++)
        free(overrides.list[i]);
    free(overrides.list);
    recipe_destroy(recipe);
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

static enum status run_all(struct runner *runner, struct sweep_measured *measured)
{
    const struct sweep *sweep = runner->sweep;
    const size_t most = runner->options->count > 0 ? (size_t)runner->options->count : sweep->best_count;
    printf("runs in %s:\n%4s %-8s %10s %10s %8s  layout\n", runner->options->measure.dir, "", "status",
           "predicted", "measured", "error");
    fflush(stdout);
    for (size_t i = 0; i < sweep->best_count && i < most; i++)
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
