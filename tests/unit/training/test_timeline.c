// SPDX-License-Identifier: Apache-2.0
/* Unsynchronized clocks, and costs computed from a timeline. */
#include "tests/unit/schedules/schedule_tools.h"
#include "tools/cli/schedule/cmd_schedule_print.h"
#include "trainer/engine/timeline.h"

#include <math.h>
#include <stdlib.h>

/* Two ranks at barriers: neither leaves before both have arrived, some time passes until each wakes, and
 * the second one's clock is ahead. */
static void wait_at_barrier(struct rng *rng, double ahead, struct barrier_times out[2])
{
    double now = 1000.0;
    for (int i = 0; i < TIMELINE_BARRIERS; i++) {
        double came[2], left[2];
        for (int rank = 0; rank < 2; rank++)
            came[rank] = now + rng_int(rng, 0, 1000) * 1e-6;
        double open = came[0] > came[1] ? came[0] : came[1];
        for (int rank = 0; rank < 2; rank++) {
            left[rank] = open + rng_int(rng, 1, 50) * 1e-6;
            out[rank].arrived_s[i] = came[rank] + rank * ahead;
            out[rank].left_s[i] = left[rank] + rank * ahead;
        }
        now = open + 0.001;
    }
}

Test(timeline, measures_clock_offsets)
{
    struct rng rng = {.generator = philox_named(1, "clocks")};
    static const double clocks[] = {0.0, 12345.678, -0.5, 3600.0 * 24 * 300};
    for (int i = 0; i < 400; i++) {
        struct barrier_times seen[2];
        double ahead = clocks[i % 4];
        wait_at_barrier(&rng, ahead, seen);
        double found = timeline_clock_offset(&seen[0], &seen[1]);
        // Each is late by 50 microseconds at most.
        cr_assert(fabs(found - ahead) <= 50e-6 + 1e-8, "%g, expected %g", found, ahead);
        if (i % 4 == 0)
            cr_assert_eq(found, 0.0);
    }
}

Test(timeline, keeps_the_last_complete_step)
{
    struct timeline t;
    cr_assert_eq(timeline_create(2, &t), OK);
    timeline_record(&t, 0, 1.0, 2.0);
    timeline_record(&t, 1, 2.0, 3.0);
    timeline_end_step(&t);
    timeline_record(&t, 0, 4.0, 5.0); // of the next step
    cr_assert_eq(t.complete[0], 1.0);
    cr_assert_eq(t.complete[3], 3.0);
    timeline_end_step(&t);
    cr_assert_eq(t.complete[0], 4.0);
    timeline_destroy(&t);
}

/* A schedule simulated with random costs for each stage, and simulated again with the costs computed from the
 * result: the same makespan. Times are sums of eighths, so they are exact; so are means of equal values. */
static void expect_round_trip(struct rng *rng, struct schedule_options options)
{
    struct schedule *s = build_with(options);
    struct stage_cost *given = calloc((size_t)s->stages, sizeof *given);
    struct stage_cost *found = calloc((size_t)s->stages, sizeof *found);
    double *whole = calloc((size_t)s->stages, sizeof *whole);
    bool split = strncmp(options.name, "zb", 2) == 0;
    cr_assert(given != NULL && found != NULL && whole != NULL);
    for (int stage = 0; stage < s->stages; stage++)
        given[stage] = (struct stage_cost){rng_int(rng, 1, 16) / 8.0, rng_int(rng, 1, 16) / 8.0,
                                           rng_int(rng, 1, 16) / 8.0};
    struct cost_table costs = {.of_stage = given, .latency = rng_int(rng, 0, 8) / 8.0}, read;
    struct simulation *first = simulated(s, costs);
    timeline_costs(s, first, found, whole, &read);
    cr_assert(read.of_stage == found && read.b_of_stage == whole);
    for (int stage = 0; stage < s->stages; stage++) {
        cr_assert_eq(found[stage].f, given[stage].f);
        cr_assert_eq(found[stage].i, split ? given[stage].i : 0.0);
        cr_assert_eq(found[stage].w, split ? given[stage].w : 0.0);
        cr_assert_eq(whole[stage], split ? 0.0 : given[stage].i + given[stage].w);
    }
    cr_assert(read.latency >= costs.latency || s->p == 1);
    read.latency = costs.latency;
    struct simulation *second = simulated(s, read);
    cr_assert_eq(first->makespan, second->makespan, "%s p %d m %d v %d", options.name, s->p, s->m, s->v);
    simulation_destroy(first);
    simulation_destroy(second);
    free(given);
    free(found);
    free(whole);
    schedule_destroy(s);
}

Test(timeline, recovers_the_costs_from_the_times)
{
    struct rng rng = {.generator = philox_named(2, "costs")};
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
    for (int i = 0; i < cases(300); i++)
        expect_round_trip(&rng, (struct schedule_options){.name = names[i % 5],
                                                          .p = rng_int(&rng, 1, 6),
                                                          .m = rng_int(&rng, 1, 12)});
}

/* The start and end of an action, given by hand. */
struct interval {
    const char *action;
    double start, end;
};

/* 1F1B on two ranks with one microbatch. */
static struct simulation *by_hand(const struct schedule *s, const struct interval times[4])
{
    struct simulation *sim = NULL;
    cr_assert_eq(simulation_create(s, &sim), OK);
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++)
            for (size_t k = 0; k < 4; k++) {
                char name[ACTION_CHARS];
                if (strcmp(action_text(s->ranks[rank].actions[i], name), times[k].action) == 0)
                    sim->times[sim->first[rank] + i] =
                        (struct action_time){.start = times[k].start, .end = times[k].end, .cause = -1};
            }
    simulation_total(s, sim);
    return sim;
}

/* The message takes 0.5, F 1 and 2, B 3 and 4. */
Test(timeline, message_time_is_the_shortest_production_to_consumption)
{
    struct schedule *s = build("1f1b", 2, 1, 1);
    const struct interval times[] = {
        {"0F0", 0, 1}, {"1F0", 1.5, 3.5}, {"1B0", 3.5, 7.5}, {"0B0", 8.25, 11.25}};
    struct simulation *sim = by_hand(s, times);
    cr_assert_eq(sim->makespan, 11.25);
    cr_assert_eq(sim->ranks[0].busy, 4.0);
    cr_assert_eq(sim->ranks[0].bubble, 7.25);
    cr_assert_eq(sim->bubble, 7.25);
    cr_assert_eq(sim->ranks[1].bubble, 0.0);
    struct stage_cost of_stage[2];
    double whole[2];
    struct cost_table costs;
    timeline_costs(s, sim, of_stage, whole, &costs);
    cr_assert_eq(costs.latency, 0.5);
    cr_assert_eq(of_stage[1].f, 2.0);
    cr_assert_eq(of_stage[1].i, 0.0); // not measured
    cr_assert_eq(of_stage[1].w, 0.0);
    cr_assert_eq(whole[1], 4.0);
    struct text text = {0};
    timeline_costs_text(s, &costs, &text);
    cr_assert_str_eq(text.chars, "f=1.5,b=3.5,comm=0.5");
    text_free(&text);
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* Rank 0 waits 4 of 10, rank 1 waits 2 of 3: the bubble is that of rank 0, though rank 1 waits for the
 * greater part of its time. The statistics reported by the ranks of a run equal the simulator's for the same
 * times. */
Test(timeline, the_bubble_is_that_of_the_rank_that_waits_longest)
{
    struct schedule *s = build("1f1b", 2, 1, 1);
    const struct interval times[] = {{"0F0", 0, 3}, {"1F0", 3.5, 4}, {"1B0", 6, 6.5}, {"0B0", 7, 10}};
    struct simulation *sim = by_hand(s, times);
    double greatest = 0.0;
    for (int rank = 0; rank < 2; rank++) {
        const struct rank_time *r = &sim->ranks[rank];
        greatest = fmax(greatest, timeline_bubble_stat(r->last_end - r->first_start, r->busy));
    }
    cr_assert_eq(sim->ranks[1].bubble, 2.0);
    cr_assert_float_eq(timeline_bubble_fraction(greatest), 0.4, 1e-9);
    cr_assert_eq(bubble_fraction(sim), 0.4);
    simulation_destroy(sim);
    schedule_destroy(s);
}

Test(timeline, bubble_stat_round_trips)
{
    const struct {
        double span_s, busy_s, fraction, within;
    } cases[] = {
        {0.0, 0.0, 0.0, 0.0},          // a rank that did nothing
        {1.0, 1.0 + 1e-12, 0.0, 0.0},  // rounding must not make it negative
        {1.0, 0.75, 0.25, 1e-9},       //
        {3e-6, 1e-6, 2.0 / 3.0, 1e-9}, //
        {20000.0, 5000.0, 0.75, 1e-5}, // hours
        {1e9, 1.0, 0.99999, 1e-4},     // nearly all of it
        {1e9, 0.5e9, 0.5, 1e-4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double stat = timeline_bubble_stat(cases[i].span_s, cases[i].busy_s);
        cr_assert_float_eq(timeline_bubble_fraction(stat), cases[i].fraction, cases[i].within + 1e-300,
                           "%g of %g: %g", cases[i].busy_s, cases[i].span_s, stat);
    }
    cr_assert_gt(timeline_bubble_stat(10.0, 6.0), timeline_bubble_stat(3.0, 1.0));
}

/* The longest time of all ranks and its rank, in one maximum. */
Test(timeline, the_slowest_rank_of_a_maximum)
{
    double most = fmax(timeline_slowest_stat(0.0123456, 7), timeline_slowest_stat(0.0123451, 100000));
    cr_assert_eq(timeline_slowest_rank(most), 100000); // equal in microseconds: the higher rank
    cr_assert_float_eq(timeline_slowest_s(most), 0.012345, 1e-12);
    most = fmax(timeline_slowest_stat(3600.5, 1), timeline_slowest_stat(3600.4, 1048575));
    cr_assert_eq(timeline_slowest_rank(most), 1);
    cr_assert_float_eq(timeline_slowest_s(most), 3600.5, 1e-9);
    double least = fmax(timeline_min_stat(0.25), timeline_min_stat(1e-6));
    cr_assert_float_eq(timeline_min_s(least), 1e-6, 1e-9);
}
