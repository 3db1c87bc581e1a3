// SPDX-License-Identifier: Apache-2.0
/* Orders of the families with several chunks, written out. They are those of the papers and of the
 * runtimes that introduced them; where ours is chosen differently the comment says so. Behind them: digests
 * of further files that those runtimes generated (tests/cli/compare_golden.py holds the files themselves
 * against the lists), and for sizes that nobody generated the laws by which the n-th action of a rank is
 * known. */
#include "tests/unit/schedules/schedule_tools.h"

static void expect_lists(const char *name, int p, int m, int v, const char *const *ranks)
{
    struct schedule *s = build(name, p, m, v);
    struct text text = {0};
    for (int rank = 0; rank < p; rank++)
        cr_assert_str_eq(list_text(s, rank, false, &text), ranks[rank], "%s rank %d: %s", name, rank,
                         text_chars(&text));
    text_free(&text);
    schedule_destroy(s);
}

/* PyTorch's Interleaved1F1B (p 4, v 2, m 10): two groups of five. */
Test(orders, interleaved_in_uneven_groups)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0F4 4F0 4F1 4F2 4F3 4F4 0F5 0F6 4B0 0F7 4B1 0F8 4B2 0F9 4B3 4F5 4B4 4F6 0B0 "
        "4F7 0B1 4F8 0B2 4F9 0B3 0B4 4B5 4B6 4B7 4B8 4B9 0B5 0B6 0B7 0B8 0B9",
        "1F0 1F1 1F2 1F3 1F4 5F0 5F1 5F2 5F3 5F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 1F8 5B4 1F9 1B0 5F5 1B1 "
        "5F6 1B2 5F7 1B3 5F8 1B4 5F9 5B5 5B6 5B7 5B8 5B9 1B5 1B6 1B7 1B8 1B9",
        "2F0 2F1 2F2 2F3 2F4 6F0 6F1 6F2 6B0 6F3 6B1 6F4 6B2 2F5 6B3 2F6 6B4 2F7 2B0 2F8 2B1 2F9 2B2 "
        "6F5 2B3 6F6 2B4 6F7 6B5 6F8 6B6 6F9 6B7 6B8 6B9 2B5 2B6 2B7 2B8 2B9",
        "3F0 3F1 3F2 3F3 3F4 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 7F4 7B4 3F5 3B0 3F6 3B1 3F7 3B2 3F8 3B3 "
        "3F9 3B4 7F5 7B5 7F6 7B6 7F7 7B7 7F8 7B8 7F9 7B9 3B5 3B6 3B7 3B8 3B9",
    };
    // clang-format on
    expect_lists("interleaved", 4, 10, 2, ranks);
}

/* Figure 4 of 2104.04473, lower half. */
Test(orders, interleaved_as_in_the_paper)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 "
        "0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7",
        "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 "
        "1B3 5B4 5B5 5B6 5B7 1B4 1B5 1B6 1B7",
        "2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 "
        "6B4 6F7 6B5 6B6 6B7 2B4 2B5 2B6 2B7",
        "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 "
        "7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7",
    };
    // clang-format on
    expect_lists("interleaved", 4, 8, 2, ranks);
}

/* 2211.05953, with the backwards in the forwards' order. */
Test(orders, looped_bfs_keeps_microbatch_order)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2",
        "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2",
    };
    // clang-format on
    expect_lists("looped-bfs", 2, 3, 2, ranks);
}

/* PyTorch's InterleavedZeroBubble (p 4, v 2, m 10). */
Test(orders, zb_h1_with_two_chunks)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0F4 4F0 4F1 4F2 4F3 4I0 4W0 4F4 4I1 4W1 0F5 4I2 4W2 0F6 4I3 4W3 0F7 4I4 4W4 "
        "0F8 0I0 0W0 0F9 0I1 0W1 4F5 0I2 0W2 4F6 0I3 0W3 4F7 0I4 0W4 4F8 4I5 4W5 4F9 4I6 4W6 4I7 4W7 "
        "4I8 4W8 4I9 4W9 0I5 0W5 0I6 0W6 0I7 0W7 0I8 0W8 0I9 0W9",
        "1F0 1F1 1F2 1F3 1F4 5F0 5F1 5F2 5I0 5F3 5I1 5W0 5F4 5I2 5W1 1F5 5I3 5W2 1F6 5I4 5W3 1F7 1I0 "
        "5W4 1F8 1I1 1W0 1F9 1I2 1W1 5F5 1I3 1W2 5F6 1I4 1W3 5F7 5I5 1W4 5F8 5I6 5W5 5F9 5I7 5W6 5I8 "
        "5W7 5I9 5W8 1I5 5W9 1I6 1W5 1I7 1W6 1I8 1W7 1I9 1W8 1W9",
        "2F0 2F1 2F2 2F3 2F4 6F0 6F1 6I0 6F2 6I1 6F3 6I2 6W0 6F4 6I3 6W1 2F5 6I4 6W2 2F6 2I0 6W3 2F7 "
        "2I1 6W4 2F8 2I2 2W0 2F9 2I3 2W1 6F5 2I4 2W2 6F6 6I5 2W3 6F7 6I6 2W4 6F8 6I7 6W5 6F9 6I8 6W6 "
        "6I9 6W7 2I5 6W8 2I6 6W9 2I7 2W5 2I8 2W6 2I9 2W7 2W8 2W9",
        "3F0 3F1 3F2 3F3 3F4 7F0 7I0 7F1 7I1 7F2 7I2 7F3 7I3 7W0 7F4 7I4 7W1 3F5 3I0 7W2 3F6 3I1 7W3 "
        "3F7 3I2 7W4 3F8 3I3 3W0 3F9 3I4 3W1 7F5 7I5 3W2 7F6 7I6 3W3 7F7 7I7 3W4 7F8 7I8 7W5 7F9 7I9 "
        "7W6 3I5 7W7 3I6 7W8 3I7 7W9 3I8 3W5 3I9 3W6 3W7 3W8 3W9",
    };
    // clang-format on
    expect_lists("zb-h1", 4, 10, 2, ranks);
}

/* Figure 3 of 2401.10241, up to the place of each W. */
Test(orders, zb_h2_as_in_the_paper)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 "
        "0W7",
        "1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 1I7 1W5 1W6 "
        "1W7",
        "2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 2W4 2W5 2W6 "
        "2W7",
        "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 "
        "3W7",
    };
    // clang-format on
    expect_lists("zb-h2", 4, 8, 1, ranks);
}

/* PyTorch's ZBVZeroBubble (p 4, m 8). */
Test(orders, zb_v_as_in_pytorch)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 "
        "7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 "
        "0I7 0W7",
        "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 "
        "1I1 1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 "
        "6W7 1W7",
        "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 "
        "5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 5W6 5W7 "
        "2W6 2W7",
        "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 "
        "3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 "
        "3W6 3W7",
    };
    // clang-format on
    expect_lists("zb-v", 4, 8, 2, ranks);
}

/* PyTorch's DualPipeV (p 4, m 10), which agrees with DeepSeek's own call order. */
Test(orders, dualpipev_as_in_pytorch)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 0F7+7B3 7F4+0B0 0F8+7B4 "
        "7F5+0B1 0F9+7B5 7F6+0B2 7B6 7F7+0B3 7B7 7F8+0B4 7B8 7F9+0B5 7B9 0I6 0W6 0I7 0W7 0I8 0W8 0I9 "
        "0W9",
        "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 1F6+6B2 6F4+1B0 1F7+6B3 6F5+1B1 "
        "1F8+6B4 6F6+1B2 1F9+6B5 6F7+1B3 6B6 6F8+1B4 6B7 6F9+1B5 6B8 1B6 6I9 1I7 6W9 1I8 1W7 1I9 1W8 "
        "1W9",
        "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 2F5+5B1 5F4+2B0 2F6+5B2 5F5+2B1 2F7+5B3 5F6+2B2 "
        "2F8+5B4 5F7+2B3 2F9+5B5 5F8+2B4 5B6 5F9+2B5 5B7 2B6 5B8 2I7 5I9 2I8 2W7 2I9 5W9 2W8 2W9",
        "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4F4+3B0 3F5+4B1 4F5+3B1 3F6+4B2 4F6+3B2 3F7+4B3 "
        "4F7+3B3 3F8+4B4 4F8+3B4 3F9+4B5 4F9+3B5 4B6 3B6 4B7 3B7 4I8 3I8 4I9 3I9 4W8 3W8 4W9 3W9",
    };
    // clang-format on
    expect_lists("dualpipev", 4, 10, 2, ranks);
}

/* DeepSeek's call order (p 4, m 8): microbatches 4 to 7 are those that feed from the last rank. */
Test(orders, dualpipe_as_by_its_authors)
{
    // clang-format off
    const char *const ranks[] = {
        "0F0 0F1 0F2 3F4 3I4 3W4 3F5 0F3+3B5 3F6+0B0 3B6 3F7+0B1 3B7 0I2 0W2 0I3 0W3",
        "1F0 2F4 1F1 2F5 1F2 2B4 2F6+1B0 1F3+2B5 2F7+1B1 2B6 1B2 2I7 1I3 2W7 1W3",
        "1F4 2F0 1F5 2F1 1F6 2B0 2F2+1B4 1F7+2B1 2F3+1B5 2B2 1B6 2I3 1I7 2W3 1W7",
        "0F4 0F5 0F6 3F0 3I0 3W0 3F1 0F7+3B1 3F2+0B4 3B2 3F3+0B5 3B3 0I6 0W6 0I7 0W7",
    };
    // clang-format on
    expect_lists("dualpipe", 4, 8, 1, ranks);
}

/* FNV-1a of all lists as text, a line per rank. */
static uint64_t digest_of(const struct schedule *s)
{
    uint64_t digest = 0xcbf29ce484222325U;
    struct text list = {0};
    for (int rank = 0; rank < s->p; rank++) {
        list_text(s, rank, false, &list);
        text_add(&list, "\n");
        for (size_t i = 0; i < list.length; i++)
            digest = (digest ^ (unsigned char)list.chars[i]) * 0x100000001b3U;
    }
    text_free(&list);
    return digest;
}

/* Made from the other programs' files, not from here: PyTorch's (interleaved, zb-h1, zb-v, dualpipev;
 * looped-bfs with its backwards in microbatch order), the zero-bubble authors' (1f1b, interleaved),
 * DeepSeek's (dualpipe, dualpipev). Where two programs made the same sizes they agreed. */
Test(orders, of_files_that_other_programs_made)
{
    static const struct {
        const char *name;
        int p, m, v;
        uint64_t digest;
    } rows[] = {
        {"1f1b", 2, 4, 1, 0x45e6462698dce289},         {"1f1b", 4, 8, 1, 0x4524a65a4d9d5795},
        {"1f1b", 8, 16, 1, 0x121728ee20989b55},        {"dualpipe", 4, 8, 1, 0xedcf6b5dbb34cfb5},
        {"dualpipe", 4, 10, 1, 0xd1a20372da9087aa},    {"dualpipev", 4, 8, 2, 0x1451715bd9e238f8},
        {"dualpipev", 4, 10, 2, 0xe597d89b4f0c1198},   {"interleaved", 2, 4, 2, 0x258d2023dfbdce49},
        {"interleaved", 2, 4, 4, 0xe4e7457790a3dc59},  {"interleaved", 2, 8, 2, 0x56c36a0607c04069},
        {"interleaved", 4, 8, 2, 0x65fca272bc5607cd},  {"interleaved", 4, 8, 4, 0x858636331ad4e127},
        {"interleaved", 4, 10, 2, 0x7478440d3b34e3e5}, {"interleaved", 8, 16, 2, 0xa8e62e7c966582df},
        {"interleaved", 8, 16, 4, 0x2339f3d355324ef5}, {"looped-bfs", 2, 8, 2, 0xe67d738794a65a45},
        {"looped-bfs", 4, 8, 2, 0x78ebdb1e60f0b6e5},   {"looped-bfs", 4, 8, 4, 0xf2a5e24a8a1d5135},
        {"looped-bfs", 4, 10, 2, 0x24f8e340daa21f65},  {"zb-h1", 2, 8, 2, 0xf08789be3b2a527d},
        {"zb-h1", 4, 8, 2, 0xffe0b7160e017c35},        {"zb-h1", 4, 8, 4, 0xe65a84609f34ba49},
        {"zb-h1", 4, 10, 2, 0x492377f5e0f7c161},       {"zb-v", 2, 8, 2, 0x32efc8121a7595f5},
        {"zb-v", 4, 8, 2, 0xf867b728d03c7059},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct schedule *s = build(rows[i].name, rows[i].p, rows[i].m, rows[i].v);
        cr_expect_eq(digest_of(s), rows[i].digest, "%s p %d m %d v %d", rows[i].name, rows[i].p, rows[i].m,
                     rows[i].v);
        schedule_destroy(s);
    }
}

/* The n-th forward (or, counted from the last chunk, backward) of a rank that goes round in rounds of `round`
 * microbatches: Megatron-LM's and PyTorch's law. */
static struct action nth(const struct schedule *s, int rank, int round, bool forward, int n,
                         enum action_kind kind)
{
    int chunk = n / round % s->v;
    if (!forward)
        chunk = s->v - 1 - chunk;
    return (struct action){
        .kind = kind, .stage = chunk * s->p + rank, .microbatch = n / (round * s->v) * round + n % round};
}

/* The list of a rank whose backwards begin `ahead` forwards late, and whose W, if they are apart, `late`
 * more. */
static void expect_law(const struct schedule *s, int rank, int round, int ahead, int late, bool split)
{
    int all = s->m * s->v, at = 0;
    const struct action_list *list = &s->ranks[rank];
    for (int t = 0; t < all + ahead + late; t++)
        for (int which = 0; which < (split ? 3 : 2); which++) {
            static const enum action_kind halves[] = {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT};
            int n = t - (which > 0 ? ahead : 0) - (which > 1 ? late : 0);
            if (n < 0 || n >= all)
                continue;
            enum action_kind kind = which == 1 && !split ? BACKWARD : halves[which];
            struct action expected = nth(s, rank, round, which == 0, n, kind);
            cr_assert_lt(at, list->count);
            struct action a = list->actions[at++];
            cr_assert(
                a.kind == expected.kind && a.stage == expected.stage && a.microbatch == expected.microbatch,
                "%s p %d m %d v %d rank %d action %d", s->family->about.name, s->p, s->m, s->v, rank, at - 1);
        }
    cr_assert_eq(at, list->count);
}

/* PyTorch's grouping: m / p rounds, at least one, of equal size; where m is no multiple of their number the
 * sizes differ by one (schedules/families/looped.c), which is not this law. Breadth-first has one round. */
Test(orders, loops_of_any_size)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 4 * p; m++)
            for (int v = 1; v <= 4; v++) {
                int rounds = m / p > 1 ? m / p : 1, round = m / rounds, all = m * v;
                if (m % rounds != 0)
                    continue;
                struct schedule *interleaved = build_lists("interleaved", p, m, v),
                                *split = build_lists("zb-h1", p, m, v);
                struct schedule *breadth = build_lists("looped-bfs", p, m, v);
                for (int rank = 0; rank < p; rank++) {
                    int loop = (v - 1) * round, down = p - 1 - rank;
                    expect_law(interleaved, rank, round, least(loop + 2 * down, all), 0, false);
                    expect_law(split, rank, round, least(loop + down, all), least(rank, all), true);
                    expect_law(breadth, rank, m, all, 0, false);
                }
                schedule_destroy(breadth);
                schedule_destroy(split);
                schedule_destroy(interleaved);
            }
}

/* How many actions two lists have in common at their beginning; or at their end, where those of `b` have
 * microbatch numbers one higher. */
static int in_common(const struct action_list *a, const struct action_list *b, bool at_end)
{
    int n = 0;
    for (; n < a->count && n < b->count; n++) {
        struct action x = a->actions[at_end ? a->count - 1 - n : n];
        struct action y = b->actions[at_end ? b->count - 1 - n : n];
        if (x.kind != y.kind || x.stage != y.stage || x.microbatch != y.microbatch - (at_end ? 1 : 0) ||
            x.overlaps_next != y.overlaps_next)
            break;
    }
    return n;
}

/* One microbatch more is one period more in the middle: filling and draining stay as they are. So the files
 * of one size say what every larger one is, from 2p microbatches on, where all of the pipe is full. */
Test(orders, one_microbatch_more_is_one_period_more)
{
    static const char *const names[] = {"1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipev"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int p = 1; p <= 8; p++)
            for (int m = 2 * p; m <= 4 * p; m++) {
                struct schedule *a = build_lists(names[i], p, m, 0), *b = build_lists(names[i], p, m + 1, 0);
                for (int rank = 0; rank < p; rank++) {
                    int begin = in_common(&a->ranks[rank], &b->ranks[rank], false);
                    int end = in_common(&a->ranks[rank], &b->ranks[rank], true);
                    cr_assert_geq(begin + end, a->ranks[rank].count, "%s p %d m %d rank %d: %d + %d of %d",
                                  names[i], p, m, rank, begin, end, a->ranks[rank].count);
                }
                schedule_destroy(b);
                schedule_destroy(a);
            }
}
