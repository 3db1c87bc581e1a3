// SPDX-License-Identifier: Apache-2.0
#include "schedules/family.h"
#include "schedules/peak.h"
#include "schedules/simulate.h"

#include <criterion/criterion.h>
#include <string.h>

static struct schedule *build(const char *name, int p, int m, int v)
{
    struct schedule *s = NULL;
    enum status status = schedule_build(&(struct schedule_options){.name = name, .p = p, .m = m, .v = v}, &s);
    cr_assert_eq(status, OK, "%s p %d m %d v %d: %s", name, p, m, v, fail_text());
    return s;
}

/* The list of a rank as text, "3F0 3B0"; without its transfers unless asked for. */
static const char *list_text(const struct schedule *s, int rank, bool transfers, struct text *out)
{
    char action[ACTION_CHARS];
    out->length = 0;
    for (int i = 0; i < s->ranks[rank].count; i++)
        if (transfers || action_fact(s->ranks[rank].actions[i].kind)->computes)
            text_add(out, "%s%s", out->length > 0 ? " " : "", action_text(s->ranks[rank].actions[i], action));
    return text_chars(out);
}

static void expect_lists(const char *name, int p, int m, int v, const char *const *ranks)
{
    struct schedule *s = build(name, p, m, v);
    struct text text = {0};
    for (int rank = 0; rank < p; rank++)
        cr_assert_str_eq(list_text(s, rank, false, &text), ranks[rank], "%s rank %d", name, rank);
    text_free(&text);
    schedule_destroy(s);
}

/* Figure 4 of 2104.04473 (upper half), p 4, m 8. */
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

Test(schedule, transfers_of_a_small_case)
{
    struct schedule *s = build("1f1b", 2, 3, 1);
    struct text text = {0};
    cr_assert_str_eq(list_text(s, 0, true, &text),
                     "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 "
                     "0B1 0RECV_B2 0B2");
    cr_assert_str_eq(list_text(s, 1, true, &text),
                     "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 "
                     "1F2 1B2 1SEND_B2");
    text_free(&text);
    schedule_destroy(s);
}
