// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep/sweep.h"

#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "trainer/recipe/recipe_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- one layout ---- */

enum status sweep_load(const struct sweep *sweep, const struct recipe_change *changes, struct recipe **out,
                       struct sweep_violation *violation)
{
    struct recipe *recipe = NULL;
    *violation = (struct sweep_violation){.rule = -1};
    TRY(recipe_variant(sweep->variants, changes, (size_t)sweep->file->axis_count, &recipe, &violation->rule));
    for (int i = 0; i < sweep->file->constraint_count; i++)
        if (!sweep_constraint_holds(&sweep->file->constraints[i], recipe)) {
            violation->constraint = &sweep->file->constraints[i];
            recipe_destroy(recipe);
            return BAD_RECIPE;
        }
    *out = recipe;
    return OK;
}

void sweep_set_threads(struct recipe *recipe)
{
    if (device_traits(recipe->cluster.dry_device)->is_gpu && recipe->cluster.threads_per_rank == 0)
        recipe->cluster.threads_per_rank = 1;
}

enum status sweep_recipe(const struct sweep *sweep, int64_t number, struct recipe **out)
{
    struct recipe_change changes[SWEEP_MAX_AXES];
    struct sweep_violation violation;
    sweep_changes(sweep->file, number, changes);
    if (sweep_load(sweep, changes, out, &violation) != OK)
        return fail(BAD_RECIPE, "layout %lld is not valid", (long long)number);
    return OK;
}

enum sweep_state sweep_fit(const struct sweep *sweep, const struct recipe *recipe, int64_t needed_bytes)
{
    const struct cluster_profile *profile = sweep->profiles.profile;
    if (needed_bytes > profile->device.memory_bytes)
        return SWEEP_TOO_LARGE;
    return needed_bytes > step_plan_limit(profile, recipe) ? SWEEP_TIGHT : SWEEP_PLANNED;
}

enum status sweep_needed(struct sweep *sweep, const struct run *run, struct sweep_layout *out)
{
    struct problems problems = {0};
    if (run->recipe->cluster.profile == NULL)
        return fail(BAD_RECIPE, "cluster.profile is none");
    const enum status status = profile_cache_load(&sweep->profiles, run->recipe->cluster.profile, &problems);
    problems_free(&problems);
    TRY(status);
    TRY(step_plan_formula_bytes(run, &out->bytes));
    out->needed_bytes = step_plan_needed(sweep->profiles.profile, run, out->bytes);
    out->state = sweep_fit(sweep, run->recipe, out->needed_bytes);
    return OK;
}

/* Appends the first problem of a variant. */
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

static const char *schedule_of(const struct sweep *sweep, const struct recipe_change *changes)
{
    for (int i = 0; i < sweep->file->axis_count; i++)
        if (strcmp(changes[i].key, "pipeline.schedule") == 0)
            return changes[i].value->text;
    return recipe_variants_base(sweep->variants)->pipeline.schedule;
}

/* Appends a rule: "1f1b supports any p, any m, v = 1", else the first of the keys that it reads. */
static void add_rule(const struct sweep *sweep, const struct recipe_change *changes, int rule,
                     struct text *out)
{
    enum { MAX_KEYS = 3 };
    static const char shape[] = "pipeline.schedule pipeline.virtual_stages ";
    const char *keys = recipe_rule_keys(&planner_keys, rule);
    const struct schedule_about *about;
    int count = 1;
    for (int i = 0; strncmp(keys, shape, sizeof shape - 1) == 0 && (about = schedule_about(i)) != NULL; i++)
        if (strcmp(about->name, schedule_of(sweep, changes)) == 0) {
            text_add(out, "%s supports %s", about->name, about->supports);
            return;
        }
    for (; *keys != 0 && (*keys != ' ' || count < MAX_KEYS); keys++) {
        count += *keys == ' ';
        text_add(out, *keys == ' ' ? ", " : "%c", *keys);
    }
    text_add(out, "%s", *keys != 0 ? ", ..." : "");
}

/* Counts an invalid layout. The example is made only for the first layout of each reason, since it is
 * slow. */
static int add_invalid(struct sweep *sweep, const struct recipe_change *changes,
                       const struct sweep_violation *violation, int64_t number)
{
    struct text what = {0}, example = {0};
    if (violation->constraint != NULL) {
        text_add(&what, "constraint %s", violation->constraint->text);
        sweep_layout_text(sweep->file, number, &example);
    } else {
        if (violation->rule >= 0)
            add_rule(sweep, changes, violation->rule, &what);
        else
            text_add(&what, "inputs of the recipe");
        if (!sweep_has_reason(sweep, SWEEP_INVALID, what.chars))
            explain(sweep, changes, &example);
    }
    const int reason = sweep_add_reason(sweep, SWEEP_INVALID, what.chars, text_chars(&example), number);
    text_free(&what);
    text_free(&example);
    return reason;
}

/* Whether the layout equals an earlier one: it differs in the value of a key that has no effect in it. */
static bool is_repeated(struct sweep *sweep, const struct recipe *recipe, struct sweep_layout *layout)
{
    const struct sweep_file *file = sweep->file;
    int axis = 0;
    while (axis < file->axis_count && (sweep_value(file, layout->number, axis) == 0 ||
                                       !recipe_key_is_unused(recipe, file->axes[axis].key)))
        axis++;
    if (axis == file->axis_count)
        return false;
    struct text what = {0}, example = {0};
    text_add(&what, "%s has no effect: one value is enough", file->axes[axis].key);
    sweep_layout_text(file, layout->number, &example);
    layout->state = SWEEP_INVALID;
    layout->reason = sweep_add_reason(sweep, SWEEP_INVALID, what.chars, example.chars, layout->number);
    sweep->counts[SWEEP_INVALID]++;
    text_free(&what);
    text_free(&example);
    return true;
}

/* ---- all layouts ---- */

static enum status append(struct sweep *sweep, const struct sweep_layout *layout)
{
    if (sweep->count == sweep->capacity) {
        const size_t capacity = 2 * sweep->capacity + 64;
        sweep->layouts =
            memory_resized(sweep->layouts, capacity, sizeof *sweep->layouts, "the layouts of a sweep");
        sweep->capacity = capacity;
    }
    sweep->layouts[sweep->count++] = *layout;
    return OK;
}

void sweep_shared_text(const struct sweep *sweep, int64_t number, struct text *out)
{
    for (int i = 0; i < sweep->file->axis_count; i++)
        if (!sweep_bound_ignores(sweep->file->axes[i].key))
            text_add(out, "%d ", sweep_value(sweep->file, number, i));
}

/* Computes the lower bounds of a valid layout. They take tapes, which are slow, so a profile that cannot plan
 * the layout is detected first. */
static enum status add_bounds(struct sweep *sweep, const struct recipe *recipe, struct sweep_layout *layout)
{
    struct problems problems = {0};
    struct text shared = {0};
    if (recipe->cluster.profile == NULL)
        return fail(BAD_RECIPE,
                    "%s has no cluster.profile, which a sweep needs; add cluster.profile=NAME (cuboid "
                    "profile --list)",
                    sweep->file->base);
    enum status status = profile_cache_load(&sweep->profiles, recipe->cluster.profile, &problems);
    problems_free(&problems);
    TRY(status);
    if (sweep->device_bytes == 0)
        sweep->device_bytes = sweep->profiles.profile->device.memory_bytes;
    const struct run run = {.recipe = recipe, .mesh.world = recipe_world_size(recipe)};
    if (step_plan_check_profile(&run, sweep->profiles.profile) != OK) {
        layout->state = SWEEP_FAILED;
        layout->reason = sweep_add_failed(sweep, layout->number);
        sweep->counts[SWEEP_FAILED]++;
        return OK;
    }
    sweep_shared_text(sweep, layout->number, &shared);
    status =
        sweep_bound(sweep->bounds, text_chars(&shared), recipe, sweep->profiles.profile, &layout->bound_s);
    if (status == OK)
        status = sweep_bound_memory(sweep->bounds, text_chars(&shared), recipe, sweep->profiles.profile,
                                    &layout->bound_bytes);
    text_free(&shared);
    if (status != OK)
        return status;
    layout->needed_bytes = step_plan_needed(sweep->profiles.profile, &run, layout->bound_bytes);
    if (layout->needed_bytes > sweep->profiles.profile->device.memory_bytes) {
        layout->state = SWEEP_TOO_LARGE;
        layout->reason = sweep_add_memory(sweep, layout, recipe);
        sweep->counts[SWEEP_TOO_LARGE]++;
    }
    return OK;
}

/* Checks the rules and the constraints of a layout. */
static enum status check_layout(struct sweep *sweep, int64_t number)
{
    struct recipe_change changes[SWEEP_MAX_AXES];
    struct sweep_violation violation;
    struct recipe *recipe = NULL;
    struct sweep_layout layout = {.number = number, .state = SWEEP_SLOWER, .reason = -1};
    sweep_changes(sweep->file, number, changes);
    enum status status = sweep_load(sweep, changes, &recipe, &violation);
    if (status == OK)
        sweep_set_threads(recipe);
    if (status == BAD_RECIPE) {
        layout.state = SWEEP_INVALID;
        layout.reason = add_invalid(sweep, changes, &violation, number);
        sweep->counts[SWEEP_INVALID]++;
        status = OK;
    } else if (status == OK && !is_repeated(sweep, recipe, &layout))
        status = add_bounds(sweep, recipe, &layout);
    recipe_destroy(recipe);
    if (status == OK && (layout.state != SWEEP_INVALID || sweep->counts[SWEEP_INVALID] <= SWEEP_MAX_INVALID))
        return append(sweep, &layout);
    return status;
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
    TRY(sweep_search(sweep, options));
    sweep_sort_reasons(sweep);
    return OK;
}

void sweep_basis_text(const struct sweep *sweep, struct text *out)
{
    struct recipe *recipe = NULL;
    if (sweep->best_count > 0 && sweep_recipe(sweep, sweep->layouts[sweep->best[0]].number, &recipe) == OK)
        profile_named_basis_text(recipe->cluster.profile, out);
    recipe_destroy(recipe);
}

static bool is_axis(const struct sweep_file *file, const char *key)
{
    for (int a = 0; a < file->axis_count; a++)
        if (strcmp(file->axes[a].key, key) == 0)
            return true;
    return false;
}

/* A key that is `auto` must be an axis; an axis cannot have a value on the command line, too. Without a
 * profile no layout can be planned, whatever its rules. */
static enum status check_choices(const struct sweep *sweep, struct problems *problems)
{
    const struct recipe *base = recipe_variants_base(sweep->variants);
    const char *keys[RECIPE_MAX_CHOSEN];
    const int count = recipe_variants_open_keys(sweep->variants, keys);
    const size_t before = problems->errors;
    for (int i = 0; i < count; i++)
        if (!is_axis(sweep->file, keys[i]))
            problems_add(problems, "%s: %s is auto; give it a value, or list its values in axes",
                         sweep->file->base, keys[i]);
    for (int a = 0; a < sweep->file->axis_count; a++)
        if (base->origin[recipe_row_find_dotted(&planner_keys, sweep->file->axes[a].key)].kind ==
            FROM_COMMAND_LINE)
            problems_add(problems, "%s:%d: axes: %s also has a value on the command line; remove one of them",
                         sweep->file->path, sweep->file->axes[a].line, sweep->file->axes[a].key);
    if (base->cluster.profile == NULL && !is_axis(sweep->file, "cluster.profile"))
        problems_add(problems,
                     "%s has no cluster.profile, which a sweep needs; add cluster.profile=NAME (cuboid "
                     "profile --list)",
                     sweep->file->base);
    return problems->errors == before ? OK : fail(BAD_RECIPE, "%s: values of keys", sweep->file->path);
}

enum status sweep_make(const struct sweep_file *file, const struct sweep_options *options, struct sweep *out,
                       struct problems *problems)
{
    *out = (struct sweep){.file = file};
    TRY(recipe_variants_open(&planner_keys, file->base, options->overrides, options->override_count,
                             options->world_size, &out->variants, problems));
    enum status status = check_choices(out, problems);
    out->bounds = sweep_bounds_create();
    if (status == OK)
        status = make(out, options);
    if (status != OK)
        sweep_free(out);
    return status;
}

void sweep_free(struct sweep *sweep)
{
    sweep_free_reasons(sweep);
    recipe_variants_close(sweep->variants);
    profile_cache_free(&sweep->profiles);
    sweep_bounds_destroy(sweep->bounds);
    sweep_schedules_free(&sweep->schedules);
    free(sweep->layouts);
    free(sweep->best);
    *sweep = (struct sweep){.file = NULL};
}
