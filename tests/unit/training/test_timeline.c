// SPDX-License-Identifier: Apache-2.0
/* Unsynchronized clocks, and costs computed from a timeline. */
#include "tests/unit/schedules/schedule_tools.h"
#include "tools/cli/schedule/cmd_schedule_print.h"
#include "trainer/engine/step_stats.h"
#include "trainer/run/timeline.h"

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
    sim = simulation_create(s);
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
    struct step_stats stats[2] = {{.rank = 0}, {.rank = 1}};
    struct step_summary summary;
    for (int rank = 0; rank < 2; rank++) {
        const struct rank_time *r = &sim->ranks[rank];
        stats[rank].span_s = r->last_end - r->first_start;
        stats[rank].busy_s = r->busy;
    }
    step_stats_summarize(stats, 2, &summary);
    cr_assert_eq(sim->ranks[1].bubble, 2.0);
    cr_assert_eq(summary.bubble_fraction, 0.4);
    cr_assert_eq(bubble_fraction(sim), 0.4);
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* Ranks are listed in any order. */
Test(timeline, the_summary_of_all_ranks)
{
    const struct step_stats ranks[] = {
        {.rank = 3,
         .request = REQUEST_SAVE,
         .compute_s = 1.0,
         .wait_s = 2.0,
         .data_s = 0.5,
         .peak_total_bytes = 7,
         .peak_bytes = {1, 9},
         .slots = {{2, 60}}},
        {.rank = 0,
         .compute_s = 3.0,
         .wait_s = 0.25,
         .data_s = 0.25,
         .span_s = 1.0,
         .busy_s = 1.0 + 1e-12,
         .peak_total_bytes = 8,
         .peak_bytes = {2, 8},
         .slots = {{3, 50}}},
        {.rank = 1, .writes = 1, .compute_s = 3.0, .wait_s = 0.5, .data_s = 1.0, .peak_bytes = {0, 0, 5}},
    };
    struct step_summary all;
    step_stats_summarize(ranks, 3, &all);
    cr_assert(all.request == REQUEST_SAVE && all.writes && all.has_times);
    cr_assert_eq(all.bubble_fraction, 0.0); // rounding does not make it negative
    cr_assert(all.compute_s.least == 1.0 && all.compute_s.most == 3.0 && all.slowest == 0);
    cr_assert(all.wait_s.least == 0.25 && all.wait_s.most == 2.0);
    cr_assert(all.data_s.least == 0.25 && all.data_s.most == 1.0);
    cr_assert(all.peak_total_bytes == 8 && all.peak_bytes[0] == 2 && all.peak_bytes[1] == 9);
    cr_assert(all.peak_bytes[2] == 5 && all.slots[0].slots == 3 && all.slots[0].bytes == 60);

    const struct step_stats unknown = {.rank = 5}; // a GPU's first step
    step_stats_summarize(&unknown, 1, &all);
    cr_assert(!all.has_times && !all.writes && all.request == REQUEST_NOTHING && all.slowest == 5);
    cr_assert_eq(all.bubble_fraction, 0.0);
}

/* Begins and ends actions 0 and 2 of 3 in a step. */
static void record_step(struct event_log *log, struct stream *stream, int step)
{
    rank_context()->step = step;
    event_log_begin_step(log, stream);
    for (int position = 0; position < 3; position += 2) {
        event_log_begin(log, position, stream);
        event_log_end(log);
    }
    event_log_end_step(log, step);
}

/* A step, and the one before; an action without ops has the end of the one before it; the time of dropped
 * actions is lost. */
Test(timeline, the_event_log_holds_two_steps)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct event_log log = {.device = NULL};
    cr_assert_eq(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &device), OK);
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(
        event_log_attach(&(struct event_log_config){.device = device, .actions = 3, .last = -1}, &log), OK);
    double lost_s = -1.0;
    cr_assert_null(event_log_actions(&log, 1, &lost_s));
    for (int step = 1; step <= 2; step++)
        record_step(&log, stream, step);
    cr_assert_gt(event_log_begin_s(&log, 2), event_log_begin_s(&log, 1));
    const struct timed_action *actions = event_log_actions(&log, 1, &lost_s);
    cr_assert_not_null(actions);
    cr_assert(actions[0].begin_s == 0.0 && actions[0].end_s > 0.0 && actions[2].begin_s > actions[1].end_s);
    cr_assert(actions[1].begin_s == actions[0].end_s && actions[1].end_s == actions[0].end_s);
    cr_assert_eq(lost_s, 0.0);

    record_step(&log, stream, 3);
    cr_assert_null(event_log_actions(&log, 1, &lost_s));
    const double first_s = event_log_begin_s(&log, 3);
    event_log_drop(&log, 3);
    record_step(&log, stream, 3);
    cr_assert_not_null(event_log_actions(&log, 3, &lost_s));
    cr_assert_float_eq(event_log_begin_s(&log, 3) - first_s, lost_s, lost_s); // two readings of the clock
    cr_assert_gt(lost_s, 0.0);
    stream_destroy(stream);
    event_log_close(&log);
    device_close(device);
}

/* F and B twice: busy, and of each kind the fastest. The first B was disturbed. */
Test(timeline, statistics_of_actions)
{
    struct schedule *s = build("1f1b", 1, 2, 1);
    const struct timed_action actions[] = {{.begin_s = 0.0, .end_s = 2.0, .compute_s = 2.0},
                                           {.begin_s = 2.0, .end_s = 9.0, .waited_s = 1.0, .compute_s = 6.0},
                                           {.begin_s = 10.0, .end_s = 11.0, .compute_s = 1.0},
                                           {.begin_s = 11.0, .end_s = 14.0, .compute_s = 3.0}};
    struct step_stats stats = {.rank = 0};
    step_stats_set_times(&stats, s, 0, actions, 0.5);
    cr_assert(stats.span_s == 14.5 && stats.busy_s == 13.0 && stats.compute_s == 12.0);
    cr_assert_eq(stats.fastest_s, 4.0);
    schedule_destroy(s);
}
