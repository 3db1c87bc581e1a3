// SPDX-License-Identifier: Apache-2.0
#include "schedules/edges.h"
#include "schedules/peak.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <string.h>

/* Figure 4 of 2104.04473, upper half. */
Test(schedule, one_f_one_b_as_in_the_paper)
{
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
    };
    expect_lists("1f1b", 4, 8, 1, ranks);
}

Test(schedule, gpipe_keeps_microbatch_order)
{
    const char *const ranks[] = {"0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"};
    expect_lists("gpipe", 2, 3, 1, ranks);
}

/* Figure 2 of 2401.10241 (ZB-H1), p 4, m 8. */
Test(schedule, zb_h1_as_in_the_paper)
{
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
        "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7",
        "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7",
        "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7",
    };
    expect_lists("zb-h1", 4, 8, 1, ranks);
}

Test(schedule, fewer_microbatches_than_ranks)
{
    const char *const one[] = {"0F0 0I0 0W0", "1F0 1I0 1W0", "2F0 2I0 2W0"};
    expect_lists("zb-h1", 3, 1, 1, one);
    const char *const two[] = {"0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1"};
    expect_lists("1f1b", 3, 2, 1, two);
}

Test(schedule, transfers_of_a_small_case)
{
    struct schedule *s = build("1f1b", 2, 3, 1);
    struct text text = {0};
    cr_assert_str_eq(list_text(s, 0, true, &text),
                     "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2");
    cr_assert_str_eq(list_text(s, 1, true, &text), "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1RECV_F2 "
                                                   "1SEND_B1 1F2 1B2 1SEND_B2");
    text_free(&text);
    schedule_destroy(s);
}

/* p 2, v 2: two boundaries lead from rank 0 to rank 1, one back; a V turns within a rank. */
Test(schedule, boundaries_share_edges)
{
    const struct {
        const char *name;
        int p, v, edges;
    } rows[] = {{"interleaved", 2, 2, 4}, {"interleaved", 3, 2, 6}, {"1f1b", 3, 1, 4},
                {"zb-v", 3, 2, 8},        {"dualpipe", 4, 1, 12},   {"gpipe", 1, 1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct schedule *s = build(rows[i].name, rows[i].p, 4, rows[i].v);
        struct edges *edges = NULL;
        edges = edges_create(s);
        cr_assert_eq(edges->count, rows[i].edges, "%s: %d", rows[i].name, edges->count);
        edges_destroy(edges);
        schedule_destroy(s);
    }
}

static void expect_peaks(const char *name, int p, int m, int v, int first, int per_rank)
{
    struct schedule *s = build(name, p, m, v);
    int highest = 0;
    for (int rank = 0; rank < p; rank++) {
        int expected = least(first - per_rank * rank, m * s->chunks);
        int peak = schedule_peak(s, rank);
        cr_assert_leq(peak, expected, "%s p %d m %d rank %d: %d > %d", name, p, m, rank, peak, expected);
        highest = peak > highest ? peak : highest;
    }
    // A limit that is never reached would be vacuous.
    cr_assert(m < 2 * p || highest == least(first, m * s->chunks), "%s p %d m %d: %d of %d", name, p, m,
              highest, first);
    schedule_destroy(s);
}

/* Peak activations, held until W, in chunks of a rank. */
Test(schedule, peaks_are_the_closed_forms)
{
    for (int p = 1; p <= 9; p++)
        for (int m = 1; m <= 24; m++) {
            expect_peaks("gpipe", p, m, 1, m, 0);
            expect_peaks("looped-bfs", p, m, 3, 3 * m, 0);
            expect_peaks("1f1b", p, m, 1, p, 1);
            expect_peaks("zb-h1", p, m, 1, p, 0);
            expect_peaks("zb-h2", p, m, 1, 2 * p - 1, 0);
            expect_peaks("zb-v", p, m, 2, 2 * p, 0);
            expect_peaks("v-half", p, m, 2, p + 2, 0);
            expect_peaks("v-min", p, m, 2, 2 * ((p + 1) / 3) + 2, 0);
            expect_peaks("dualpipev", p, m, 2, 2 * p + 1, 0);
            if (p % 2 == 0)
                expect_peaks("dualpipe", p, m, 1, p + 1, 0);
            if (m % p == 0)
                expect_peaks("interleaved", p, m, 3, 2 * p + 2 * (p - 1) + 1, 2);
            if (m % p == 0)
                expect_peaks("zb-h1", p, m, 2, 2 * p, 0);
        }
}

/* Groups of a given size, then the remainder, as in Megatron-LM; groups of equal size where the last two
 * would be too small for a round trip; warm-up for the given size where m is less. */
Test(schedule, groups_of_a_given_size)
{
    const struct {
        int p, m, group;
        const char *begins; // the list of rank 0
    } rows[] = {
        {4, 8, 5, "0F0 0F1 0F2 0F3 0F4 4F0 4F1 4F2 4F3 4F4 0F5 0F6 4B0 0F7 4B1 4F5 4B2 4F6 4B3 4F7 4B4 0B0 "},
        {3, 7, 3, "0F0 0F1 0F2 3F0 3F1 3F2 0F3 0F4 3B0 0F5 3B1 3F3 3B2 3F4 0B0 3F5 0B1 0F6 0B2 3F6 3B3 "},
        {4, 9, 4, "0F0 0F1 0F2 0F3 0F4 4F0 4F1 4F2 4F3 4F4 0F5 0F6 4B0 0F7 4B1 0F8 4B2 4F5 4B3 "},
        {4, 8, 9, "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7 4F0 4F1 4F2 4F3 4F4 4F5 4F6 4F7 4B0 4B1 "},
        {4, 8, 2000000000, "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7 4F0 4F1 4F2 4F3 4F4 4F5 4F6 4F7 4B0 4B1 "},
    };
    struct text text = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct schedule *s = build_with((struct schedule_options){.name = "interleaved",
                                                                  .p = rows[i].p,
                                                                  .m = rows[i].m,
                                                                  .v = 2,
                                                                  .microbatch_group_size = rows[i].group});
        const char *list = list_text(s, 0, false, &text);
        cr_assert_eq(strncmp(list, rows[i].begins, strlen(rows[i].begins)), 0, "%s", list);
        schedule_destroy(s);
    }
    text_free(&text);
}

static void expect_refusal(struct schedule_options options, const char *words)
{
    struct schedule *s = NULL;
    cr_assert_eq(schedule_build(&options, &s), BAD_SCHEDULE);
    cr_assert_null(s);
    cr_assert_not_null(strstr(fail_text(), words), "%s", fail_text());
}

Test(schedule, rejections_give_reason_and_valid_values)
{
    expect_refusal((struct schedule_options){.name = "1f2b", .p = 2, .m = 2}, "did you mean 1f1b?");
    expect_refusal((struct schedule_options){.name = "nothing", .p = 2, .m = 2},
                   "available: gpipe, looped-bfs, 1f1b");
    expect_refusal((struct schedule_options){.name = "", .p = 2, .m = 2},
                   "available: gpipe, looped-bfs, 1f1b");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 2, .m = 2, .v = 2},
                   "it supports any p, any m, v = 1");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 0, .m = 2}, "at least 1");
    expect_refusal(
        (struct schedule_options){.name = "1f1b", .p = 4, .m = 100000000},
        "1f1b of p 4, m 100000000, v 1 has more actions than fit in memory; use m 16777216 or less");
    expect_refusal((struct schedule_options){.name = "gpipe", .p = 100000, .m = 1}, "use p 65536 or less");
    expect_refusal((struct schedule_options){.name = "interleaved", .p = 2, .m = 1, .v = 2000000000},
                   "use v 33554432 or less");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 2, .m = -1}, "at least 1");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 2, .m = 2, .v = -1}, "at least 1");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 2, .m = 2, .microbatch_group_size = -3},
                   "microbatch_group_size");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 4, .m = 8, .microbatch_group_size = 4},
                   "it does not support microbatch_group_size");
    expect_refusal(
        (struct schedule_options){.name = "interleaved", .p = 4, .m = 8, .microbatch_group_size = 3},
        "below p");
    expect_refusal((struct schedule_options){.name = "zb-v", .p = 4, .m = 8, .v = 4}, "v = 2");
    expect_refusal((struct schedule_options){.name = "dualpipe", .p = 3, .m = 8}, "an even p");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 60000, .m = 2000000000}, "memory");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 2000000000, .m = 1}, "memory");
    expect_refusal((struct schedule_options){.name = "1f1b", .p = 60000, .m = 1, .v = 2000000000}, "memory");
}

/* 1F1B, p 4, rank 0: four microbatches in flight use four slots in turn; what I writes for W needs one. */
Test(schedule, slots_of_one_f_one_b)
{
    struct schedule *s = build("1f1b", 4, 8, 1);
    struct slot_plan *plan = slot_plan_create(s, 0);
    for (int lifetime = KEEP_INPUT; lifetime <= KEEP_UNTIL_BACKWARD_WEIGHT; lifetime++) {
        cr_assert_eq(plan->peak[lifetime][0], 4);
        for (int k = 0; k < 8; k++)
            cr_assert_eq(slot_of(plan, (enum lifetime)lifetime, 0, k), k % 4);
    }
    cr_assert_eq(plan->peak[KEEP_INPUT_TO_WEIGHT][0], 1);
    slot_plan_destroy(plan);
    schedule_destroy(s);
}
