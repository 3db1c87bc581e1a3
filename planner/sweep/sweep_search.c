// SPDX-License-Identifier: Apache-2.0
/* Best-first search: the layout with the smallest lower bound is visited next. The first bound is that of the
 * placement. At the first visit the schedule is built, the memory is checked, and the schedule is simulated
 * with lower bounds of its actions; the layout returns to the heap with the refined bound, and is planned at
 * the second visit, until its step is certain to be longer than the best. */
#include "base/memory.h"
#include "planner/schedule/choose_schedule.h"
#include "planner/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    double bound_s;
    int64_t number;
    size_t index;    // of sweep->layouts
    bool is_refined; // its memory is checked
};

struct search {
    struct sweep *sweep;
    const struct sweep_options *options;
    struct candidate *heap; // smallest bound first
    size_t count;
    double *steps; // step times of the best layouts, ascending
    int64_t step_count, most;
};

/* ---- the heap ---- */

static bool precedes(const struct candidate *a, const struct candidate *b)
{
    return a->bound_s < b->bound_s || (a->bound_s == b->bound_s && a->number < b->number);
}

static void push(struct search *s, const struct candidate *candidate)
{
    size_t at = s->count++;
    for (; at > 0 && precedes(candidate, &s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = *candidate;
}

static struct candidate pop(struct search *s)
{
    const struct candidate first = s->heap[0], last = s->heap[--s->count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < s->count) {
        if (child + 1 < s->count && precedes(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!precedes(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return first;
}

/* ---- the best step times so far ---- */

static void insert_step(struct search *s, double step_s)
{
    if (s->step_count < s->most)
        s->step_count++;
    else if (s->most == 0 || s->steps[s->most - 1] <= step_s)
        return;
    int64_t at = s->step_count - 1;
    for (; at > 0 && s->steps[at - 1] > step_s; at--)
        s->steps[at] = s->steps[at - 1];
    s->steps[at] = step_s;
}

/* Whether a layout with this bound may still be one of the best. */
static bool may_be_best(const struct search *s, double bound_s)
{
    if (s->options->limit_s > 0.0 && bound_s >= s->options->limit_s)
        return false;
    return s->most == 0 || s->step_count < s->most || bound_s <= s->steps[s->most - 1];
}

/* ---- one layout ---- */

int sweep_add_memory(struct sweep *sweep, const struct sweep_layout *layout, const struct recipe *recipe)
{
    const bool tight = layout->state == SWEEP_TIGHT;
    char needed[NUMBER_CHARS], device[NUMBER_CHARS];
    struct text example = {0};
    sweep_layout_text(sweep->file, layout->number, &example);
    text_add(&example, layout->bytes > 0 ? " needs %s of %s" : " needs at least %s of %s",
             bytes_text(layout->needed_bytes, needed),
             bytes_text(sweep->profiles.profile->device.memory_bytes, device));
    if (tight)
        text_add(&example, ", of which cluster.memory_headroom leaves %.4g %% free",
                 100.0 * recipe->cluster.memory_headroom);
    const int reason =
        sweep_add_reason(sweep, layout->state, tight ? "memory headroom" : "memory of the device",
                         example.chars, layout->number);
    text_free(&example);
    return reason;
}

/* Step time of the last of the best layouts so far; INFINITY: any step may still be one of the best. */
static double limit_of(const struct search *s)
{
    const double limit_s = s->options->limit_s > 0.0 ? s->options->limit_s : INFINITY;
    return s->most > 0 && s->step_count == s->most ? fmin(limit_s, s->steps[s->most - 1]) : limit_s;
}

/* Plans a run that fits according to the formula; the dry run decides whether it does. */
static enum status plan(struct sweep *sweep, const struct run *run, double limit_s,
                        struct sweep_layout *layout)
{
    struct step_plan plan;
    TRY(step_plan_make_within(run, sweep->profiles.profile, limit_s, &plan));
    layout->bytes = plan.ranks[plan.peak_rank].bytes;
    layout->needed_bytes = plan.needed_bytes;
    layout->state = sweep_fit(sweep, run->recipe, plan.needed_bytes);
    if (layout->state == SWEEP_PLANNED && plan.exceeds)
        layout->state = SWEEP_SLOWER;
    layout->step_s = plan.step_s;
    layout->tokens_per_s = plan.tokens_per_s;
    layout->tflops_per_rank = plan.tflops_per_rank;
    layout->mfu = plan.mfu;
    layout->bubble_fraction = plan.bubble_fraction;
    step_plan_free(&plan);
    return OK;
}

/* Checks the memory, and refines the bound with the schedule. */
static enum status refine(struct sweep *sweep, const struct run *run, struct sweep_layout *layout)
{
    struct text shared = {0};
    double bound_s = 0.0;
    TRY(sweep_needed(sweep, run, layout));
    if (layout->state != SWEEP_PLANNED)
        return OK;
    layout->state = SWEEP_SLOWER; // until it is planned
    sweep_shared_text(sweep, layout->number, &shared);
    const enum status status =
        sweep_bound_schedule(sweep->bounds, text_chars(&shared), run, sweep->profiles.profile, &bound_s);
    text_free(&shared);
    layout->bound_s = bound_s > layout->bound_s ? bound_s : layout->bound_s;
    return status;
}

static enum status visit_recipe(const struct search *s, const struct recipe *recipe, bool is_refined,
                                struct sweep_layout *layout)
{
    struct sweep *sweep = s->sweep;
    struct schedule *schedule = NULL;
    struct run run;
    TRY(sweep_schedule_of(&sweep->schedules, recipe, &schedule));
    enum status status = schedule != NULL ? run_create_with_schedule(recipe, schedule, false, &run)
                                          : planned_run_create(recipe, &run);
    if (status == OK)
        status = is_refined ? plan(sweep, &run, limit_of(s), layout) : refine(sweep, &run, layout);
    run_destroy(&run);
    return status;
}

/* Returns OK or NO_MEMORY; any other error is recorded as that of the layout. */
static enum status visit(struct search *s, struct candidate *candidate)
{
    struct sweep *sweep = s->sweep;
    struct sweep_layout *layout = &sweep->layouts[candidate->index];
    struct recipe *recipe = NULL;
    TRY(sweep_recipe(sweep, layout->number, &recipe));
    sweep_set_threads(recipe);
    const enum status status = visit_recipe(s, recipe, candidate->is_refined, layout);
    if (status == OK && (layout->state == SWEEP_TOO_LARGE || layout->state == SWEEP_TIGHT))
        layout->reason = sweep_add_memory(sweep, layout, recipe);
    recipe_destroy(recipe);
    if (status == NO_MEMORY)
        return status;
    if (status != OK) {
        layout->state = SWEEP_FAILED;
        layout->reason = sweep_add_failed(sweep, layout->number);
    } else if (layout->state == SWEEP_PLANNED)
        insert_step(s, layout->step_s);
    else if (layout->state == SWEEP_SLOWER && !candidate->is_refined) {
        candidate->bound_s = layout->bound_s;
        candidate->is_refined = true;
        push(s, candidate);
        return OK;
    }
    sweep->counts[layout->state]++;
    return OK;
}

/* ---- all layouts ---- */

static int by_speed(const void *a, const void *b)
{
    const struct candidate *one = a, *other = b;
    return precedes(one, other) ? -1 : precedes(other, one);
}

/* Reuses the memory of the heap, which is empty or has only slower layouts. */
static void sort_best(struct search *s)
{
    struct sweep *sweep = s->sweep;
    size_t count = 0;
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].state == SWEEP_PLANNED)
            s->heap[count++] =
                (struct candidate){sweep->layouts[i].step_s, sweep->layouts[i].number, i, true};
    qsort(s->heap, count, sizeof *s->heap, by_speed);
    sweep->best = memory_zeroed(count + 1, sizeof *sweep->best, "the best layouts of a sweep");
    sweep->best_count = count;
    for (size_t i = 0; i < count; i++)
        sweep->best[i] = s->heap[i].index;
}

static enum status search(struct search *s)
{
    const struct sweep_options *options = s->options;
    const int64_t valid = (int64_t)s->count;
    while (s->count > 0 && may_be_best(s, s->heap[0].bound_s)) {
        struct candidate candidate = pop(s);
        if (options->progress != NULL)
            options->progress(options->context, SWEEP_PLANNING, valid - (int64_t)s->count, valid);
        TRY(visit(s, &candidate));
    }
    s->sweep->counts[SWEEP_SLOWER] += (int64_t)s->count;
    sort_best(s);
    return OK;
}

enum status sweep_search(struct sweep *sweep, const struct sweep_options *options)
{
    struct search s = {.sweep = sweep, .options = options, .most = options->best};
    s.heap = memory_zeroed(sweep->count + 1, sizeof *s.heap, "the search of a sweep");
    s.steps = memory_zeroed((size_t)s.most + 1, sizeof *s.steps, "the search of a sweep");
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].state == SWEEP_SLOWER)
            push(&s, &(struct candidate){sweep->layouts[i].bound_s, sweep->layouts[i].number, i, false});
    const enum status status = search(&s);
    free(s.heap);
    free(s.steps);
    return status;
}
