// SPDX-License-Identifier: Apache-2.0
#include "schedules/look_ahead.h"
#include "tests/unit/schedule_tools.h"

#include <stdlib.h>

static bool is_ahead(struct action a)
{
    return a.kind == FORWARD || a.kind == SEND_ACTIVATION || a.kind == RECV_ACTIVATION;
}

/* The same from below: ranks run, a message is passed when sender and receiver both stand at it, and whoever
 * stands at something else stays there. */
static void run_until_stuck(const struct schedule *s, int *at)
{
    bool moved = true;
    for (int rank = 0; rank < s->p; rank++)
        at[rank] = 0;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < s->p; rank++) {
            struct action a = s->ranks[rank].actions[at[rank]]; // a list ends with a backward
            if (!is_ahead(a))
                continue;
            if (a.kind != FORWARD) {
                struct action other = s->ranks[a.peer].actions[at[a.peer]];
                int up = a.kind == SEND_ACTIVATION ? 1 : -1;
                if (!is_ahead(other) || other.kind == FORWARD || other.kind == a.kind || other.peer != rank ||
                    other.stage != a.stage + up || other.microbatch != a.microbatch)
                    continue;
                at[a.peer]++;
            }
            at[rank]++;
            moved = true;
        }
    }
}

static void expect_longest(struct schedule_options options)
{
    struct schedule *s = build_with(options);
    int *count = calloc((size_t)s->p, sizeof *count), *at = calloc((size_t)s->p, sizeof *at);
    cr_assert_eq(schedule_look_ahead(s, count), OK);
    run_until_stuck(s, at);
    for (int rank = 0; rank < s->p; rank++)
        cr_assert_eq(count[rank], at[rank], "%s p %d m %d v %d, rank %d: %d, not %d", options.name, s->p,
                     s->m, s->v, rank, count[rank], at[rank]);
    free(count);
    free(at);
    schedule_destroy(s);
}

Test(look_ahead, is_the_longest_without_an_open_message)
{
    struct dice dice = {.generator = philox_named(1, "look ahead")};
    for (int index = 0; schedule_about(index) != NULL; index++)
        for (int i = 0; i < cases(300); i++)
            expect_longest(throw_options(&dice, index, 9, 20));
}

/* Forwards that are run before the step is certain. */
static void expect_forwards(const char *name, int p, int m, int v, const int *forwards)
{
    struct schedule *s = build(name, p, m, v);
    int count[8];
    cr_assert_eq(schedule_look_ahead(s, count), OK);
    for (int rank = 0; rank < p; rank++) {
        int found = 0;
        for (int i = 0; i < count[rank]; i++)
            found += s->ranks[rank].actions[i].kind == FORWARD;
        cr_assert_eq(found, forwards[rank], "%s rank %d: %d", name, rank, found);
    }
    schedule_destroy(s);
}

Test(look_ahead, in_known_schedules)
{
    expect_forwards("1f1b", 4, 8, 1, (const int[]){4, 3, 2, 1});
    expect_forwards("zb-h2", 4, 8, 1, (const int[]){6, 4, 3, 1}); // of 7 5 3 1 before the first backward
    expect_forwards("zb-v", 4, 8, 2, (const int[]){8, 8, 8, 8});
    expect_forwards("gpipe", 2, 3, 1, (const int[]){3, 3});
    expect_forwards("1f1b", 3, 1, 1, (const int[]){1, 1, 1});
}
