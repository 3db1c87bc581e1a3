// SPDX-License-Identifier: Apache-2.0
/* A schedule for the given times (the automatic scheduler of Qi et al., 2401.10241, section 3, and on from
 * there). Given what F, I, W and a message take, and how many activations a rank may hold:
 *
 *     1. every named family that keeps to the limit, as it is, so that the outcome is never longer than any
 * of them (but for the one that holds weights twice);
 *     2. for each placement, the pipe played on a clock under many rules (auto_play.c), and the best of all
 * so far improved step by step (auto_improve.c), unless it is as short as any schedule can be (bound.h); on
 * the V with two chunks and a limit below 2p chunks, first the building blocks of v_limited.c that drain
 * out of order, which end the search where they reach the bound, and last those that do not;
 *     3. whatever simulate() finds shortest, transfers included; of equals the one that holds least, then the
 *        one with the least bubble.
 *
 * Transfers of what was found are placed by the given times, not by units, so that a RECV is posted where
 * its message will really come.
 *
 * Caution: every rank builds its own copy, so nothing here may depend on the time it takes, on addresses, or
 * on how a sum was rounded. The search counts what it does, and its times are whole ticks. */
#include "schedules/bound.h"
#include "schedules/families/family.h"
#include "schedules/search/auto_pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many actions are run, of either kind of search, for each placement. */
enum {
    BLOCKS = 4000000,
    BLOCKS_LEAST = 400,
    RESERVED = 8000000,
    PLAYED = 3000000,
    PLAYED_EACH = 3000,
    MOVED = 12000000,
    MOVED_EACH = 12000
};
/* What a named family costs, as measured. */
enum { NAMED_EACH = 10 };
enum { PLACEMENTS = 2, FULL_PIPES = 2 };

struct found {
    struct schedule *schedule;
    double makespan, bubble;
    int peak; // chunks, of the rank that holds most; with different v, compared as whole ranks
};

/* In actions that are played once. */
struct effort {
    double spent, of_all;
};

struct search {
    const struct schedule_options *o;
    struct effort *effort;
    int v, limit; // in chunks
    struct cost_table costs;
    struct stage_cost *of_stage; // [p·v], what costs.of_stage points to
    struct schedule *places[PLACEMENTS];
    struct pipe *pipes[PLACEMENTS];
    pipe_step *steps[PLACEMENTS]; // the shortest so far
    int64_t known[PLACEMENTS];    // its time
    pipe_step *other;
    struct found *found;
};

static const struct family *const placements[PLACEMENTS] = {&family_1f1b, &family_zb_v};

static bool better(const struct found *a, const struct found *b, double margin)
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
    tell(h->o->progress, SEARCHED_PERCENT * h->effort->spent / h->effort->of_all);
}

/* Keeps a schedule if it is shorter by more than `margin`, or no longer and smaller; owns it either way. */
static enum status offer(struct search *h, struct schedule *s, double margin)
{
    struct found offered = {.schedule = s};
    struct simulation *sim = NULL;
    enum status status = simulate(s, &h->costs, NULL, &sim);
    if (status == OK) {
        offered.makespan = sim->makespan;
        offered.bubble = sim->bubble;
        offered.peak = peak_of(s);
        simulation_destroy(sim);
    }
    if (status == OK && offered.peak <= h->limit && better(&offered, h->found, margin)) {
        s->limit = h->limit;
        schedule_destroy(h->found->schedule);
        *h->found = offered;
    } else {
        schedule_destroy(s);
    }
    return status;
}

static int64_t actions_of(const struct schedule_options *o, int v)
{
    return (int64_t)PART_KINDS * v * o->p * o->m;
}

/* ---- the named families ---- */

static bool same_places(const struct schedule *a, const struct schedule *b)
{
    return memcmp(a->rank_of[0], b->rank_of[0], (size_t)a->stages * sizeof *a->rank_of[0]) == 0;
}

/* Keeps the lists of a named schedule if they are the shortest of its placement. */
static void learn(struct search *h, const struct schedule *s)
{
    for (int place = 0; place < PLACEMENTS; place++) {
        struct pipe *x = h->pipes[place];
        if (x == NULL || !same_places(s, h->places[place]))
            continue;
        steps_of_schedule(x, s, h->other);
        for (int rank = 0; rank < x->p; rank++)
            if (!steps_allowed(x, rank, rank_steps(x, h->other, rank)))
                return;
        int64_t time = pipe_time(x, h->other, NULL);
        if (time < h->known[place]) {
            h->known[place] = time;
            memcpy(h->steps[place], h->other, (size_t)x->actions * sizeof *h->other);
        }
    }
}

/* Returns true for a schedule that holds too much, or is longer than the best one even if messages never wait
 * for each other: its transfers need not be added. */
static enum status is_hopeless(const struct search *h, const struct schedule *s, bool *out)
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
    bool hopeless = true;
    TRY(schedule_generate(o, &s));
    enum status status = s->out_of_memory ? fail(NO_MEMORY, "no memory for the actions of %s", o->name) : OK;
    if (status == OK && !schedule_has_replicas(s)) { // a second copy of the weights was not asked for
        learn(h, s);
        status = is_hopeless(h, s, &hopeless);
    }
    if (status == OK && !hopeless)
        status = schedule_add_transfers(s);
    if (status == OK && !hopeless)
        return offer(h, s, 0.0);
    schedule_destroy(s);
    return status;
}

/* From the last row of the table to the first: families that are usually short come first and make the others
 * unnecessary. */
static enum status try_named(struct search *h)
{
    int count = 0;
    while (schedule_about(count) != NULL)
        count++;
    for (int i = count - 1; i >= 0; i--) {
        struct schedule_options o = {.name = schedule_about(i)->name, .p = h->o->p, .m = h->o->m, .v = h->v};
        if (strcmp(o.name, family_auto.about.name) != 0 && schedule_refusal(&o) == NULL)
            TRY(try_family(h, &o));
        spend(h, actions_of(h->o, h->v) * NAMED_EACH);
    }
    return OK;
}

/* ---- the search ---- */

/* The transfers, by ticks: all sums are exact. An action of no time would start with what follows it. */
static enum status add_transfers(const struct pipe *x, struct schedule *s)
{
    struct stage_cost *of_stage = calloc((size_t)x->stages, sizeof *of_stage);
    if (of_stage == NULL)
        return fail(NO_MEMORY, "no memory for the times of %d stages", x->stages);
    for (int stage = 0; stage < x->stages; stage++) {
        const struct part *q = &x->part[x->of_stage[stage]];
        of_stage[stage].f = (double)q->time + 1.0;
        of_stage[stage].i = (double)q[x->v].time + 1.0;
        of_stage[stage].w = (double)q[2 * (ptrdiff_t)x->v].time + 1.0;
    }
    struct cost_table ticks = {.of_stage = of_stage, .wire = (double)x->wire, .latency = (double)x->latency};
    enum status status = schedule_add_transfers_by(s, &ticks);
    free(of_stage);
    return status;
}

static enum status offer_steps(struct search *h, int place, const pipe_step *steps, bool fuse)
{
    struct schedule *s = NULL;
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    TRY(schedule_create(placements[place], &o, &s));
    steps_into_schedule(h->pipes[place], steps, fuse, s);
    enum status status = s->out_of_memory ? fail(NO_MEMORY, "no memory for the actions of auto")
                                          : add_transfers(h->pipes[place], s);
    if (status != OK) {
        schedule_destroy(s);
        return status;
    }
    return offer(h, s, 1e-9);
}

static int64_t budget(int64_t actions, int most, int each)
{
    return actions < most / each ? actions * each : most;
}

/* Searches within `limit` chunks. `known` is the time of what `steps` holds: PIPE_NEVER where that is
 * nothing. */
static enum status search_within(struct search *h, int place, int limit, int64_t goal, int64_t known,
                                 pipe_step *steps)
{
    struct pipe *x = h->pipes[place];
    int64_t played = budget(x->actions, PLAYED, PLAYED_EACH), moved = budget(x->actions, MOVED, MOVED_EACH);
    x->limit = limit;
    known = play_many(x, known, goal, played, steps);
    spend(h, played);
    known = improve(x, known, goal, moved, steps);
    spend(h, moved);
    x->limit = h->limit;
    if (steps == h->steps[place])
        h->known[place] = known;
    bool fuse = h->costs.b > 0.0 && h->costs.b < 1.0; // then it is shorter than its steps
    double least = (double)known / x->second;
    if (known == PIPE_NEVER ||
        (!fuse && h->found->schedule != NULL && least > h->found->makespan * (1.0 + 1e-6)))
        return OK;
    TRY(offer_steps(h, place, steps, false));
    return fuse ? offer_steps(h, place, steps, true) : OK;
}

/* Finds the shortest building block of v_limited.c at this limit; `out` is its time, PIPE_NEVER where there
 * is none. Blocks are played with actions of one unit, so the first search ends at the bound for these. */
static enum status find_block(struct search *h, int place, enum block_rule rule, pipe_step *steps,
                              int64_t *out)
{
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}};
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    struct schedule *s = NULL;
    double bound = 0.0;
    TRY(schedule_bound(h->places[place], &units, h->limit, &bound));
    TRY(schedule_create(placements[place], &o, &s));
    int64_t effort = rule == WITH_SPARES ? BLOCKS : RESERVED;
    int goal = rule == WITH_RESERVE_AND_DRAIN ? (int)ceil(bound * (1.0 - 1e-9)) : 0;
    bool found = v_limited_lists(s, h->limit, rule, goal, effort);
    enum status status = s->out_of_memory ? fail(NO_MEMORY, "no memory for the actions of auto") : OK;
    if (status == OK && found)
        steps_of_schedule(h->pipes[place], s, steps);
    schedule_destroy(s);
    spend(h, effort);
    *out = status == OK && found ? pipe_time(h->pipes[place], steps, NULL) : PIPE_NEVER;
    return status;
}

/* A block that is shorter than the steps found so far is improved too, and only replaces what was found where
 * it is better. */
static enum status improve_block(struct search *h, int place, int64_t goal, int64_t time, pipe_step *steps)
{
    struct pipe *x = h->pipes[place];
    if (time >= h->known[place])
        return OK;
    int64_t moved = budget(x->actions, MOVED, MOVED_EACH);
    time = improve(x, time, goal, moved, steps);
    spend(h, moved);
    h->known[place] = time;
    return offer_steps(h, place, steps, false);
}

/* Returns true if no better schedule exists: as short as the bound, in at most `limit` chunks. */
static bool done(const struct search *h, double bound, int limit)
{
    const struct found *f = h->found;
    return f->schedule != NULL && f->makespan <= bound * (1.0 + 1e-9) &&
           (int64_t)f->peak * h->v <= (int64_t)limit * f->schedule->v;
}

/* The search on the V with two chunks and a limit below 2p chunks. Blocks with a drain come first: where
 * times are equal they mostly reach the bound, and the search ends. `reserved` has room for their steps. */
static enum status search_limited(struct search *h, int place, double bound, int64_t goal,
                                  pipe_step *reserved)
{
    struct pipe *x = h->pipes[place];
    // They are chosen in a pipe of few microbatches, so only their play grows with m.
    bool affordable =
        (int64_t)6 * x->p * (x->p + 1) <= RESERVED / BLOCKS_LEAST && x->actions <= RESERVED / 40;
    int64_t with_drain = PIPE_NEVER, time = PIPE_NEVER;
    if (affordable)
        TRY(find_block(h, place, WITH_RESERVE_AND_DRAIN, reserved, &with_drain));
    if (with_drain <= goal)
        TRY(offer_steps(h, place, reserved, false));
    if (done(h, bound, h->limit))
        return OK;
    TRY(search_within(h, place, h->limit, goal, h->known[place], h->steps[place]));
    if (x->actions <= BLOCKS / BLOCKS_LEAST && !done(h, bound, h->limit)) {
        TRY(find_block(h, place, WITH_SPARES, h->other, &time));
        TRY(improve_block(h, place, goal, time, h->other));
    }
    if (affordable && !done(h, bound, h->limit)) {
        TRY(find_block(h, place, WITH_RESERVE, h->other, &time));
        TRY(improve_block(h, place, goal, time, h->other));
    }
    return done(h, bound, h->limit) ? OK : improve_block(h, place, goal, with_drain, reserved);
}

/* Without a limit, first searches within the memory of one full pipe, then of two. */
static enum status search_place(struct search *h, int place)
{
    struct pipe *x = h->pipes[place];
    double bound = 0.0;
    TRY(schedule_bound(h->places[place], &h->costs, h->limit, &bound));
    int64_t goal = (int64_t)ceil(bound * x->second * (1.0 + 1e-9));
    int64_t full = (int64_t)x->p * x->v;
    for (int pipes = 1; h->o->memory_limit == 0.0 && pipes <= FULL_PIPES; pipes++)
        if (pipes * full < h->limit && !done(h, bound, (int)(pipes * full)))
            TRY(search_within(h, place, (int)(pipes * full), goal, PIPE_NEVER, h->other));
    if (done(h, bound, h->limit))
        return OK;
    if (place == 0 || h->v != 2 || h->limit >= 2 * x->p)
        return search_within(h, place, h->limit, goal, h->known[place], h->steps[place]);
    pipe_step *reserved = calloc((size_t)x->actions, sizeof *reserved);
    enum status status = reserved != NULL ? search_limited(h, place, bound, goal, reserved)
                                          : fail(NO_MEMORY, "no memory for a search for a schedule");
    free(reserved);
    return status;
}

/* ---- one v ---- */

/* The costs of this v's stages; where v is left open, half of what is given for a whole rank, and so on. */
static enum status set_costs(struct search *h)
{
    static const struct cost_table units = {.chunk = {1.0, 1.0, 1.0}};
    const struct cost_table *given = h->o->costs != NULL ? h->o->costs : &units;
    int stages = h->o->p * h->v, parts = h->o->v == 0 ? h->v : 1;
    h->of_stage = calloc((size_t)stages, sizeof *h->of_stage);
    if (h->of_stage == NULL)
        return fail(NO_MEMORY, "no memory for the times of %d stages", stages);
    for (int stage = 0; stage < stages; stage++) {
        struct stage_cost c = given->of_stage != NULL ? given->of_stage[stage / parts] : given->chunk;
        h->of_stage[stage] = (struct stage_cost){c.f / parts, c.i / parts, c.w / parts};
    }
    h->costs = *given;
    h->costs.of_stage = h->of_stage;
    return OK;
}

static enum status set_place(struct search *h, int place)
{
    struct schedule_options o = {.p = h->o->p, .m = h->o->m, .v = h->v};
    TRY(schedule_create(placements[place], &o, &h->places[place]));
    TRY(pipe_create(h->places[place], &h->costs, h->limit, &h->pipes[place]));
    size_t actions = (size_t)h->pipes[place]->actions;
    h->known[place] = PIPE_NEVER;
    h->steps[place] = calloc(actions, sizeof *h->steps[place]);
    if (h->other == NULL)
        h->other = calloc(actions, sizeof *h->other);
    return h->steps[place] != NULL && h->other != NULL
               ? OK
               : fail(NO_MEMORY, "no memory for a search for a schedule");
}

static enum status search_with(struct search *h)
{
    bool one_way = h->v == 1 || h->o->p == 1; // then both placements are the same
    TRY(set_costs(h));
    TRY(set_place(h, 0));
    if (!one_way)
        TRY(set_place(h, 1));
    TRY(try_named(h));
    for (int place = PLACEMENTS - 1; place >= 0; place--)
        if (h->pipes[place] != NULL)
            TRY(search_place(h, place));
    return OK;
}

static int limit_of(const struct schedule_options *o, int v)
{
    double all = (double)o->m * v, limit = floor(o->memory_limit * v * (1.0 + 1e-9));
    return (int)(o->memory_limit > 0.0 && limit < all ? limit : all);
}

/* What a search with this v may take at most. */
static double effort_of(const struct schedule_options *o, int v)
{
    int64_t actions = actions_of(o, v), families = 0;
    int searches = (v == 1 || o->p == 1 ? 1 : PLACEMENTS) * (o->memory_limit > 0.0 ? 1 : 1 + FULL_PIPES);
    while (schedule_about((int)families) != NULL)
        families++;
    double blocks =
        v == 2 && o->p > 1 ? BLOCKS + 2.0 * RESERVED + 3.0 * (double)budget(actions, MOVED, MOVED_EACH) : 0.0;
    return blocks + (double)(families * NAMED_EACH * actions) +
           searches * (double)(budget(actions, PLAYED, PLAYED_EACH) + budget(actions, MOVED, MOVED_EACH));
}

static enum status search_v(const struct schedule_options *o, int v, struct effort *effort,
                            struct found *found)
{
    struct search h = {.o = o, .effort = effort, .v = v, .limit = limit_of(o, v), .found = found};
    double spent = effort->spent + effort_of(o, v); // also where it ended early
    enum status status = search_with(&h);
    effort->spent = spent;
    for (int place = 0; place < PLACEMENTS; place++) {
        schedule_destroy(h.places[place]);
        pipe_destroy(h.pipes[place]);
        free(h.steps[place]);
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
            if (action_fact(list->actions[i].kind)->computes)
                list->actions[kept++] = list->actions[i];
        list->count = kept;
    }
    s->has_transfers = false;
}

static enum status search(const struct schedule_options *o, struct schedule **out)
{
    struct found found = {.schedule = NULL};
    struct effort effort = {.of_all = 0.0};
    int from = o->v == 0 ? 1 : o->v, to = o->v == 0 ? 2 : o->v;
    enum status status = OK;
    for (int v = from; v <= to; v++)
        effort.of_all += effort_of(o, v);
    for (int v = from; status == OK && v <= to; v++)
        status = search_v(o, v, &effort, &found);
    if (status == OK && found.schedule == NULL)
        status = fail(BAD_SCHEDULE, "auto found no schedule that holds %g microbatches", o->memory_limit);
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

static const char *refuses_bad_costs(const struct schedule_options *o)
{
    if (o->v > UINT16_MAX / 3) // a step of the search is one of 3v parts, in 16 bits
        return "its search knows no chunk beyond 21845";
    if (o->costs != NULL && !are_times(o))
        return "its costs are times of 0 or more";
    if (o->memory_limit == 0.0 || o->memory_limit >= 1.0)
        return NULL;
    return "a rank must hold a whole microbatch's activations: memory_limit 1 or more, or 0 for no limit";
}

static int peak(const struct schedule *s, int rank)
{
    (void)rank;
    return s->limit;
}

const struct family family_auto = {
    .about = {.name = "auto",
              .idea =
                  "Searched for: the shortest for given times of F, I, W and a message, within given memory; "
                  "holds weights once.",
              .takes = "any p, any m, v up to 21845"},
    .placement = PLACE_LOOPED,
    .default_v = 1,
    .refuses = refuses_bad_costs,
    .search = search,
    .peak_claim = peak,
};
