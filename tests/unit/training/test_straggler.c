// SPDX-License-Identifier: Apache-2.0
/* Which rank is named as a straggler, from times written by hand. */
#include "trainer/progress/straggler.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* Steps until a rank is named, and how often; noise: of a single step. */
static int steps_until_named(double slower, double noise, int steps, int *times)
{
    struct straggler ranks[6] = {0};
    int first = -1;
    *times = 0;
    unsigned state = 7; // of rand_r()
    for (int step = 1; step <= steps; step++) {
        for (int r = 0; r < 6; r++) {
            ranks[r].rank = r;
            ranks[r].pp = r / 3; // the second stage has twice the work
            double time_ns = 1e7 * (1 + r / 3) * (1.0 + noise * ((double)rand_r(&state) / RAND_MAX - 0.5));
            ranks[r].compute_ns = (int64_t)(r == 4 ? slower * time_ns : time_ns);
        }
        int found = straggler_step(ranks, 6);
        cr_assert(found == -1 || found == 4);
        first = found >= 0 && first < 0 ? step : first;
        *times += found >= 0;
    }
    return first;
}

Test(straggler, is_named_once_and_nobody_else)
{
    int times;
    cr_assert_eq(steps_until_named(1.2, 0.0, 100, &times), STRAGGLER_STEPS);
    cr_assert_eq(times, 1);
    cr_assert_leq(steps_until_named(1.2, 0.05, 100, &times), STRAGGLER_STEPS + 5);
    cr_assert_eq(steps_until_named(1.1, 0.0, 100, &times), STRAGGLER_STEPS);
    cr_assert_eq(steps_until_named(1.0, 0.3, 5000, &times), -1);
    cr_assert_eq(steps_until_named(1.08, 0.0, 5000, &times), -1);
}

/* Ranks 0 and 1 share a core that is slow; rank 3 is slow itself, on the other core. */
Test(straggler, a_slow_core_is_not_a_slow_rank)
{
    struct straggler ranks[4] = {0};
    int named[4] = {0};
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 4; r++) {
            ranks[r].core = r / 2;
            ranks[r].compute_ns = r < 2 || (r == 3 && step >= 50) ? 13000000 : 10000000;
        }
        const int found = straggler_step(ranks, 4);
        if (found >= 0)
            named[found] = step + 1;
    }
    cr_assert_eq(named[0] + named[1] + named[2], 0);
    cr_assert_eq(named[3], 0); // half of the ranks are as slow
    for (int r = 0; r < 2; r++)
        ranks[r] = (struct straggler){.core = 1};
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 4; r++)
            ranks[r].compute_ns = r == 3 ? 13000000 : 10000000;
        const int found = straggler_step(ranks, 4);
        cr_assert(found == -1 || found == 3);
        named[3] += found == 3;
    }
    cr_assert_eq(named[3], 1);
}

/* Four ranks of two stages on two cores, all as fast as each other; all that runs on core 0 is slow. on_core:
 * the core of each. Returns how many are named in 100 steps. */
static int named_on(const int *on_core, bool crowded, int *last)
{
    struct straggler ranks[4] = {0};
    int named = 0;
    for (int step = 0; step < 100; step++) {
        for (int r = 0; r < 4; r++) {
            ranks[r].pp = r / 2;
            ranks[r].core = on_core[r];
            ranks[r].crowded = crowded;
            ranks[r].compute_ns = on_core[r] == 0 ? 12500000 : 10000000;
        }
        const int found = straggler_step(ranks, 4);
        named += found >= 0;
        *last = found >= 0 ? found : *last;
    }
    return named;
}

/* On a machine with more programs than cores, neither a rank whose only peer is on another core is named for
 * its core, nor one that is alone on it. Where ranks have their cores for themselves, it is named. */
Test(straggler, is_not_named_for_its_core)
{
    int last = -1;
    cr_assert_eq(named_on((int[]){0, 1, 0, 1}, true, &last), 0);
    cr_assert_eq(named_on((int[]){0, 1, 0, 1}, false, &last), 0);
    cr_assert_eq(named_on((int[]){1, 1, 0, 1}, true, &last), 0);
    cr_assert_eq(named_on((int[]){1, 1, 0, 1}, false, &last), 1);
    cr_assert_eq(last, 2);
}
