// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/sweep/sweep.h"

#include <stdlib.h>
#include <string.h>

/* ---- one layout ---- */

enum status sweep_load(const struct sweep *sweep, const struct recipe_change *changes, struct recipe **out,
                       struct sweep_refusal *refusal)
{
    struct recipe *recipe = NULL;
    *refusal = (struct sweep_refusal){.rule = -1};
    TRY(recipe_variant(sweep->variants, changes, (size_t)sweep->file->axis_count, &recipe, &refusal->rule));
    for (int i = 0; i < sweep->file->constraint_count; i++)
        if (!sweep_constraint_holds(&sweep->file->constraints[i], recipe)) {
            refusal->constraint = &sweep->file->constraints[i];
            recipe_destroy(recipe);
            return BAD_RECIPE;
        }
    *out = recipe;
    return OK;
}

enum status sweep_recipe(const struct sweep *sweep, int64_t number, struct recipe **out)
{
    struct recipe_change changes[SWEEP_MOST_AXES];
    struct sweep_refusal refusal;
    sweep_changes(sweep->file, number, changes);
    if (sweep_load(sweep, changes, out, &refusal) != OK)
        return fail(BAD_RECIPE, "layout %lld is not legal", (long long)number);
    return OK;
}

enum status sweep_needed(struct sweep *sweep, const struct run *run, struct sweep_layout *out, bool *fits)
{
    struct problems problems = {0};
    if (run->recipe->cluster.profile == NULL)
        return fail(BAD_RECIPE, "cluster.profile is none");
    const enum status status = profile_cache_load(&sweep->profiles, run->recipe->cluster.profile, &problems);
    problems_free(&problems);
    TRY(status);
    TRY(step_plan_formula_bytes(run, &out->bytes));
    out->needed_bytes = step_plan_needed(sweep->profiles.profile, run, out->bytes);
    *fits = out->needed_bytes <= sweep->profiles.profile->device.memory_bytes;
    return OK;
}

/* The problem of a variant, in words. */
static void explain(const struct sweep *sweep, const struct recipe_change *changes, struct text *out)
{
    static const char prefix[] = "command line: ";
    struct problems problems = {0};
    recipe_variant_explain(sweep->variants, changes, (size_t)sweep->file->axis_count, &problems);
    for (size_t i = 0; i < problems.count && out->length == 0; i++) {
        const char *text = problems.list[i].text;
        text += strncmp(text, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
        text_add(out, "%s", problems.list[i].warning ? "" : text);
    }
    problems_free(&problems);
}

/* Counts a refused layout. Its example is made for the first of a rule only, since it takes long. */
static int refuse(struct sweep *sweep, const struct recipe_change *changes,
                  const struct sweep_refusal *refusal, int64_t number)
{
    struct text what = {0}, example = {0};
    if (refusal->constraint != NULL) {
        text_add(&what, "constraint %s", refusal->constraint->text);
        sweep_layout_text(sweep->file, number, &example);
    } else {
        const char *keys = refusal->rule >= 0 ? recipe_rule_keys(refusal->rule) : "inputs of the recipe";
        for (; *keys != 0; keys++)
            text_add(&what, refusal->rule >= 0 && *keys == ' ' ? ", " : "%c", *keys);
        if (!sweep_has_reason(sweep, SWEEP_REFUSED, what.chars))
            explain(sweep, changes, &example);
    }
    const int reason = sweep_add_reason(sweep, SWEEP_REFUSED, what.chars, text_chars(&example), number);
    text_free(&what);
    text_free(&example);
    return reason;
}

static int too_large(struct sweep *sweep, const struct sweep_layout *layout)
{
    char needed[NUMBER_CHARS], device[NUMBER_CHARS];
    struct text example = {0};
    sweep_layout_text(sweep->file, layout->number, &example);
    text_add(&example, " needs %s of %s", bytes_text(layout->needed_bytes, needed),
             bytes_text(sweep->profiles.profile->device.memory_bytes, device));
    const int reason =
        sweep_add_reason(sweep, SWEEP_TOO_LARGE, "memory of the device", example.chars, layout->number);
    text_free(&example);
    return reason;
}

/* Plans a run that fits by the formula; the dry run has the last word. */
static enum status plan(struct sweep *sweep, const struct run *run, struct sweep_layout *layout)
{
    struct step_plan plan;
    TRY(step_plan_make(run, sweep->profiles.profile, &plan));
    layout->bytes = plan.rows[plan.fullest].bytes;
    layout->needed_bytes = plan.needed_bytes;
    layout->state = plan.fits ? SWEEP_PLANNED : SWEEP_TOO_LARGE;
    layout->step_s = plan.step_s;
    layout->tokens_per_s = plan.tokens_per_s;
    layout->tflops_per_rank = plan.tflops_per_rank;
    layout->mfu = plan.mfu;
    layout->bubble_fraction = plan.bubble_fraction;
    sweep->device_bytes = sweep->device_bytes > 0 ? sweep->device_bytes : plan.device_bytes;
    step_plan_free(&plan);
    return OK;
}

static enum status plan_recipe(struct sweep *sweep, const struct recipe *recipe, struct sweep_layout *layout)
{
    struct run run;
    bool fits = false;
    enum status status = run_create(recipe, false, &run);
    if (status == OK)
        status = sweep_needed(sweep, &run, layout, &fits);
    if (status == OK && fits)
        status = plan(sweep, &run, layout);
    else if (status == OK)
        layout->state = SWEEP_TOO_LARGE;
    run_destroy(&run);
    return status;
}

/* Returns NO_MEMORY; all other errors are those of the layout. */
static enum status plan_layout(struct sweep *sweep, struct sweep_layout *layout)
{
    struct recipe *recipe = NULL;
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    const enum status status = plan_recipe(sweep, recipe, layout);
    recipe_destroy(recipe);
    if (status == NO_MEMORY)
        return status;
    if (status != OK) {
        layout->state = SWEEP_FAILED;
        layout->reason =
            sweep_add_reason(sweep, SWEEP_FAILED, status_name(status), fail_text(), layout->number);
    } else if (layout->state == SWEEP_TOO_LARGE)
        layout->reason = too_large(sweep, layout);
    sweep->counts[layout->state]++;
    return OK;
}

/* ---- all layouts ---- */

static enum status append(struct sweep *sweep, const struct sweep_layout *layout)
{
    if (sweep->count == sweep->capacity) {
        const size_t capacity = 2 * sweep->capacity + 64;
        struct sweep_layout *grown = realloc(sweep->layouts, capacity * sizeof *grown);
        if (grown == NULL)
            return fail(NO_MEMORY, "no memory for %zu layouts", capacity);
        sweep->layouts = grown;
        sweep->capacity = capacity;
    }
    sweep->layouts[sweep->count++] = *layout;
    return OK;
}

/* Checks the rules and the constraints of a layout. */
static enum status check_layout(struct sweep *sweep, int64_t number)
{
    struct recipe_change changes[SWEEP_MOST_AXES];
    struct sweep_refusal refusal;
    struct recipe *recipe = NULL;
    struct sweep_layout layout = {.number = number, .state = SWEEP_PLANNED, .reason = -1};
    sweep_changes(sweep->file, number, changes);
    const enum status status = sweep_load(sweep, changes, &recipe, &refusal);
    if (status != OK && status != BAD_RECIPE)
        return status;
    if (status == BAD_RECIPE) {
        layout.state = SWEEP_REFUSED;
        layout.reason = refuse(sweep, changes, &refusal, number);
        sweep->counts[SWEEP_REFUSED]++;
    } else if (recipe->cluster.profile == NULL) {
        recipe_destroy(recipe);
        return fail(BAD_RECIPE,
                    "%s has no cluster.profile, which a sweep needs; add cluster.profile=NAME (cuboid "
                    "profile --list)",
                    sweep->file->base);
    }
    recipe_destroy(recipe);
    if (status == OK || sweep->counts[SWEEP_REFUSED] <= SWEEP_MOST_REFUSED)
        return append(sweep, &layout);
    return OK;
}

struct speed {
    double step_s;
    int64_t number;
    size_t index;
};

static int by_speed(const void *a, const void *b)
{
    const struct speed *one = a, *other = b;
    if (one->step_s != other->step_s)
        return one->step_s < other->step_s ? -1 : 1;
    return (one->number > other->number) - (one->number < other->number);
}

static enum status sort_best(struct sweep *sweep)
{
    struct speed *speeds = calloc(sweep->count + 1, sizeof *speeds);
    sweep->best = calloc(sweep->count + 1, sizeof *sweep->best);
    if (speeds == NULL || sweep->best == NULL) {
        free(speeds);
        return fail(NO_MEMORY, "no memory for %zu layouts", sweep->count);
    }
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].state == SWEEP_PLANNED)
            speeds[sweep->best_count++] =
                (struct speed){sweep->layouts[i].step_s, sweep->layouts[i].number, i};
    qsort(speeds, sweep->best_count, sizeof *speeds, by_speed);
    for (size_t i = 0; i < sweep->best_count; i++)
        sweep->best[i] = speeds[i].index;
    free(speeds);
    return OK;
}

static void report(const struct sweep_options *options, enum sweep_phase phase, int64_t done, int64_t count)
{
    if (options->progress != NULL)
        options->progress(options->context, phase, done, count);
}

static enum status make(struct sweep *sweep, const struct sweep_options *options)
{
    for (int64_t number = 0; number < sweep->file->layouts; number++) {
        report(options, SWEEP_CHECKING, number, sweep->file->layouts);
        TRY(check_layout(sweep, number));
    }
    const int64_t legal = sweep->file->layouts - sweep->counts[SWEEP_REFUSED];
    int64_t done = 0;
    for (size_t i = 0; i < sweep->count; i++) {
        if (sweep->layouts[i].state == SWEEP_REFUSED)
            continue;
        report(options, SWEEP_PLANNING, done++, legal);
        TRY(plan_layout(sweep, &sweep->layouts[i]));
    }
    sweep_sort_reasons(sweep);
    return sort_best(sweep);
}

enum status sweep_make(const struct sweep_file *file, const struct sweep_options *options, struct sweep *out,
                       struct problems *problems)
{
    *out = (struct sweep){.file = file};
    TRY(recipe_variants_open(file->base, options->overrides, options->override_count, 0, &out->variants,
                             problems));
    const enum status status = make(out, options);
    if (status != OK)
        sweep_free(out);
    return status;
}

void sweep_free(struct sweep *sweep)
{
    sweep_free_reasons(sweep);
    recipe_variants_close(sweep->variants);
    profile_cache_free(&sweep->profiles);
    free(sweep->layouts);
    free(sweep->best);
    *sweep = (struct sweep){.file = NULL};
}
