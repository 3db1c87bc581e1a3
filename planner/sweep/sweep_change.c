// SPDX-License-Identifier: Apache-2.0
/* Suggests a change for a sweep without a planned layout: values that an axis does not have, nearest first.
 * For integers these are up to 64 times larger or smaller, by factors of two and then one by one; for other
 * keys, the words of a short list that the recipe accepts. */
#include "base/memory.h"
#include "planner/recipe/planned_recipe.h"
#include "planner/schedule/choose_schedule.h"
#include "planner/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TRIES = 20000, STEPS = 6, MAX_CANDIDATES = SWEEP_MAX_AXES * 64, VALUE_CHARS = 40 };

struct candidate {
    int axis;
    char value[VALUE_CHARS];
    double distance; // from the nearest value of the axis, in doublings
};

struct candidates {
    struct candidate list[MAX_CANDIDATES];
    int count;
};

static bool has_value(const struct sweep_axis *axis, const char *value)
{
    for (int i = 0; i < axis->count; i++)
        if (strcmp(axis->texts[i], value) == 0)
            return true;
    return false;
}

static void add_candidate(struct candidates *out, const struct sweep_file *file, int axis, const char *value,
                          double distance)
{
    if (out->count == MAX_CANDIDATES || has_value(&file->axes[axis], value))
        return;
    for (int i = 0; i < out->count; i++)
        if (out->list[i].axis == axis && strcmp(out->list[i].value, value) == 0) {
            out->list[i].distance = fmin(out->list[i].distance, distance);
            return;
        }
    struct candidate *added = &out->list[out->count++];
    *added = (struct candidate){.axis = axis, .distance = distance};
    snprintf(added->value, sizeof added->value, "%s", value);
}

static void add_integers(struct candidates *out, const struct sweep_file *file, int axis, int64_t value)
{
    char text[VALUE_CHARS];
    for (int step = -STEPS; step <= STEPS; step++) {
        const double scaled = ldexp((double)value, step);
        if (scaled >= 1.0 && scaled == floor(scaled) && scaled < 1e15) {
            snprintf(text, sizeof text, "%.0f", scaled);
            add_candidate(out, file, axis, text, fabs((double)step));
        }
    }
    for (int step = -4; step <= 4; step++)
        if (value + step >= 0) {
            snprintf(text, sizeof text, "%lld", (long long)(value + step));
            add_candidate(out, file, axis, text,
                          value + step > 0 ? fabs(log2((double)(value + step) / (double)value)) : 2.0);
        }
}

static void add_words(struct candidates *out, const struct sweep_file *file, int axis)
{
    static const char *const words[] = {"true", "false", "none",        "selective", "full",   "1f1b", "bf16",
                                        "fp16", "gpipe", "interleaved", "zb-h1",     "v-half", "v-min"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct node *node = node_scalar(words[i]);
        struct text why = {0};
        if (recipe_change_is_valid(&planner_keys, &(struct recipe_change){file->axes[axis].key, node}, &why))
            add_candidate(out, file, axis, words[i], 1.0);
        text_free(&why);
        node_free(node);
    }
}

static int nearer(const void *a, const void *b)
{
    const struct candidate *one = a, *other = b;
    if (one->distance != other->distance)
        return one->distance < other->distance ? -1 : 1;
    return one->axis != other->axis ? one->axis - other->axis : strcmp(one->value, other->value);
}

static void find_candidates(const struct sweep_file *file, struct candidates *out)
{
    out->count = 0;
    for (int axis = 0; axis < file->axis_count; axis++) {
        int64_t value;
        bool integers = false;
        for (int i = 0; i < file->axes[axis].count; i++)
            if (integer_parse(file->axes[axis].texts[i], &value)) {
                integers = true;
                if (value > 0)
                    add_integers(out, file, axis, value);
            }
        if (!integers)
            add_words(out, file, axis);
    }
    qsort(out->list, (size_t)out->count, sizeof *out->list, nearer);
}

/* Whether the layout with these values can be planned. */
static bool can_be_planned(struct sweep *sweep, const struct recipe_change *changes)
{
    struct sweep_violation violation;
    struct recipe *recipe = NULL;
    struct run run;
    struct sweep_layout layout;
    bool fits = false;
    if (sweep_load(sweep, changes, &recipe, &violation) != OK)
        return false;
    sweep_set_threads(recipe);
    if (planned_run_create(recipe, &run) == OK && sweep_needed(sweep, &run, &layout) == OK &&
        layout.state == SWEEP_PLANNED) {
        struct step_plan plan;
        fits = step_plan_make(&run, sweep->profiles.profile, &plan) == OK;
        if (fits) {
            fits = plan.fits && !plan.tight;
            step_plan_free(&plan);
        }
    }
    run_destroy(&run);
    recipe_destroy(recipe);
    return fits;
}

/* Tries a value of an axis with all values of the others. */
static bool try_candidate(struct sweep *sweep, const struct candidate *candidate, int *tries,
                          struct text *layout)
{
    const struct sweep_file *file = sweep->file;
    struct node *node = node_scalar(candidate->value);
    struct text why = {0};
    bool found = false;
    const bool valid = recipe_change_is_valid(
        &planner_keys, &(struct recipe_change){file->axes[candidate->axis].key, node}, &why);
    text_free(&why);
    for (int64_t number = 0; valid && number < file->layouts && !found && *tries < MAX_TRIES; number++) {
        struct recipe_change changes[SWEEP_MAX_AXES];
        if (sweep_value(file, number, candidate->axis) != 0)
            continue;
        sweep_changes(file, number, changes);
        changes[candidate->axis].value = node;
        ++*tries;
        found = can_be_planned(sweep, changes);
        for (int i = 0; found && i < file->axis_count; i++)
            text_add(layout, "%s%s=%s", i > 0 ? " " : "", file->axes[i].label,
                     i == candidate->axis ? candidate->value
                                          : file->axes[i].texts[sweep_value(file, number, i)]);
    }
    node_free(node);
    return found;
}

enum status sweep_smallest_change(struct sweep *sweep, struct text *change, struct text *layout)
{
    AUTO_FREE struct candidates *candidates = memory_zeroed(1, sizeof *candidates, "the changes of a sweep");
    int tries = 0;
    find_candidates(sweep->file, candidates);
    for (int i = 0; i < candidates->count && tries < MAX_TRIES; i++)
        if (try_candidate(sweep, &candidates->list[i], &tries, layout)) {
            text_add(change, "%s=%s", sweep->file->axes[candidates->list[i].axis].label,
                     candidates->list[i].value);
            break;
        }
    return OK;
}
