// SPDX-License-Identifier: Apache-2.0
#include "schedules/draw/draw.h"
#include "schedules/draw/draw_text.h"
#include "schedules/edges.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Times are sums of small multiples of 1/8: exact in a double, so results can be compared for equality. */
static struct stage_cost random_costs(struct rng *rng)
{
    return (struct stage_cost){rng_int(rng, 1, 16) / 8.0, rng_int(rng, 1, 16) / 8.0,
                               rng_int(rng, 1, 16) / 8.0};
}

static double bubble_of(const char *name, int p, int m, struct stage_cost cost, bool blocking)
{
    struct schedule *s = build(name, p, m, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = cost, .blocking = blocking});
    double bubble = sim->bubble;
    for (int rank = 0; rank < p; rank++)
        cr_assert_eq(sim->ranks[rank].busy, m * (cost.f + cost.i + cost.w));
    simulation_destroy(sim);
    schedule_destroy(s);
    return bubble;
}

/* GPipe and 1F1B: (p-1)(f+i+w), also for m < p. ZB-H1 with m >= p: (p-1)(f+i-w) as long as w <= f. No
 * schedule that holds p microbatches can do better than (p-1)i, the wait of rank 0 for its first I, so
 * beyond that the form is (p-1)(i + max(f-w, 0)). */
Test(simulate, bubbles_are_the_closed_forms)
{
    struct rng rng = {.generator = philox_named(4, "schedules")};
    for (int i = 0; i < cases(1500); i++) {
        int p = rng_int(&rng, 1, 9), m = rng_int(&rng, 1, 24);
        struct stage_cost c = random_costs(&rng);
        double whole = (p - 1) * (c.f + c.i + c.w);
        cr_assert_eq(bubble_of("gpipe", p, m, c, false), whole, "gpipe p %d m %d", p, m);
        cr_assert_eq(bubble_of("1f1b", p, m, c, false), whole, "1f1b p %d m %d", p, m);
        if (m >= p) {
            double split = (p - 1) * (c.w <= c.f ? c.f + c.i - c.w : c.i);
            cr_assert_eq(bubble_of("zb-h1", p, m, c, false), split, "zb-h1 p %d m %d", p, m);
        }
    }
}

static double chunk_bubble(const char *name, int p, int m, int v, struct stage_cost chunk)
{
    struct schedule *s = build(name, p, m, v);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = chunk});
    double bubble = sim->bubble;
    simulation_destroy(sim);
    schedule_destroy(s);
    return bubble;
}

/* Interleaved, where p divides m: (p-1)(f+i+w)/v, that is (p-1) times the costs of one chunk; looped
 * breadth-first too, for any m >= p. */
Test(simulate, chunks_divide_the_bubble)
{
    struct rng rng = {.generator = philox_named(7, "schedules")};
    for (int i = 0; i < cases(500); i++) {
        int p = rng_int(&rng, 1, 8), m = p * rng_int(&rng, 1, 4), v = rng_int(&rng, 1, 4);
        struct stage_cost c = random_costs(&rng);
        double expected = (p - 1) * (c.f + c.i + c.w);
        cr_assert_eq(chunk_bubble("interleaved", p, m, v, c), expected, "p %d m %d v %d", p, m, v);
        m += rng_int(&rng, 0, p);
        cr_assert_eq(chunk_bubble("looped-bfs", p, m, v, c), expected, "p %d m %d v %d", p, m, v);
    }
}

/* ZB-H2 and ZB-V have none where f = i = w and the pipeline can fill. */
Test(simulate, no_bubble)
{
    for (int p = 1; p <= 10; p++)
        for (int m = 2 * p - 1; m <= 4 * p; m++) {
            cr_assert_eq(chunk_bubble("zb-h2", p, m, 1, (struct stage_cost){1, 1, 1}), 0.0);
            cr_assert_eq(chunk_bubble("zb-v", p, m, 2, (struct stage_cost){1, 1, 1}), 0.0);
        }
}

/* Tenths are not binary fractions, so their sums differ in the last bits. */
Test(simulate, rounding_is_no_bubble)
{
    for (int p = 2; p <= 8; p++) {
        struct schedule *s = build("zb-h2", p, 3 * p, 1);
        struct simulation *sim = simulated(s, (struct cost_table){.chunk = {0.1, 0.1, 0.1}});
        for (int rank = 0; rank < p; rank++)
            cr_assert_eq(sim->ranks[rank].bubble, 0.0, "p %d rank %d: %g", p, rank, sim->ranks[rank].bubble);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* V-Half and V-Min of any size: for a limit of c chunks 6p - 3c - 1, V-Half at most two more, and V-Min,
 * which has one chunk less on rank 0 where c - 2p/3 is largest, two more again. */
Test(simulate, bubbles_of_limited_memory)
{
    for (int p = 3; p <= (fewer_cases() ? 9 : 16); p++)
        for (int m = p; m <= 6 * p; m += p / 2) {
            int c = 2 * ((p + 1) / 3) + 2;
            double half = chunk_bubble("v-half", p, m, 2, (struct stage_cost){1, 1, 1});
            cr_assert_leq(half, 3 * p - 6 + p % 2, "p %d m %d: %g", p, m, half);
            double least = chunk_bubble("v-min", p, m, 2, (struct stage_cost){1, 1, 1});
            cr_assert_leq(least, 6 * p - 3 * c + 1 + (p % 3 == 2 ? 2 : 0), "p %d m %d: %g", p, m, least);
        }
}

/* Blocking transfers cost nothing where messages take no time: the lists run both ends at the same time. */
Test(simulate, free_messages_may_block)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 20; m++) {
            struct stage_cost units = {1.0, 1.0, 1.0};
            cr_assert_eq(bubble_of("gpipe", p, m, units, true), 3.0 * (p - 1));
            cr_assert_eq(bubble_of("1f1b", p, m, units, true), 3.0 * (p - 1));
        }
}

/* An independent reference without events between ranks: starts everything at 0 and pushes starts to the
 * right, list by list, until nothing changes. */
static double *relaxed_ends(const struct schedule *s, const struct cost_table *costs)
{
    size_t cells = (size_t)s->stages * (size_t)s->m;
    double *end = calloc(3 * cells, sizeof *end); // of F, of I or B, of W or B
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < s->p; rank++) {
            double clock = 0.0;
            for (int i = 0; i < s->ranks[rank].count; i++) {
                struct action a = s->ranks[rank].actions[i];
                size_t at = (size_t)a.stage * (size_t)s->m + (size_t)a.microbatch;
                struct stage_cost c = costs->of_stage[a.stage];
                double start = clock, time = 0.0;
                int which = a.kind == FORWARD ? 0 : a.kind == BACKWARD_WEIGHT ? 2 : 1;
                int from = which == 0 ? a.stage - 1 : a.stage + 1;
                if (which < 2 && from >= 0 && from < s->stages) {
                    bool crosses = schedule_rank(s, from, a.microbatch) != rank;
                    double there = end[(size_t)which * cells + at + (size_t)(from - a.stage) * (size_t)s->m];
                    start = fmax(start, there + (crosses ? costs->latency : 0.0));
                }
                time += a.kind == FORWARD ? c.f : 0.0;
                time += a.kind == BACKWARD_INPUT || a.kind == BACKWARD ? c.i : 0.0;
                time += a.kind == BACKWARD_WEIGHT || a.kind == BACKWARD ? c.w : 0.0;
                clock = start + time;
                moved = moved || end[(size_t)which * cells + at] != clock;
                end[(size_t)which * cells + at] = clock;
            }
        }
    }
    return end;
}

Test(simulate, matches_relaxation)
{
    struct rng rng = {.generator = philox_named(5, "schedules")};
    for (int i = 0; i < cases(400); i++) {
        struct schedule_options options = random_options(&rng, i % family_count(), 5, 9);
        if (strncmp(options.name, "dualpipe", 8) == 0)
            continue; // the reference does not support pairs
        options.without_transfers = true;
        struct schedule *s = build_with(options);
        int p = s->p, m = s->m;
        struct stage_cost of_stage[5 * 4];
        for (int stage = 0; stage < s->stages; stage++)
            of_stage[stage] = random_costs(&rng);
        struct cost_table costs = {.of_stage = of_stage, .latency = rng_int(&rng, 0, 8) / 8.0};
        struct simulation *sim = simulated(s, costs);
        double *end = relaxed_ends(s, &costs);
        size_t cells = (size_t)s->stages * (size_t)m;
        for (int rank = 0; rank < p; rank++)
            for (int j = 0; j < s->ranks[rank].count; j++) {
                struct action a = s->ranks[rank].actions[j];
                size_t which = a.kind == FORWARD ? 0 : a.kind == BACKWARD_WEIGHT ? 2 : 1;
                cr_assert_eq(sim->times[sim->first[rank] + j].end,
                             end[which * cells + (size_t)a.stage * (size_t)m + (size_t)a.microbatch]);
            }
        free(end);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* Every start on the critical path is the end of the previous action (or of the message's transfer), from
 * 0 to the makespan; and any other action starts no earlier than its own dependency allows. */
Test(simulate, the_critical_path_is_contiguous)
{
    struct rng rng = {.generator = philox_named(6, "schedules")};
    for (int i = 0; i < cases(300); i++) {
        struct schedule *s = build_with(random_options(&rng, i % family_count(), 6, 10));
        struct cost_table costs = {.chunk = random_costs(&rng),
                                   .latency = rng_int(&rng, 0, 4) / 8.0,
                                   .blocking = rng_int(&rng, 0, 1) == 1};
        struct simulation *sim = simulated(s, costs);
        double sum = 0.0;
        int ends = 0, begins = 0;
        for (int64_t j = 0; j < sim->first[s->p]; j++) {
            struct action_time t = sim->times[j];
            cr_assert(t.cause < 0
                          ? t.start == 0.0
                          : sim->times[t.cause].end <= t.start || sim->times[t.cause].start <= t.start);
            if (!t.critical)
                continue;
            sum += t.end - t.start;
            begins += t.cause < 0 ? 1 : 0;
            ends += t.end == sim->makespan ? 1 : 0;
        }
        cr_assert(begins == 1 && ends >= 1);
        cr_assert_eq(sum, sim->makespan, "%s: %g of %g", s->family->about.name, sum, sim->makespan);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* Messages that take time L and overlap computation add 2(p-1) L to GPipe's makespan, whatever m is. When
 * they block, every rank waits for all its own. */
Test(simulate, messages_take_time)
{
    for (int p = 1; p <= 5; p++)
        for (int m = 1; m <= 9; m++) {
            struct schedule *s = build("gpipe", p, m, 0);
            struct cost_table costs = {.chunk = {1, 1, 1}, .latency = 0.25};
            struct simulation *sim = simulated(s, costs);
            cr_assert_eq(sim->makespan, 3 * m + (p - 1) * (3 + 2 * 0.25), "p %d m %d: %g", p, m,
                         sim->makespan);
            simulation_destroy(sim);
            costs.blocking = true;
            sim = simulated(s, costs);
            int messages = p == 1 ? 0 : (p == 2 ? 2 : 4) * m; // of a rank in the middle
            cr_assert_geq(sim->makespan, 3 * m + messages * 0.25);
            simulation_destroy(sim);
            schedule_destroy(s);
        }
}

/* The lists delay no message: whatever the costs, they are as fast as if every value were sent as soon as
 * it is computed, as long as a message takes no longer than the one action that hides it. */
Test(simulate, lists_with_transfers_are_as_fast_as_without)
{
    struct rng rng = {.generator = philox_named(8, "schedules")};
    for (int i = 0; i < cases(900); i++) {
        struct schedule_options options = random_options(&rng, i % family_count(), 8, 24);
        struct cost_table costs = {.chunk = random_costs(&rng),
                                   .latency = rng_int(&rng, 0, 4) / 8.0,
                                   .pair_overlap = rng_int(&rng, 0, 4) / 4.0};
        costs.latency = fmin(costs.latency, fmin(costs.chunk.f, fmin(costs.chunk.i, costs.chunk.w)));
        struct schedule *with = build_with(options);
        options.without_transfers = true;
        struct schedule *without = build_with(options);
        struct simulation *a = simulated(with, costs), *b = simulated(without, costs);
        cr_assert_eq(a->makespan, b->makespan, "%s p %d m %d v %d: %g, %g", options.name, options.p,
                     options.m, options.v, a->makespan, b->makespan);
        simulation_destroy(b);
        simulation_destroy(a);
        schedule_destroy(without);
        schedule_destroy(with);
    }
}

/* Simultaneous blocking messages take two rounds, not a chain from rank to rank whose length grows with p:
 * a full ring of breadth-first pays for its warm-up and four messages a microbatch, no more. */
Test(simulate, blocking_messages_do_not_queue_up)
{
    for (int p = 4; p <= 12; p += 2) {
        struct schedule *s = build("looped-bfs", p, 16, 2);
        struct simulation *sim =
            simulated(s, (struct cost_table){.chunk = {1, 1, 1}, .latency = 0.25, .blocking = true});
        double work = 2 * 16 * (3 + 4 * 0.25), fill = (p - 1) * (3 + 2 * 0.25);
        cr_assert_leq(sim->makespan, 1.05 * (work + fill), "p %d: %g of %g", p, sim->makespan, work + fill);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* Two messages on one edge are never transferred at the same time. */
Test(simulate, an_edge_carries_one_message_at_a_time)
{
    struct rng rng = {.generator = philox_named(9, "schedules")};
    for (int i = 0; i < cases(200); i++) {
        struct schedule *s = build_with(random_options(&rng, i % family_count(), 5, 12));
        struct cost_table costs = {.chunk = random_costs(&rng), .wire = rng_int(&rng, 1, 24) / 8.0};
        struct simulation *sim = simulated(s, costs);
        struct edges *edges = NULL;
        edges = edges_create(s);
        double *free_from = calloc((size_t)edges->count + 1, sizeof *free_from);
        for (int rank = 0; rank < s->p; rank++)
            for (int j = 0; j < s->ranks[rank].count; j++) {
                if (!action_traits(s->ranks[rank].actions[j].kind)->sends)
                    continue;
                int edge = edge_of(edges, s, s->ranks[rank].actions[j]);
                struct action_time time = sim->times[sim->first[rank] + j];
                cr_assert(edge >= 0 && time.start >= free_from[edge]);
                free_from[edge] = time.end;
            }
        free(free_from);
        edges_destroy(edges);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* Two stages, fast forwards, slow messages: a message has a receive slot from the start of the action
 * before its consumer on, so only one is in flight at a time though the link could carry more. */
Test(simulate, a_message_waits_for_its_slot)
{
    struct schedule *s = build("gpipe", 2, 4, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {0.125, 1, 1}, .latency = 0.5});
    for (int i = 0, k = 0; i < s->ranks[1].count; i++)
        if (s->ranks[1].actions[i].kind == RECV_ACTIVATION)
            cr_assert_eq(sim->times[sim->first[1] + i].end, 0.125 + 0.5 * ++k);
    simulation_destroy(sim);
    schedule_destroy(s);
}

Test(simulate, a_fused_backward_may_be_cheaper)
{
    struct schedule *s = build("1f1b", 1, 2, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}, .b = 0.75});
    cr_assert_eq(sim->makespan, 2 * (1 + 1.5));
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* An overlapped pair takes the longer of its two, their sum, or a value between. */
Test(simulate, pairs_are_timed_together)
{
    struct schedule *s = build_lists("1f1b", 1, 2, 1);
    s->ranks[0].actions[1].overlaps_next = true; // 0F0 (0B0 0F1) 0B1
    cr_assert_eq(schedule_check(s, NULL), OK, "%s", fail_text());
    const double overlap[] = {0.0, 0.5, 1.0}, makespan[] = {6.0, 5.5, 5.0};
    for (int i = 0; i < 3; i++) {
        struct simulation *sim =
            simulated(s, (struct cost_table){.chunk = {1, 1, 1}, .pair_overlap = overlap[i]});
        cr_assert_eq(sim->makespan, makespan[i]);
        cr_assert(sim->times[1].start == sim->times[2].start && sim->times[1].end == sim->times[2].end);
        simulation_destroy(sim);
    }
    schedule_destroy(s);
}

static void expect_chart(const char *name, int p, int m, int columns, const char *chart)
{
    struct schedule *s = build(name, p, m, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}});
    struct text text = {0};
    draw_text(s, sim, &(struct draw_options){.columns = columns}, &text);
    cr_assert_str_eq(text_chars(&text), chart, "\n%s", text_chars(&text));
    text_free(&text);
    simulation_destroy(sim);
    schedule_destroy(s);
}

Test(draw, a_chart_for_the_terminal)
{
    expect_chart("1f1b", 2, 3, 100,
                 "1f1b   p 2, m 3, v 1   step time 12, bubble 3 (25.0 %), peak 2 microbatches\n"
                 "rank 0  |F0 F1 ......B0--- F2 B1--- ...B2--- |  25.0 % idle  peak 2\n"
                 "rank 1  |   F0 B0--- F1 B1--- F2 B2---       |   0.0 % idle  peak 1\n"
                 "         0              5              10\n");
    expect_chart("zb-h1", 2, 3, 45,
                 "zb-h1   p 2, m 3, v 1   step time 10, bubble 1 (10.0 %), peak 2 microbatches\n"
                 "rank 0  |F0F1..I0W0F2I1W1I2W2|  10.0 % idle  peak 2\n"
                 "rank 1  |  F0I0F1I1W0F2I2W1W2|   0.0 % idle  peak 2\n"
                 "         0\n");
}

/* Where an action is narrower than a column: only idle time is drawn as idle. */
Test(draw, crowded_charts_show_kinds_only)
{
    struct schedule *s = build("zb-v", 4, 64, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {0.5, 0.5, 0.5}});
    struct text text = {0};
    draw_text(s, sim, &(struct draw_options){.columns = 80}, &text);
    const char *row = strstr(text_chars(&text), "rank 3  |");
    cr_assert_not_null(row);
    row = strchr(row, '|') + 1;
    row += strspn(row, " ");
    size_t busy = strspn(row, "FIW");
    cr_expect(row[busy] == '|' && busy > 40, "%s", text.chars);
    cr_expect_not_null(
        strstr(text.chars, "some actions are too short to draw: use a wider terminal, or --svg FILE"));
    text_free(&text);
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* 126 columns for 51 cells of half a unit: two each, in which "F7" fits and "7F7" does not. */
Test(draw, cells_of_one_length_are_labelled_alike)
{
    struct schedule *s = build("zb-v", 4, 8, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {0.5, 0.5, 0.5}});
    struct text text = {0};
    draw_text(s, sim, &(struct draw_options){.columns = 160}, &text);
    const char *row = strstr(text_chars(&text), "rank 3");
    cr_assert_not_null(row);
    cr_assert_eq(strncmp(row, "rank 3  |      F0F0F1F1F2F2F3F3I0W0F4I0W0F4I1W1F5I1W1F5I2W2F6I2W2F6", 64), 0,
                 "%s", row);
    text_free(&text);
    simulation_destroy(sim);
    schedule_destroy(s);

    // 16 microbatches in two columns: with colors all lose the kind's letter, not only those from 10 on.
    s = build("1f1b", 4, 16, 0);
    sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}});
    draw_text(s, sim, &(struct draw_options){.columns = 160, .colour = true}, &text);
    cr_assert_not_null(strstr(text_chars(&text), "m10\033"), "no forward is labelled 10");
    cr_assert_null(strstr(text_chars(&text), "mF9\033"),
                   "forward 9 is formatted differently from forward 10");
    cr_assert_not_null(strstr(text_chars(&text), "m9 \033"), "no forward is labelled 9");
    text_free(&text);
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* Idle share and peak of each rank. */
Test(draw, chart_and_picture_give_the_same_figures)
{
    static const char *const names[] = {"1f1b", "zb-v", "v-half", "dualpipe", "interleaved"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct schedule *s = build(names[i], 4, 5, 0);
        struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1.5, 0.5}});
        struct text chart = {0}, picture = {0}, expected = {0};
        draw_text(s, sim, &(struct draw_options){.columns = 0}, &chart);
        draw_svg(&(struct drawing){.title = names[i], .schedule = s, .simulation = sim}, 1,
                 &(struct svg_options){.critical = false}, &picture);
        for (int rank = 0; rank < s->p; rank++) {
            const struct rank_time *r = &sim->ranks[rank];
            double idle = 100.0 * r->bubble / (r->last_end - r->first_start), peak = (double)r->peak / s->v;
            expected.length = 0;
            text_add(&expected, "| %5.1f %% idle  peak %.4g\n", idle, peak);
            cr_expect_not_null(strstr(text_chars(&chart), expected.chars), "%s: %s", expected.chars,
                               chart.chars);
            expected.length = 0;
            text_add(&expected, ">%.1f %% idle, peak %.4g</text>", idle, peak);
            cr_expect_not_null(strstr(text_chars(&picture), expected.chars), "%s", expected.chars);
        }
        text_free(&expected);
        text_free(&picture);
        text_free(&chart);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}

/* At any width, all rows are equally wide, and colors do not change the text. */
Test(draw, any_width)
{
    struct schedule *s = build("zb-h1", 5, 40, 0);
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1.25, 0.75}});
    for (int columns = 1; columns < 700; columns += 23)
        for (int colour = 0; colour < 2; colour++) {
            struct text text = {0};
            draw_text(s, sim, &(struct draw_options){.columns = columns, .colour = colour == 1}, &text);
            cr_assert_eq(strchr(text_chars(&text), '\033') != NULL, colour == 1);
            size_t width = 0;
            for (const char *row = strstr(text_chars(&text), "rank 0"); colour == 0 && row != NULL;
                 row = strstr(row + 1, "rank ")) {
                size_t here = strcspn(strchr(row, '|') + 1, "|");
                cr_assert(width == 0 || here == width);
                width = here;
            }
            text_free(&text);
        }
    simulation_destroy(sim);
    schedule_destroy(s);
}

/* Five segments at either end, and the number of those between; underlined in a chart with colors. */
Test(draw, abbreviates_the_critical_path)
{
    static const struct {
        const char *name;
        int p, m;
        const char *path;
    } cases_[] = {
        {"1f1b", 2, 3, "rank 0: 0F0; rank 1: 1F0 1B0; rank 0: 0B0 0F2; rank 1: 1F2 1B2; rank 0: 0B2"},
        {"zb-h1", 1, 1, "rank 0: 0F0 .. 0W0 (3)"},
        {"gpipe", 6, 1,
         "rank 0: 0F0; rank 1: 1F0; rank 2: 2F0; rank 3: 3F0; rank 4: 4F0; rank 5: 5F0 5B0; rank 4: 4B0; "
         "rank 3: 3B0; rank 2: 2B0; rank 1: 1B0; rank 0: 0B0"},
        {"gpipe", 8, 1,
         "rank 0: 0F0; rank 1: 1F0; rank 2: 2F0; rank 3: 3F0; rank 4: 4F0; 5 more; rank 4: 4B0; rank 3: 3B0; "
         "rank 2: 2B0; rank 1: 1B0; rank 0: 0B0"},
    };
    for (size_t i = 0; i < sizeof cases_ / sizeof *cases_; i++) {
        struct schedule *s = build(cases_[i].name, cases_[i].p, cases_[i].m, 0);
        struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}, .latency = 0.5});
        struct text path = {0}, chart = {0};
        draw_path(s, sim, &path);
        cr_expect_str_eq(path.chars, cases_[i].path);
        draw_text(s, sim, &(struct draw_options){.colour = true}, &chart);
        cr_expect_neq(strstr(chart.chars, "\033[0;1;4;38;5;16;"), NULL);
        text_free(&path);
        text_free(&chart);
        simulation_destroy(sim);
        schedule_destroy(s);
    }
}
