// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/straggler.h"

#include "base/memory.h"

#include <stddef.h>
#include <stdlib.h>

static const double slow = 1.1;
static const int64_t noise_ns = 100000; // smaller differences are noise: caches of cores that are shared

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One of the times of a rank: `field` is the offset of an int64_t. */
static int64_t time_of(const struct straggler *rank, size_t field)
{
    return *(const int64_t *)(const void *)((const char *)rank + field);
}

/* Collects the times of a rank's peers, or of those on its core. Returns their number. */
static int peer_times(const struct straggler *ranks, int count, int index, size_t field, bool on_core,
                      int64_t *times)
{
    const struct straggler *own = &ranks[index];
    int peers = 0;
    for (int r = 0; r < count; r++)
        if (r != index && ranks[r].pp == own->pp &&
            (!on_core || (own->core >= 0 && ranks[r].core == own->core)))
            times[peers++] = time_of(&ranks[r], field);
    return peers;
}

/* The time of a rank relative to the median of its peers, with on_core of those on its core if there are any:
 * 1.2 for 20 % more; 1 without peers, or if the difference is noise. times: [count], scratch. */
static double ratio_of(const struct straggler *ranks, int count, int index, size_t field, bool on_core,
                       int64_t *times)
{
    int peers = peer_times(ranks, count, index, field, on_core, times);
    if (peers == 0)
        peers = peer_times(ranks, count, index, field, false, times);
    if (peers == 0)
        return 1.0;
    qsort(times, (size_t)peers, sizeof *times, by_value);
    const double median = 0.5 * (double)(times[(peers - 1) / 2] + times[peers / 2]);
    const double mine = (double)time_of(&ranks[index], field);
    return median > 0.0 && mine >= median + (double)noise_ns ? mine / median : 1.0;
}

static int slow_steps(const struct straggler *rank)
{
    int count = 0;
    for (uint32_t bits = rank->slow; bits != 0; bits &= bits - 1)
        count++;
    return count;
}

/* Keeps the time of this step, and finds the fastest one. */
static void keep_time(struct straggler *rank)
{
    rank->recent_ns[rank->steps++ % STRAGGLER_STEPS] = rank->compute_ns;
    rank->fastest_ns = rank->steps < STRAGGLER_STEPS ? 0 : rank->compute_ns;
    for (int i = 0; i < STRAGGLER_STEPS; i++)
        if (rank->recent_ns[i] < rank->fastest_ns)
            rank->fastest_ns = rank->recent_ns[i];
}

int straggler_step(struct straggler *ranks, int count)
{
    const double weight = 0.1; // of a step in the average
    const uint32_t all = (UINT32_C(1) << STRAGGLER_STEPS) - 1;
    int found = -1;
    AUTO_FREE int64_t *times = memory_zeroed((size_t)count + 1, sizeof *times, "the times of ranks");
    for (int r = 0; r < count; r++)
        keep_time(&ranks[r]);
    for (int r = 0; r < count; r++) {
        struct straggler *rank = &ranks[r];
        const double now = ratio_of(ranks, count, r, offsetof(struct straggler, compute_ns), true, times);
        const double fastest =
            ratio_of(ranks, count, r, offsetof(struct straggler, fastest_ns), false, times);
        rank->excess = rank->slow == 0 ? now - 1.0 : rank->excess + weight * (now - 1.0 - rank->excess);
        rank->slow = (rank->slow << 1 | (now >= slow)) & all;
        const bool is_slow = slow_steps(rank) >= STRAGGLER_SLOW && fastest >= slow;
        if (is_slow && !rank->named)
            found = r;
        rank->named = is_slow || (rank->named && slow_steps(rank) > STRAGGLER_STEPS / 4);
    }
    return found;
}
