// SPDX-License-Identifier: Apache-2.0
/* auto and its lower bound. The bound is checked against every possible schedule, in pipelines so small
 * that all of them can be enumerated; auto against that optimum, against every named family, and against
 * the bound. */
#include "schedules/bound.h"
#include "tests/support/auto_tables.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>
#include <stdlib.h>

/* ---- every schedule ---- */

enum { MAX_LENGTH = 12, MAX_LISTS = 20000, MAX_STAGES = 6 };

/* A pipeline so small that every list of every rank can be enumerated. */
struct tiny {
    int p, m, v;
    int limit;       // chunks
    bool free_order; // of microbatches, except for W
    struct cost_table costs;
    struct stage_cost of_stage[MAX_STAGES];
    struct action (*lists)[MAX_LENGTH]; // stage: the chunk
    int count;
    struct schedule *s;
    double shortest;
};

/* Counts of compared cost tables. */
struct tally {
    int tables, reached, found;
};

/* True if microbatch k may run next: it is not done, its inputs are, and so are those before it where
 * order is required. A bit of done[kind][chunk] is a microbatch. */
static bool may_follow(const struct tiny *t, unsigned done[3][2], int kind, int chunk, int k)
{
    unsigned bit = 1U << k, needs = bit;
    if (kind > 0)
        needs &= done[kind - 1][chunk];
    if (kind == 0 && chunk > 0)
        needs &= done[0][chunk - 1];
    if (kind == 1 && chunk + 1 < t->v)
        needs &= done[1][chunk + 1];
    bool in_order = (done[kind][chunk] & (bit - 1)) == bit - 1 || (t->free_order && kind != 2);
    return (done[kind][chunk] & bit) == 0 && needs != 0 && in_order;
}

/* Enumerates every continuation from `at` actions. */
static void list_all(struct tiny *t, struct action *list, int at, unsigned done[3][2], int held)
{
    static const enum action_kind kinds[] = {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT};
    if (at == 3 * t->v * t->m) {
        cr_assert_lt(t->count, MAX_LISTS);
        memcpy(t->lists[t->count++], list, MAX_LENGTH * sizeof *list);
        return;
    }
    for (int kind = 0; kind < 3; kind++)
        for (int chunk = 0; chunk < t->v; chunk++)
            for (int k = 0; k < t->m; k++) {
                if (!may_follow(t, done, kind, chunk, k) || (kind == 0 && held == t->limit))
                    continue;
                list[at] = (struct action){.kind = kinds[kind], .stage = chunk, .microbatch = k, .peer = -1};
                done[kind][chunk] ^= 1U << k;
                list_all(t, list, at + 1, done, held + (kind == 0) - (kind == 2));
                done[kind][chunk] ^= 1U << k;
            }
}

static void try_all(struct tiny *t, int rank)
{
    struct simulation *sim = NULL;
    for (int i = 0; rank < t->p && i < t->count; i++) {
        t->s->ranks[rank].count = 0;
        for (int at = 0; at < 3 * t->v * t->m; at++) {
            struct action a = t->lists[i][at];
            a.stage = schedule_stage(t->s, rank, a.stage);
            action_list_add(&t->s->ranks[rank], a);
        }
        try_all(t, rank + 1);
    }
    if (rank == t->p && simulate(t->s, &t->costs, NULL, &sim) == OK) {
        t->shortest = fmin(t->shortest, sim->makespan);
        simulation_destroy(sim);
    }
}

static double optimum(struct tiny *t)
{
    struct action list[MAX_LENGTH];
    unsigned done[3][2] = {{0}};
    memset(list, 0, sizeof list);
    t->shortest = INFINITY;
    t->count = 0;
    t->lists = calloc(MAX_LISTS, sizeof *t->lists);
    cr_assert_not_null(t->lists);
    list_all(t, list, 0, done, 0);
    try_all(t, 0);
    free(t->lists);
    return t->shortest;
}

/* Integer costs, so nothing is rounded. */
static void random_costs(struct rng *rng, struct tiny *t)
{
    for (int stage = 0; stage < t->p * t->v; stage++)
        t->of_stage[stage] =
            (struct stage_cost){.f = rng_int(rng, 0, 8), .i = rng_int(rng, 0, 8), .w = rng_int(rng, 0, 8)};
    t->costs = (struct cost_table){
        .of_stage = t->of_stage, .wire = rng_int(rng, 0, 1), .latency = rng_int(rng, 0, 2)};
}

/* One table: no schedule beats the bound, and auto is about as short as the shortest. It may be shorter,
 * as it chooses the placement, and longer, as its messages wait for each other on an edge. */
static void expect_bound(struct tiny *t, const char *where, struct tally *tally)
{
    double bound, shortest = optimum(t);
    cr_assert_eq(schedule_bound(t->s, &t->costs, t->limit, &bound), OK);
    cr_assert_leq(bound, shortest, "%s: bound %g, but %g is possible", where, bound, shortest);
    struct schedule *s = build_with((struct schedule_options){.name = "auto",
                                                              .p = t->p,
                                                              .m = t->m,
                                                              .v = t->v,
                                                              .costs = &t->costs,
                                                              .memory_limit = (double)t->limit / t->v});
    struct simulation *sim = simulated(s, t->costs);
    cr_assert_leq(sim->makespan, 1.1 * shortest, "%s: %g instead of %g", where, sim->makespan, shortest);
    tally->tables++;
    tally->reached += bound == shortest;
    tally->found += sim->makespan <= shortest;
    simulation_destroy(sim);
    schedule_destroy(s);
}

static void expect_bounds(const struct family *placement, int p, int m, int v, int tables,
                          struct tally *tally)
{
    struct rng rng = {.generator = philox_named((uint64_t)(100 * p + 10 * m + v), "auto.tiny")};
    struct schedule_options options = {.p = p, .m = m, .v = v};
    for (int limit = v; limit <= m * v; limit++)
        for (int n = 0; n < tables; n++) {
            struct tiny t = {.p = p, .m = m, .v = v, .limit = limit};
            char where[120];
            snprintf(where, sizeof where, "as %s, p %d m %d v %d limit %d, table %d", placement->about.name,
                     p, m, v, limit, n);
            t.s = schedule_create(placement, &options);
            random_costs(&rng, &t);
            expect_bound(&t, where, tally);
            schedule_destroy(t.s);
        }
}

Test(schedule_auto, no_schedule_beats_the_bound)
{
    struct tally tally = {0};
    expect_bounds(&family_1f1b, 1, 3, 1, cases(20), &tally);
    expect_bounds(&family_1f1b, 2, 1, 1, cases(20), &tally);
    expect_bounds(&family_1f1b, 2, 2, 1, cases(30), &tally);
    expect_bounds(&family_1f1b, 2, 3, 1, cases(30), &tally);
    expect_bounds(&family_1f1b, 3, 2, 1, cases(30), &tally);
    expect_bounds(&family_1f1b, 2, 1, 2, cases(30), &tally);
    expect_bounds(&family_zb_v, 2, 1, 2, cases(30), &tally);
    expect_bounds(&family_zb_v, 3, 1, 2, cases(20), &tally);
    if (!fewer_cases()) { // the longest of them
        expect_bounds(&family_1f1b, 3, 3, 1, 1, &tally);
        expect_bounds(&family_1f1b, 2, 2, 2, 1, &tally);
        expect_bounds(&family_zb_v, 2, 2, 2, 1, &tally);
    }
    // A loose bound would prove nothing.
    cr_assert_geq(10 * tally.reached, 8 * tally.tables, "%d of %d", tally.reached, tally.tables);
    cr_assert_geq(100 * tally.found, 99 * tally.tables, "%d of %d", tally.found, tally.tables);
}

/* What auto does not search: F and I in another order of microbatches never make it shorter. */
Test(schedule_auto, microbatch_order_costs_nothing)
{
    struct rng rng = {.generator = philox_named(1, "auto.order")};
    for (int n = 0; n < cases(30); n++) {
        struct tiny t = {.p = 2, .m = 2 + (n % 10 == 0 ? 1 : 0), .v = 1, .limit = 2};
        t.s = schedule_create(&family_1f1b, &(struct schedule_options){.p = 2, .m = t.m, .v = 1});
        random_costs(&rng, &t);
        double in_order = optimum(&t);
        int lists = t.count;
        t.free_order = true;
        cr_assert_eq(optimum(&t), in_order);
        cr_assert_gt(t.count, lists);
        schedule_destroy(t.s);
    }
}

/* ---- random tables ---- */

/* bench_auto runs 500 of larger pipelines. */
Test(schedule_auto, as_short_as_every_family_and_near_the_bound)
{
    enum { TABLES = 40 };
    struct auto_outcome all[TABLES];
    int with_named = 0, shorter = 0, count = fewer_cases() ? TABLES / 10 : TABLES;
    for (int i = 0; i < count; i++) {
        struct auto_outcome *o = &all[i];
        cr_assert_eq(auto_table((uint64_t)i, 5, 14, o), OK, "%s", fail_text());
        cr_assert(o->limit == 0.0 || o->peak <= o->limit + 1e-9, "table %d: holds %g of %g", i, o->peak,
                  o->limit);
        cr_assert_geq(o->makespan, o->bound * (1.0 - 1e-9), "table %d: %g, bound %g", i, o->makespan,
                      o->bound);
        with_named += o->named > 0.0;
        shorter += o->makespan < o->named * (1.0 - 1e-6);
        cr_assert(o->named == 0.0 || o->makespan <= o->named, "table %d: %.17g, %s takes %.17g", i,
                  o->makespan, o->shortest, o->named);
    }
    auto_sort(all, count);
    cr_assert_geq(10 * shorter, 3 * with_named, "%d of %d", shorter, with_named);
    cr_assert_leq(all[count / 2].makespan, 1.02 * all[count / 2].bound);
}

/* Every rank builds its own, with the same result; the unit of time does not matter. */
Test(schedule_auto, is_a_function_of_its_options)
{
    struct cost_table costs = {.chunk = {1.0, 1.25, 0.75}, .wire = 0.125};
    struct cost_table longer = {.chunk = {256.0, 320.0, 192.0}, .wire = 32.0};
    struct schedule_options options = {
        .name = "auto", .p = 4, .m = 10, .v = 2, .costs = &costs, .memory_limit = 3.5};
    struct schedule *a = build_with(options), *b = build_with(options);
    options.costs = &longer;
    struct schedule *c = build_with(options);
    expect_same_lists(a, b);
    expect_same_lists(a, c);
    for (int rank = 0; rank < a->p; rank++)
        cr_assert_leq(schedule_peak(a, rank), 7);
    schedule_destroy(a);
    schedule_destroy(b);
    schedule_destroy(c);
}

/* Also where transfers block, or a B takes less than its halves, which auto models too. */
Test(schedule_auto, other_machines)
{
    const struct cost_table tables[] = {{.chunk = {1.0, 1.0, 1.0}, .wire = 0.25, .blocking = true},
                                        {.chunk = {1.0, 1.0, 1.0}, .b = 0.5, .latency = 0.5},
                                        {.chunk = {1.0, 1.0, 0.0}},
                                        {.chunk = {0.0, 0.0, 0.0}, .wire = 1.0}};
    const char *const names[] = {"1f1b", "zb-h1", "gpipe"};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct schedule *s = build_with((struct schedule_options){
            .name = "auto", .p = 4, .m = 8, .v = 1, .costs = &tables[i], .memory_limit = 4.0});
        struct simulation *sim = simulated(s, tables[i]);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            struct schedule *named = build(names[k], 4, 8, 1);
            struct simulation *other = simulated(named, tables[i]);
            cr_assert(sim->makespan <= other->makespan || schedule_peak(named, 0) > 4, "%zu %s", i, names[k]);
            simulation_destroy(other);
            schedule_destroy(named);
        }
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* With v left open, the times are those of whole ranks; without transfers there are none. */
Test(schedule_auto, chooses_v)
{
    struct cost_table whole = {.chunk = {1.0, 1.0, 1.0}, .wire = 0.01},
                      slow = {.chunk = {1.0, 1.0, 1.0}, .wire = 3.0};
    struct schedule_options options = {.name = "auto", .p = 4, .m = 8, .costs = &whole, .memory_limit = 4.0};
    struct schedule *s = build_with(options);
    cr_assert_eq(s->v, 2);
    cr_assert(s->has_transfers);
    schedule_destroy(s);
    options.costs = &slow;
    options.without_transfers = true;
    s = build_with(options);
    cr_assert_eq(s->v, 1);
    cr_assert(!s->has_transfers);
    schedule_destroy(s);
}

/* The progress callback is called during the search, and at its end. */
static void note_percent(void *context, double percent)
{
    double *latest = context;
    cr_assert(percent >= latest[0] && percent <= 100.0 + 1e-9, "%g after %g", percent, latest[0]);
    latest[0] = percent;
    latest[1]++;
}

Test(schedule_auto, reports_progress)
{
    static const char *const names[] = {"auto", "v-min", "1f1b"};
    for (int v = 0; v <= 2; v++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            double latest[2] = {0.0, 0.0};
            struct progress progress = {.report = note_percent, .context = latest};
            struct schedule_options options = {
                .name = names[i], .p = 3, .m = 5, .v = v, .memory_limit = v, .progress = &progress};
            if (schedule_unsupported(&options) != NULL)
                continue;
            schedule_destroy(build_with(options));
            cr_assert(latest[0] >= 100.0 && latest[1] >= (i == 0 ? 12.0 : 3.0), "%s v %d: %g in %g", names[i],
                      v, latest[0], latest[1]);
        }
}

Test(schedule_auto, rejects_invalid_options)
{
    const double limits[] = {0.5, -1.0, NAN};
    struct schedule *s = NULL;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct schedule_options options = {.name = "auto", .p = 4, .m = 8, .memory_limit = limits[i]};
        cr_assert_eq(schedule_build(&options, &s), BAD_SCHEDULE);
        cr_assert_not_null(strstr(fail_text(), "memory_limit must be 1 or more"), "%s", fail_text());
    }
    const struct cost_table tables[] = {
        {.chunk = {-1.0, 1.0, 1.0}}, {.chunk = {1.0, NAN, 1.0}}, {.wire = INFINITY}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct schedule_options options = {.name = "auto", .p = 4, .m = 8, .costs = &tables[i]};
        cr_assert_eq(schedule_build(&options, &s), BAD_SCHEDULE);
        cr_assert_not_null(strstr(fail_text(), "finite and 0 or more"), "%s", fail_text());
    }
}
