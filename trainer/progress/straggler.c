// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/straggler.h"

#include <stdlib.h>

static const double slow = 1.1;
static const int64_t noise_ns = 20000; // smaller differences are noise

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median time of the peers of a rank; 0 without peers. times: [count]. */
static double median_of_peers(const struct straggler *ranks, int count, int index, int64_t *times)
{
    int peers = 0;
    for (int r = 0; r < count; r++)
        if (r != index && ranks[r].pp == ranks[index].pp)
            times[peers++] = ranks[r].compute_ns;
    if (peers == 0)
        return 0.0;
    qsort(times, (size_t)peers, sizeof *times, by_value);
    return 0.5 * (double)(times[(peers - 1) / 2] + times[peers / 2]);
}

static int slow_steps(const struct straggler *rank)
{
    int count = 0;
    for (uint32_t bits = rank->slow; bits != 0; bits &= bits - 1)
        count++;
    return count;
}

static void add_step(struct straggler *rank, double median)
{
    const double weight = 0.1;
    const uint32_t all = (UINT32_C(1) << STRAGGLER_STEPS) - 1;
    double mine = (double)rank->compute_ns;
    bool is_slow = median > 0.0 && mine >= slow * median && mine >= median + (double)noise_ns;
    double excess = median > 0.0 ? mine / median - 1.0 : 0.0;
    rank->excess = rank->slow == 0 ? excess : rank->excess + weight * (excess - rank->excess);
    rank->slow = (rank->slow << 1 | is_slow) & all;
}

int straggler_step(struct straggler *ranks, int count)
{
    int found = -1;
    int64_t *times = calloc((size_t)count + 1, sizeof *times);
    if (times == NULL)
        return -1;
    for (int r = 0; r < count; r++) {
        add_step(&ranks[r], median_of_peers(ranks, count, r, times));
        int steps = slow_steps(&ranks[r]);
        if (steps >= STRAGGLER_SLOW && !ranks[r].named)
            found = r;
        ranks[r].named = steps >= STRAGGLER_SLOW || (ranks[r].named && steps > STRAGGLER_STEPS / 4);
    }
    free(times);
    return found;
}
