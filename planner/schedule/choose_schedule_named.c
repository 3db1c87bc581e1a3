// SPDX-License-Identifier: Apache-2.0
#include "planner/schedule/choose_schedule.h"

#include "planner/plan/step_plan.h"
#include "planner/schedule/sweep_bound.h"
#include "planner/schedule/sweep_unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMED = 32 };

struct candidate {
    struct schedule *schedule;
    double bound_s; // lower bound of its planned step
    int index;
};

struct named {
    struct run *run;
    const struct cluster_profile *profile;
    struct sweep_bounds *bounds;
    struct candidate list[MAX_NAMED];
    int count;
};

/* Whether the run fits according to the memory formula, which may be less than the plan, never more. */
static enum status may_fit(const struct named *n, bool *out)
{
    int64_t bytes = 0;
    TRY(step_plan_formula_bytes(n->run, &bytes));
    *out = step_plan_needed(n->profile, n->run, bytes) <= step_plan_limit(n->profile, n->run->recipe);
    return OK;
}

/* The bound of run->schedule, which has the name `name`: its backward passes are split or not. */
static enum status find_bound(const struct named *n, const char *name, double *out)
{
    struct recipe recipe = *n->run->recipe;
    struct run run = *n->run;
    char copy[RECIPE_KEY_CHARS];
    snprintf(copy, sizeof copy, "%s", name);
    recipe.pipeline.schedule = copy;
    run.recipe = &recipe;
    return sweep_bound_schedule(n->bounds, sweep_unit_splits(&recipe) ? "split" : "fused", &run, n->profile,
                                out);
}

/* Adds the named schedule if it may fit. The run keeps its own. */
static enum status add_candidate(struct named *n, const char *name)
{
    const struct recipe *recipe = n->run->recipe;
    const struct schedule_options options = {.name = name,
                                             .p = recipe->parallel.pipeline_parallel_size,
                                             .m = (int)recipe_microbatches(recipe),
                                             .v = recipe->pipeline.virtual_stages,
                                             .microbatch_group_size = recipe->pipeline.microbatch_group_size};
    struct schedule *schedule, *own = n->run->schedule;
    if (strcmp(name, "auto") == 0 || schedule_unsupported(&options) != NULL)
        return OK;
    TRY(schedule_build(&options, &schedule));
    double bound_s = 0.0;
    bool fits = !schedule_has_replicas(schedule);
    n->run->schedule = schedule;
    enum status status = fits ? may_fit(n, &fits) : OK;
    if (status == OK && fits)
        status = find_bound(n, name, &bound_s);
    n->run->schedule = own;
    if (status == OK && fits) {
        n->list[n->count] = (struct candidate){schedule, bound_s, n->count};
        n->count++;
    } else
        schedule_destroy(schedule);
    return status;
}

/* The planned step of run->schedule; INFINITY if it does not fit. */
static enum status plan(struct run *run, const struct cluster_profile *profile, double *step_s)
{
    struct step_plan plan;
    TRY(step_plan_make(run, profile, &plan));
    *step_s = plan.fits && !plan.tight ? plan.step_s : INFINITY;
    step_plan_free(&plan);
    return OK;
}

static int by_bound(const void *a, const void *b)
{
    const struct candidate *one = a, *other = b;
    const int order = (one->bound_s > other->bound_s) - (one->bound_s < other->bound_s);
    return order != 0 ? order : one->index - other->index;
}

static void swap(struct schedule **a, struct schedule **b)
{
    struct schedule *const kept = *a;
    *a = *b;
    *b = kept;
}

/* Plans the candidates in the order of their bounds; the shortest becomes run->schedule. */
static enum status plan_candidates(struct named *n)
{
    double best_s, step_s = 0.0;
    TRY(plan(n->run, n->profile, &best_s));
    qsort(n->list, (size_t)n->count, sizeof *n->list, by_bound);
    for (int i = 0; i < n->count && n->list[i].bound_s < best_s; i++) {
        swap(&n->run->schedule, &n->list[i].schedule);
        const enum status status = plan(n->run, n->profile, &step_s);
        if (status != OK || step_s >= best_s)
            swap(&n->run->schedule, &n->list[i].schedule);
        else
            best_s = step_s;
        TRY(status);
    }
    return OK;
}

enum status choose_named(struct run *run, const struct cluster_profile *profile)
{
    const struct schedule_about *about;
    if (step_plan_check_profile(run, profile) != OK)
        return OK; // the plan reports it
    struct named n = {.run = run, .profile = profile, .bounds = sweep_bounds_create()};
    enum status status = OK;
    for (int i = 0; status == OK && i < MAX_NAMED && (about = schedule_about(i)) != NULL; i++)
        status = add_candidate(&n, about->name);
    if (status == OK && n.count > 0)
        status = plan_candidates(&n);
    for (int i = 0; i < n.count; i++)
        schedule_destroy(n.list[i].schedule);
    sweep_bounds_destroy(n.bounds);
    return status == NO_MEMORY ? status : OK;
}

enum status choose_shorter(struct run *run, const struct cluster_profile *profile, struct schedule *other)
{
    double own_s = 0.0, other_s = 0.0;
    enum status status = step_plan_check_profile(run, profile);
    if (status == OK)
        status = plan(run, profile, &own_s);
    swap(&run->schedule, &other);
    if (status == OK)
        status = plan(run, profile, &other_s);
    if (status != OK || other_s >= own_s)
        swap(&run->schedule, &other);
    schedule_destroy(other);
    return status == NO_MEMORY ? status : OK;
}
