// SPDX-License-Identifier: Apache-2.0
/* Searches for a schedule for the given times of F, I, W and a message and a limit of activations per rank
 * (an extension of the automatic scheduler of Qi et al., 2401.10241, section 3). Candidates:
 *
 *     1. Every named family within the limit, unchanged: the result is never longer than any of them (except
 *        the one that holds weights twice).
 *     2. For each placement, greedy simulations under many rules (auto_greedy.c), then a local search from
 *        the best schedule so far (auto_improve.c), unless that has reached the lower bound (bound.h). For
 *        the V with two chunks and a limit below 2p chunks, also the building blocks of v_limited.c: first
 *        those with a drain, which end the search if they reach the bound, and last the others.
 *
 * The result is the candidate with the shortest makespan according to simulate(), including transfers; among
 * equals the one with the lower peak, then the one with the smaller bubble. Transfers are placed by the given
 * times, not by units, so that a RECV is posted when its message is expected.
 *
 * Caution: every rank builds its own copy, so nothing here may depend on elapsed time, addresses or rounding.
 * Budgets therefore count simulated actions, and times are integer ticks. */
#include "schedules/search/auto.h"

#include "base/memory.h"
#include "schedules/bound.h"
#include "schedules/families/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Budgets of the searches for each placement, in simulated actions: in all, and per action of the
 * schedule. */
enum {
    BLOCKS = 4000000, // building blocks with headroom
    BLOCKS_LEAST = 400,
    RESERVED = 8000000, // building blocks with a reserve
    GREEDY = 3000000,
    GREEDY_EACH = 3000,
    LOCAL = 12000000,
    LOCAL_EACH = 12000
};
/* Cost of generating a named family, measured in simulated actions per action of the schedule. */
enum { NAMED_EACH = 10 };
enum { PLACEMENTS = 2, FULL_PIPES = 2 };

struct found {
    struct schedule *schedule;
    double makespan, bubble;
    int peak; // chunks, largest of all ranks; for different v, compared as fractions of a rank
};

/* In simulated actions. */
struct effort {
    double spent, total;
};

struct search {
    const struct schedule_options *o;
    struct effort *effort;
    int v, limit; // in chunks
    struct cost_table costs;
    struct stage_cost *of_stage; // [p·v], used by costs.of_stage
    struct schedule *placed[PLACEMENTS];
    struct pipeline *pipes[PLACEMENTS];
    pipe_step *steps[PLACEMENTS];  // of the shortest schedule so far
    int64_t best_time[PLACEMENTS]; // its makespan
    pipe_step *other;              // of another schedule
    struct found *found;
};

static const struct family *const placements[PLACEMENTS] = {&family_1f1b, &family_zb_v};

static bool is_better(const struct found *a, const struct found *b, double margin)
{
    if (b->schedule == NULL || a->makespan < b->makespan * (1.0 - margin))
        return true;
    int64_t peak = (int64_t)a->peak * b->schedule->v, other = (int64_t)b->peak * a->schedule->v;
    bool less = peak < other || (peak == other && a->bubble < b->bubble * (1.0 - 1e-9));
    return a->makespan <= b->makespan && less;
}

static int peak_of(const struct schedule *s)
{
    int peak = 0;
    for (int rank = 0; rank < s->p; rank++) {
        int of_rank = schedule_peak(s, rank);
        peak = of_rank > peak ? of_rank : peak;
    }
    return peak;
}

static void spend(struct search *h, int64_t actions)
{
    h->effort->spent += (double)actions;
    report_progress(h->o->progress, SEARCHED_PERCENT * h->effort->spent / h->effort->total);
}

/* Keeps the schedule if it is shorter by more than `margin`, or no longer and has a lower peak. Takes
 * ownership. */
static enum status keep_if_better(struct search *h, struct schedule *s, double margin)
{
    struct found candidate = {.schedule = s};
    struct simulation *sim = NULL;
    enum status status = simulate(s, &h->costs, NULL, &sim);
    if (status == OK) {
        candidate.makespan = sim->makespan;
        candidate.bubble = sim->bubble;
        candidate.peak = peak_of(s);
        simulation_destroy(sim);
    }
    if (status == OK && candidate.peak <= h->limit && is_better(&candidate, h->found, margin)) {
        s->limit = h->limit;
        schedule_destroy(h->found->schedule);
        *h->found = candidate;
    } else {
        schedule_destroy(s);
    }
    return status;
}

static int64_t actions_of(const struct schedule_options *o, int v)
{
    return (int64_t)TASK_KINDS * v * o->p * o->m;
}

/* ---- the named families ---- */

static bool same_placement(const struct schedule *a, const struct schedule *b)
{
    return memcmp(a->rank_of[0], b->rank_of[0], (size_t)a->stages * sizeof *a->rank_of[0]) == 0;
}

/* Keeps the steps of a named schedule if it is the shortest with its placement. */
static void keep_steps(struct search *h, const struct schedule *s)
{
    for (int placement = 0; placement < PLACEMENTS; placement++) {
        struct pipeline *x = h->pipes[placement];
        if (x == NULL || !same_placement(s, h->placed[placement]))
            continue;
        steps_of_schedule(x, s, h->other);
        for (int rank = 0; rank < x->p; rank++)
            if (!steps_allowed(x, rank, rank_steps(x, h->other, rank)))
                return;
        int64_t time = pipe_time(x, h->other, NULL);
        if (time < h->best_time[placement]) {
            h->best_time[placement] = time;
            memcpy(h->steps[placement], h->other, (size_t)x->actions * sizeof *h->other);
        }
    }
}

/* Returns true for a schedule that exceeds the limit, or is longer than the best one even if messages never
 * wait for each other: adding its transfers is unnecessary. */
static enum status is_dominated(const struct search *h, const struct schedule *s, bool *out)
{
    struct simulation *sim = NULL;
    *out = peak_of(s) > h->limit;
    if (*out || h->found->schedule == NULL)
        return OK;
    TRY(simulate(s, &h->costs, NULL, &sim));
    *out = sim->makespan > h->found->makespan * (1.0 + 1e-9);
    simulation_destroy(sim);
    return OK;
}

static enum status try_family(struct search *h, const struct schedule_options *o)
{
    struct schedule *s = NULL;
    bool dominated = true;
    TRY(schedule_generate(o, &s));
    enum status status = OK;
    if (!schedule_has_replicas(s)) { // weights must not be held twice
        keep_steps(h, s);
        status = is_dominated(h, s, &dominated);
    }
    if (status == OK && !dominated)
        status = schedule_add_transfers(s);
    if (status == OK && !dominated)
        return keep_if_better(h, s, 0.0);
    schedule_destroy(s);
    return status;
}

/* From the last row of the table to the first: families that are usually short come first, and dominate the
 * others. */
static enum status try_named(struct search *h)
{
    int count = 0;
    while (schedule_about(count) != NULL)
        count++;
    for (int i = count - 1; i >= 0; i--) {
        struct schedule_options o = {.name = schedule_about(i)->name, .p = h->o->p, .m = h->o->m, .v = h->v};
        if (strcmp(o.name, family_auto.about.name) != 0 && schedule_unsupported(&o) == NULL)
            TRY(try_family(h, &o));
        spend(h, actions_of(h->o, h->v) * NAMED_EACH);
    }
    return OK;
}

/* ---- the search ---- */

/* Adds the transfers, with times in ticks, so that all sums are exact. One tick more per action: with a time
 * of 0 an action would start at the same time as its successor. */
static enum status add_transfers(const struct pipeline *x, struct schedule *s)
{
    AUTO_FREE struct stage_cost *of_stage =
        memory_zeroed((size_t)x->stages, sizeof *of_stage, "the times of stages");
    for (int stage = 0; stage < x->stages; stage++) {
        const struct task *q = &x->task[x->of_stage[stage]];
        of_stage[stage].f = (double)q->time + 1.0;
        of_stage[stage].i = (double)q[x->v].time + 1.0;
        of_stage[stage].w = (double)q[2 * (ptrdiff_t)x->v].time + 1.0;
    }
    struct cost_table ticks = {.of_stage = of_stage, .wire = (double)x->wire, .latency = (double)x->latency};
    return schedule_add_transfers_by(s, &ticks);
}

static enum status keep_steps_if_better(struct search *h, int placement, const pipe_step *steps, bool fuse)
{
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    struct schedule *s = schedule_create(placements[placement], &o);
    steps_into_schedule(h->pipes[placement], steps, fuse, s);
    enum status status = add_transfers(h->pipes[placement], s);
    if (status != OK) {
        schedule_destroy(s);
        return status;
    }
    return keep_if_better(h, s, 1e-9);
}

static int64_t budget(int64_t actions, int limit, int each)
{
    return actions < limit / each ? actions * each : limit;
}

/* Searches within `limit` chunks. `known` is the makespan of `steps`; PIPE_NEVER if these are not set. */
static enum status search_within(struct search *h, int placement, int limit, int64_t goal, int64_t known,
                                 pipe_step *steps)
{
    struct pipeline *x = h->pipes[placement];
    int64_t greedy = budget(x->actions, GREEDY, GREEDY_EACH), local = budget(x->actions, LOCAL, LOCAL_EACH);
    x->limit = limit;
    known = greedy_search(x, known, goal, greedy, steps);
    spend(h, greedy);
    known = local_search(x, known, goal, local, steps);
    spend(h, local);
    x->limit = h->limit;
    if (steps == h->steps[placement])
        h->best_time[placement] = known;
    bool fuse = h->costs.b > 0.0 && h->costs.b < 1.0; // a B is then shorter than I and W
    double least = (double)known / x->ticks_per_unit;
    if (known == PIPE_NEVER ||
        (!fuse && h->found->schedule != NULL && least > h->found->makespan * (1.0 + 1e-6)))
        return OK;
    TRY(keep_steps_if_better(h, placement, steps, false));
    return fuse ? keep_steps_if_better(h, placement, steps, true) : OK;
}

/* Finds the shortest building block of v_limited.c at this limit; `out` is its makespan, PIPE_NEVER if
 * there is none. Blocks are simulated with actions of one unit, so the search with a drain ends at the
 * bound for these times. */
static enum status find_block(struct search *h, int placement, enum block_rule rule, pipe_step *steps,
                              int64_t *out)
{
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}};
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    double bound = 0.0;
    TRY(schedule_bound(h->placed[placement], &units, h->limit, &bound));
    struct schedule *s = schedule_create(placements[placement], &o);
    int64_t effort = rule == WITH_HEADROOM ? BLOCKS : RESERVED;
    int goal = rule == WITH_RESERVE_AND_DRAIN ? (int)ceil(bound * (1.0 - 1e-9)) : 0;
    bool found = v_limited_lists(s, h->limit, rule, goal, effort);
    if (found)
        steps_of_schedule(h->pipes[placement], s, steps);
    schedule_destroy(s);
    spend(h, effort);
    *out = found ? pipe_time(h->pipes[placement], steps, NULL) : PIPE_NEVER;
    return OK;
}

/* Improves a block that is shorter than the best steps so far; it replaces the best schedule only if it is
 * better. */
static enum status improve_block(struct search *h, int placement, int64_t goal, int64_t time,
                                 pipe_step *steps)
{
    struct pipeline *x = h->pipes[placement];
    if (time >= h->best_time[placement])
        return OK;
    int64_t local = budget(x->actions, LOCAL, LOCAL_EACH);
    time = local_search(x, time, goal, local, steps);
    spend(h, local);
    h->best_time[placement] = time;
    return keep_steps_if_better(h, placement, steps, false);
}

/* Returns true if the best schedule is optimal: as short as the bound, with at most `limit` chunks. */
static bool is_optimal(const struct search *h, double bound, int limit)
{
    const struct found *f = h->found;
    return f->schedule != NULL && f->makespan <= bound * (1.0 + 1e-9) &&
           (int64_t)f->peak * h->v <= (int64_t)limit * f->schedule->v;
}

/* The search on the V with two chunks and a limit below 2p chunks. Blocks with a drain come first: if
 * all times are equal they mostly reach the bound, and the search ends. `reserved` is a buffer for their
 * steps. */
static enum status search_limited(struct search *h, int placement, double bound, int64_t goal,
                                  pipe_step *reserved)
{
    struct pipeline *x = h->pipes[placement];
    // They are selected with few microbatches, so only the final simulation grows with m.
    bool affordable =
        (int64_t)6 * x->p * (x->p + 1) <= RESERVED / BLOCKS_LEAST && x->actions <= RESERVED / 40;
    int64_t with_drain = PIPE_NEVER, time = PIPE_NEVER;
    if (affordable)
        TRY(find_block(h, placement, WITH_RESERVE_AND_DRAIN, reserved, &with_drain));
    if (with_drain <= goal)
        TRY(keep_steps_if_better(h, placement, reserved, false));
    if (is_optimal(h, bound, h->limit))
        return OK;
    TRY(search_within(h, placement, h->limit, goal, h->best_time[placement], h->steps[placement]));
    if (x->actions <= BLOCKS / BLOCKS_LEAST && !is_optimal(h, bound, h->limit)) {
        TRY(find_block(h, placement, WITH_HEADROOM, h->other, &time));
        TRY(improve_block(h, placement, goal, time, h->other));
    }
    if (affordable && !is_optimal(h, bound, h->limit)) {
        TRY(find_block(h, placement, WITH_RESERVE, h->other, &time));
        TRY(improve_block(h, placement, goal, time, h->other));
    }
    return is_optimal(h, bound, h->limit) ? OK : improve_block(h, placement, goal, with_drain, reserved);
}

/* Without a limit, first searches within the memory of one full pipe, then of two. */
static enum status search_placement(struct search *h, int placement)
{
    struct pipeline *x = h->pipes[placement];
    double bound = 0.0;
    TRY(schedule_bound(h->placed[placement], &h->costs, h->limit, &bound));
    int64_t goal = (int64_t)ceil(bound * x->ticks_per_unit * (1.0 + 1e-9));
    int64_t full = (int64_t)x->p * x->v;
    for (int pipes = 1; h->o->memory_limit == 0.0 && pipes <= FULL_PIPES; pipes++)
        if (pipes * full < h->limit && !is_optimal(h, bound, (int)(pipes * full)))
            TRY(search_within(h, placement, (int)(pipes * full), goal, PIPE_NEVER, h->other));
    if (is_optimal(h, bound, h->limit))
        return OK;
    if (placement == 0 || h->v != 2 || h->limit >= 2 * x->p)
        return search_within(h, placement, h->limit, goal, h->best_time[placement], h->steps[placement]);
    AUTO_FREE pipe_step *reserved =
        memory_zeroed((size_t)x->actions, sizeof *reserved, "a search for a schedule");
    return search_limited(h, placement, bound, goal, reserved);
}

/* ---- one v ---- */

/* Sets the costs of the stages; if v is not given, those of v 1 are divided by v. */
static void set_costs(struct search *h)
{
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}};
    const struct cost_table *given = h->o->costs != NULL ? h->o->costs : &units;
    int stages = h->o->p * h->v, parts = h->o->v == 0 ? h->v : 1;
    h->of_stage = memory_zeroed((size_t)stages, sizeof *h->of_stage, "the times of stages");
    for (int stage = 0; stage < stages; stage++) {
        struct stage_cost c = given->of_stage != NULL ? given->of_stage[stage / parts] : given->chunk;
        h->of_stage[stage] = (struct stage_cost){c.f / parts, c.i / parts, c.w / parts};
    }
    h->costs = *given;
    h->costs.of_stage = h->of_stage;
}

static void set_placement(struct search *h, int placement)
{
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    h->placed[placement] = schedule_create(placements[placement], &o);
    h->pipes[placement] = pipe_create(h->placed[placement], &h->costs, h->limit);
    size_t actions = (size_t)h->pipes[placement]->actions;
    h->best_time[placement] = PIPE_NEVER;
    h->steps[placement] = memory_zeroed(actions, sizeof *h->steps[placement], "a search for a schedule");
    if (h->other == NULL)
        h->other = memory_zeroed(actions, sizeof *h->other, "a search for a schedule");
}

static enum status search_with(struct search *h)
{
    bool one_way = h->v == 1 || h->o->p == 1; // then both placements are the same
    set_costs(h);
    set_placement(h, 0);
    if (!one_way)
        set_placement(h, 1);
    TRY(try_named(h));
    for (int placement = PLACEMENTS - 1; placement >= 0; placement--)
        if (h->pipes[placement] != NULL)
            TRY(search_placement(h, placement));
    return OK;
}

static int limit_of(const struct schedule_options *o, int v)
{
    double all = (double)o->m * v, limit = floor(o->memory_limit * v * (1.0 + 1e-9));
    return (int)(o->memory_limit > 0.0 && limit < all ? limit : all);
}

/* Returns the upper limit of the effort of a search with this v. */
static double effort_of(const struct schedule_options *o, int v)
{
    int64_t actions = actions_of(o, v), families = 0;
    int searches = (v == 1 || o->p == 1 ? 1 : PLACEMENTS) * (o->memory_limit > 0.0 ? 1 : 1 + FULL_PIPES);
    while (schedule_about((int)families) != NULL)
        families++;
    double blocks =
        v == 2 && o->p > 1 ? BLOCKS + 2.0 * RESERVED + 3.0 * (double)budget(actions, LOCAL, LOCAL_EACH) : 0.0;
    return blocks + (double)(families * NAMED_EACH * actions) +
           searches * (double)(budget(actions, GREEDY, GREEDY_EACH) + budget(actions, LOCAL, LOCAL_EACH));
}

static enum status search_v(const struct schedule_options *o, int v, struct effort *effort,
                            struct found *found)
{
    struct search h = {.o = o, .effort = effort, .v = v, .limit = limit_of(o, v), .found = found};
    double spent = effort->spent + effort_of(o, v); // also if it ends early
    enum status status = search_with(&h);
    effort->spent = spent;
    for (int placement = 0; placement < PLACEMENTS; placement++) {
        schedule_destroy(h.placed[placement]);
        pipe_destroy(h.pipes[placement]);
        free(h.steps[placement]);
    }
    free(h.other);
    free(h.of_stage);
    return status;
}

static void drop_transfers(struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        struct action_list *list = &s->ranks[rank];
        int kept = 0;
        for (int i = 0; i < list->count; i++)
            if (action_traits(list->actions[i].kind)->computes)
                list->actions[kept++] = list->actions[i];
        list->count = kept;
    }
    s->has_transfers = false;
}

static enum status search(const struct schedule_options *o, struct schedule **out)
{
    struct found found = {.schedule = NULL};
    struct effort effort = {.total = 0.0};
    int from = o->v == 0 ? 1 : o->v, to = o->v == 0 ? 2 : o->v;
    enum status status = OK;
    for (int v = from; v <= to; v++)
        effort.total += effort_of(o, v);
    for (int v = from; status == OK && v <= to; v++)
        status = search_v(o, v, &effort, &found);
    if (status == OK && found.schedule == NULL)
        status =
            fail(BAD_SCHEDULE, "auto found no schedule for memory_limit %g; increase it", o->memory_limit);
    if (status != OK) {
        schedule_destroy(found.schedule);
        return status;
    }
    found.schedule->family = &family_auto;
    if (o->without_transfers)
        drop_transfers(found.schedule);
    *out = found.schedule;
    return OK;
}

static bool is_time(double value)
{
    return value >= 0.0 && value < INFINITY;
}

static bool are_times(const struct schedule_options *o)
{
    const struct cost_table *c = o->costs;
    bool good = is_time(c->latency) && is_time(c->wire);
    for (int stage = 0; stage < (c->of_stage != NULL ? o->p * o->v : 1); stage++) {
        struct stage_cost cost = c->of_stage != NULL ? c->of_stage[stage] : c->chunk;
        good = good && is_time(cost.f) && is_time(cost.i) && is_time(cost.w);
    }
    return good;
}

static const char *restriction_costs(const struct schedule_options *o)
{
    if (o->v > UINT16_MAX / 3) // a pipe_step, one of 3v tasks, has 16 bits
        return "auto supports at most 21845 chunks per rank";
    if (o->costs != NULL && !are_times(o))
        return "costs must be finite and 0 or more";
    if (o->memory_limit == 0.0 || o->memory_limit >= 1.0)
        return NULL;
    return "memory_limit must be 1 or more, since a rank holds a whole microbatch, or 0 for no limit";
}

static int peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->limit;
}

const struct family family_auto = {
    .about = {.name = "auto",
              .summary =
                  "Shortest schedule found for given times of F, I, W and a message, within a memory limit.",
              .supports = "any p, any m, v up to 21845"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .restriction = restriction_costs,
    .search = search,
    .peak_claim = peak,
};
