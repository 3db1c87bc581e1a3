// SPDX-License-Identifier: Apache-2.0
/* The papers' results as formulas over sizes: peaks rank by rank, makespans for f = i = w = 1; and the
 * results of the authors' own schedulers. (Bubbles for any f, i and w are in test_schedule_simulate.) */
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>

/* Maximum number of microbatches between their F and their I (or B). */
static int peak_until_input(const struct schedule *s, int rank)
{
    int held = 0, peak = 0;
    for (int i = 0; i < s->ranks[rank].count; i++) {
        const struct action_traits *traits = action_traits(s->ranks[rank].actions[i].kind);
        held += (traits->forward ? 1 : 0) - (traits->backward_input ? 1 : 0);
        peak = held > peak ? held : peak;
    }
    return peak;
}

static void expect_peaks(const char *name, int p, int m, int (*until_weight)(int p, int rank),
                         int (*until_input)(int p, int rank))
{
    struct schedule *s = build_lists(name, p, m, 0);
    for (int rank = 0; rank < p; rank++) {
        int all = m * s->chunks, peak = schedule_peak(s, rank), early = peak_until_input(s, rank);
        cr_assert_eq(peak, least(until_weight(p, rank), all), "%s p %d m %d rank %d: %d", name, p, m, rank,
                     peak);
        cr_assert(until_input == NULL || early == least(until_input(p, rank), all),
                  "%s p %d m %d rank %d: %d", name, p, m, rank, early);
    }
    schedule_destroy(s);
}

static int rest_of_pipe(int p, int rank)
{
    return p - rank;
}

static int whole_pipe(int p, int rank)
{
    (void)rank;
    return p;
}

static int twice_the_pipe(int p, int rank)
{
    (void)rank;
    return 2 * p;
}

static int first_round_trip(int p, int rank)
{
    (void)rank;
    return 2 * p - 1;
}

static int twice_the_rest(int p, int rank)
{
    return 2 * (p - rank) - 1;
}

/* Exactly these, on every rank: 1F1B min(p-s, m); ZB-H1 min(p, m); ZB-H2 2p-1, of which 2(p-s)-1 wait for
 * their I; ZB-V 2p chunks once the pipeline is full. */
Test(forms, peaks_of_every_rank)
{
    for (int p = 1; p <= 12; p++)
        for (int m = 1; m <= 30; m++) {
            expect_peaks("1f1b", p, m, rest_of_pipe, rest_of_pipe);
            expect_peaks("zb-h1", p, m, whole_pipe, rest_of_pipe);
            expect_peaks("zb-h2", p, m, first_round_trip, twice_the_rest);
            if (m >= 2 * p - 1)
                expect_peaks("zb-v", p, m, twice_the_pipe, NULL);
        }
}

/* V-Half: p + 2 chunks. V-Min: about 2p/3 + 2, which on rank 0 is the limit, and on the others the next
 * even number where 2p/3 + 2 is odd. Reached on some rank once the pipeline is full. */
Test(forms, peaks_of_limited_memory)
{
    for (int p = 1; p <= (fewer_cases() ? 10 : 20); p++)
        for (int m = 1; m <= 3 * p; m += 1 + p / 4) {
            struct schedule *half = build_lists("v-half", p, m, 0), *min = build_lists("v-min", p, m, 0);
            int most_half = 0, most_min = 0;
            for (int rank = 0; rank < p; rank++) {
                int of_half = schedule_peak(half, rank), of_min = schedule_peak(min, rank);
                cr_assert_leq(of_half, p + 2);
                cr_assert_leq(of_min, rank == 0 ? 2.0 * p / 3 + 2 : 2.0 * p / 3 + 8.0 / 3,
                              "p %d m %d rank %d: %d", p, m, rank, of_min);
                most_half = of_half > most_half ? of_half : most_half;
                most_min = of_min > most_min ? of_min : most_min;
            }
            cr_assert(m < 2 * p || (most_half == p + 2 && most_min == 2 * ((p + 1) / 3) + 2) || p == 1,
                      "p %d m %d: %d, %d", p, m, most_half, most_min);
            schedule_destroy(min);
            schedule_destroy(half);
        }
}

static double makespan(const char *name, int p, int m, int v, struct stage_cost cost)
{
    struct schedule *s = build_lists(name, p, m, v);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = cost});
    double time = sim->makespan;
    simulation_destroy(sim);
    schedule_destroy(s);
    return time;
}

static void expect_limited(int p, int m)
{
    static const struct stage_cost units = {1, 1, 1};
    double half = makespan("v-half", p, m, 2, units) - 6 * m, min = makespan("v-min", p, m, 2, units) - 6 * m;
    cr_assert_leq(half, fmax(3 * p - 7, 1) + 2 * (p % 2), "v-half p %d m %d: %g", p, m, half);
    cr_assert_leq(min, 4 * p - 5, "v-min p %d m %d: %g", p, m, min);
}

/* f = i = w = 1 per stage. A rank without a bubble still starts p-1 units after the first rank, so 3m + p
 * - 1 for one chunk, and for two 6m + p - 1. The memory-limited families: the results of their
 * authors' code on 2, 4 and 8 ranks fit these formulas, and so do ours on any number of ranks; an odd
 * number costs V-Half two units. */
Test(forms, makespans_in_units)
{
    static const struct stage_cost units = {1, 1, 1};
    for (int p = 1; p <= (fewer_cases() ? 8 : 16); p++)
        for (int m = 1; m <= 4 * p; m += 1 + p / 5) {
            cr_assert_eq(makespan("gpipe", p, m, 1, units), 3 * (m + p - 1));
            cr_assert_eq(makespan("1f1b", p, m, 1, units), 3 * (m + p - 1));
            if (m >= p)
                cr_assert_eq(makespan("zb-h1", p, m, 1, units), 3 * m + p - 1, "p %d m %d", p, m);
            if (m >= 2 * p - 1) {
                cr_assert_eq(makespan("zb-h2", p, m, 1, units), 3 * m + p - 1, "p %d m %d", p, m);
                cr_assert_eq(makespan("zb-v", p, m, 2, units), 6 * m + p - 1, "p %d m %d", p, m);
            }
            if (p < 2 || m < p)
                continue;
            expect_limited(p, m);
        }
}

/* Long pipelines too, whose blocks are derived from short ones: in a second, where a search would take a
 * minute. */
Test(forms, makespans_of_long_pipes)
{
    for (int p = 96; p < (fewer_cases() ? 98 : 102); p++) {
        expect_limited(p, 2 * p + 3);
        expect_limited(p, p + p / 3);
    }
}

/* Why ZB-H1's bubble is (p-1)(f+i-w) only as long as w <= f, and (p-1) i beyond. A rank 0 that holds at
 * most k microbatches can run only k forwards until the first gradient arrives, which takes p f + (p-1) i;
 * so every schedule waits at least (p-1) i + (p-k) f there. With k = p that is (p-1) i. */
Test(forms, no_family_beats_the_round_trip_bound)
{
    struct rng rng = {.generator = philox_named(14, "schedules")};
    for (int i = 0; i < cases(600); i++) {
        struct schedule_options options = random_options(&rng, i % family_count(), 8, 24);
        struct stage_cost c = {rng_int(&rng, 1, 16) / 8.0, rng_int(&rng, 1, 16) / 8.0,
                               rng_int(&rng, 1, 16) / 8.0};
        options.v = 1;
        options.microbatch_group_size = 0;
        options.without_transfers = true;
        if (schedule_unsupported(&options) != NULL || strcmp(options.name, "dualpipe") == 0)
            continue;
        struct schedule *s = build_with(options);
        struct simulation *sim = simulated(s, (struct cost_table){.chunk = c});
        int k = sim->ranks[0].peak;
        double round_trip = (s->p - 1) * c.i + (s->p - k) * c.f;
        cr_assert_geq(sim->ranks[0].bubble, round_trip, "%s p %d m %d", options.name, s->p, s->m);
        bool h1 = strcmp(options.name, "zb-h1") == 0 && s->m >= s->p;
        cr_assert(!h1 || sim->bubble == (s->p - 1) * (c.i + fmax(c.f - c.w, 0.0)));
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* Makespan and peaks of the authors' schedulers of 2401.10241 and 2405.15362, rank by rank, f = i = w = 1,
 * no transfer time, 2 p microbatches. Ours must be at least as good on every rank. */
Test(forms, no_worse_than_published_code)
{
    static const struct {
        const char *name;
        int p, v;
        double makespan;
        int peaks[8];
    } rows[] = {
        {"1f1b", 2, 1, 15, {2, 1}},
        {"1f1b", 4, 1, 33, {4, 3, 2, 1}},
        {"1f1b", 8, 1, 69, {8, 7, 6, 5, 4, 3, 2, 1}},
        {"interleaved", 2, 2, 27, {5, 3}},
        {"interleaved", 2, 4, 51, {9, 7}},
        {"interleaved", 4, 2, 57, {11, 9, 7, 5}},
        {"interleaved", 4, 4, 105, {19, 17, 15, 13}},
        {"interleaved", 8, 2, 117, {23, 21, 19, 17, 15, 13, 11, 9}},
        {"interleaved", 8, 4, 213, {39, 37, 35, 33, 31, 29, 27, 25}},
        {"zb-h1", 2, 1, 13, {2, 2}},
        {"zb-h1", 4, 1, 27, {4, 4, 4, 4}},
        {"zb-h1", 8, 1, 55, {8, 8, 8, 8, 8, 8, 8, 8}},
        {"zb-h2", 2, 1, 13, {4, 4}},
        {"zb-h2", 4, 1, 27, {8, 8, 8, 8}},
        {"zb-h2", 8, 1, 55, {16, 16, 16, 16, 16, 16, 16, 16}},
        {"zb-v", 2, 2, 25, {4, 4}},
        {"zb-v", 4, 2, 51, {8, 8, 8, 8}},
        {"zb-v", 8, 2, 103, {16, 16, 16, 16, 16, 16, 16, 16}},
        {"v-half", 2, 2, 25, {4, 4}},
        {"v-half", 4, 2, 53, {6, 6, 6, 6}},
        {"v-half", 8, 2, 113, {10, 10, 10, 10, 10, 10, 10, 10}},
        {"v-min", 2, 2, 27, {3, 4}},
        {"v-min", 4, 2, 59, {4, 4, 4, 4}},
        {"v-min", 8, 2, 123, {7, 8, 8, 8, 8, 8, 8, 8}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct schedule *s = build(rows[i].name, rows[i].p, 2 * rows[i].p, rows[i].v);
        struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}});
        cr_assert_leq(sim->makespan, rows[i].makespan, "%s p %d v %d: %g", rows[i].name, rows[i].p, rows[i].v,
                      sim->makespan);
        for (int rank = 0; rank < rows[i].p; rank++)
            cr_assert_leq(sim->ranks[rank].peak, rows[i].peaks[rank], "%s p %d rank %d: %d", rows[i].name,
                          rows[i].p, rank, sim->ranks[rank].peak);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}
