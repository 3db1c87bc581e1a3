// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/table/table_run.h"

#include "planner/profile/profile.h"

#include <string.h>

enum { DEFAULT_RANKS = 8 };

struct runner {
    struct measure measure;
    const struct table_options *options; // passed by the caller
};

/* Appends a description that is different for different runs. */
static void describe(const struct recipe *recipe, const struct table_row *row, struct text *out)
{
    const struct model_config *m = &recipe->model;
    text_add(out, "%s layers %lld hidden %lld ffn %lld groups %lld vocab %lld seq %lld batch %lld",
             row->layout, (long long)m->num_layers, (long long)m->hidden_size, (long long)m->ffn_hidden_size,
             (long long)m->num_query_groups, (long long)m->vocab_size, (long long)m->seq_length,
             (long long)recipe->train.global_batch_size);
}

/* Writes DIR/recipes/N.yaml. */
static enum status write_recipe(const struct runner *runner, struct recipe *recipe, int64_t number,
                                struct text *path)
{
    struct text folder = {0}, yaml = {0};
    text_add(&folder, "%s/recipes", runner->measure.options.dir);
    text_add(path, "%s/%lld.yaml", folder.chars, (long long)number);
    recipe_use_dry_device(recipe);
    recipe_resolved_text(recipe, &yaml);
    enum status status = folder_make(folder.chars);
    if (status == OK)
        status = file_write_atomic(path->chars, yaml.chars, yaml.length);
    text_free(&folder);
    text_free(&yaml);
    return status;
}

/* The index of a run in the journal, which stays the same when the command is repeated. */
static int64_t number_of(const struct runner *runner, const char *name)
{
    const struct journal *journal = &runner->measure.journal; // in the order of their first lines
    for (size_t i = 0; i < journal->count; i++)
        if (strcmp(journal->list[i].layout, name) == 0)
            return (int64_t)i;
    return (int64_t)journal->count;
}

static enum status measure_row(void *context, struct recipe *recipe, struct table_row *row,
                               struct text *reason)
{
    struct runner *runner = context;
    struct text name = {0}, path = {0};
    const char *figure = row->row->cell[PUBLISHED_FIGURE];
    if (*figure != 0 && strcmp(figure, "last stage") != 0) {
        text_add(reason, "its figures are of one %s, not of a step", figure);
        return OK;
    }
    struct journal_entry entry = {.state = RUN_FAILED};
    describe(recipe, row, &name);
    const int64_t number = number_of(runner, name.chars);
    enum status status = write_recipe(runner, recipe, number, &path);
    const struct recipe_names none = {.count = 0};
    const struct measure_request request = {
        .name = name.chars, .number = number, .path = path.chars, .overrides = &none, .recipe = recipe};
    if (status == OK)
        status = measure_run(&runner->measure, &request, &entry);
    if (status == OK && entry.state != RUN_DONE)
        text_add(reason, "%s: %s, see %s/logs/%lld", row->layout, run_state_name(entry.state),
                 runner->measure.options.dir, (long long)number);
    row->printed = (struct printed_step){.seconds = entry.step_s, .from = PRINTED_STEP_TIME};
    row->printed_bytes = (double)entry.memory_bytes;
    row->printed_fit = FIT_UNKNOWN;
    text_free(&name);
    text_free(&path);
    return status;
}

static void show_progress(void *context, size_t done, size_t count)
{
    const struct runner *runner = context;
    if (runner->options->progress != NULL)
        runner->options->progress(runner->options->context, done, count);
}

/* Measured times can be compared only with predictions for the same machine. */
static enum status check_profile(const char *name)
{
    struct cluster_profile *profile = NULL;
    struct problems problems = {0};
    if (name == NULL)
        return fail(BAD_USAGE,
                    "--run needs the profile of this machine; make one with cuboid doctor --profile "
                    "FILE, and add --profile FILE");
    enum status status = profile_load(name, &profile, &problems);
    status = problems_report(&problems, status);
    if (status == OK && !profile->device.is_cpu)
        status = fail(BAD_USAGE,
                      "--run uses the CPUs of this machine, but --profile %s describes GPUs; use the "
                      "profile of a CPU (cuboid doctor --profile FILE)",
                      name);
    profile_destroy(profile);
    return status;
}

enum status table_run(const struct published *published, const struct table_options *options,
                      const struct measure_options *measure, int ranks, struct table *out)
{
    struct runner runner = {.options = options};
    struct text head = {0};
    TRY(check_profile(options->profile));
    text_add(&head, "table %s", published->path);
    for (size_t i = 0; i < options->override_count; i++)
        text_add(&head, " %s", options->overrides[i]);
    enum status status = measure_open(measure, head.chars, &runner.measure);
    text_free(&head);
    TRY(status);
    struct table_options small = *options;
    small.ranks = ranks > 0 ? ranks : DEFAULT_RANKS;
    small.progress = show_progress;
    small.measure = measure_row;
    small.context = &runner;
    status = table_predict(published, &small, out);
    measure_close(&runner.measure);
    return status;
}
