// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/straggler.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static const double slow = 1.1;
static const int64_t noise_ns = 100000; // smaller differences are noise: caches of cores that are shared

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median(int64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_value);
    return 0.5 * (double)(times[(count - 1) / 2] + times[count / 2]);
}

/* One of the times of a rank: `field` is the offset of an int64_t. */
static int64_t time_of(const struct straggler *rank, size_t field)
{
    return *(const int64_t *)(const void *)((const char *)rank + field);
}

/* The median of the times of a rank's peers; 0: it has none. times: [count], scratch. */
static double median_of_peers(const struct straggler *ranks, int count, int index, size_t field,
                              int64_t *times)
{
    int peers = 0;
    for (int r = 0; r < count; r++)
        if (r != index && ranks[r].pp == ranks[index].pp)
            times[peers++] = time_of(&ranks[r], field);
    return peers > 0 ? median(times, peers) : 0.0;
}

/* The time of a rank relative to the median of its peers: 1.2 for 20 % more; 1 without peers, or if the
 * difference is noise. */
static double ratio_of(const struct straggler *ranks, int count, int index, size_t field, int64_t *times)
{
    const double theirs = median_of_peers(ranks, count, index, field, times);
    const double mine = (double)time_of(&ranks[index], field);
    return theirs > 0.0 && mine >= theirs + (double)noise_ns ? mine / theirs : 1.0;
}

/* ---- cores ---- */

static void set_relative(struct straggler *ranks, int count, int64_t *times)
{
    const double millionth = 1e-6;
    for (int r = 0; r < count; r++) {
        const double theirs = median_of_peers(ranks, count, r, offsetof(struct straggler, compute_ns), times);
        ranks[r].relative = theirs > 0.0 ? (int64_t)((double)ranks[r].compute_ns / theirs / millionth) : 0;
    }
}

/* Whether a rank and at least half of its peers wait for processors. */
static bool is_crowded(const struct straggler *ranks, int count, int index)
{
    int peers = 0, crowded = 0;
    for (int r = 0; r < count; r++) {
        const bool is_peer = r != index && ranks[r].pp == ranks[index].pp;
        peers += is_peer;
        crowded += is_peer && ranks[r].crowded;
    }
    return ranks[index].crowded && 2 * crowded >= peers;
}

/* The most that the time of this step says about a rank, and not about its core: as ratio_of(). */
static double ratio_on_core(const struct straggler *ranks, int count, int index, int64_t *times)
{
    const struct straggler *own = &ranks[index];
    int others = 0;
    if (own->core < 0)
        return INFINITY;
    for (int r = 0; r < count; r++)
        if (r != index && ranks[r].core == own->core && ranks[r].relative > 0)
            times[others++] = ranks[r].relative;
    if (others > 0)
        return (double)own->relative / median(times, others);
    return is_crowded(ranks, count, index) ? 1.0 : INFINITY;
}

/* ---- steps ---- */

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
    int64_t *times = calloc((size_t)count + 1, sizeof *times);
    if (times == NULL)
        return -1;
    for (int r = 0; r < count; r++)
        keep_time(&ranks[r]);
    set_relative(ranks, count, times);
    for (int r = 0; r < count; r++) {
        struct straggler *rank = &ranks[r];
        const double now = fmin(ratio_of(ranks, count, r, offsetof(struct straggler, compute_ns), times),
                                ratio_on_core(ranks, count, r, times));
        const double fastest = ratio_of(ranks, count, r, offsetof(struct straggler, fastest_ns), times);
        rank->excess = rank->slow == 0 ? now - 1.0 : rank->excess + weight * (now - 1.0 - rank->excess);
        rank->slow = (rank->slow << 1 | (now >= slow)) & all;
        const bool is_slow = slow_steps(rank) >= STRAGGLER_SLOW && fastest >= slow;
        if (is_slow && !rank->named)
            found = r;
        rank->named = is_slow || (rank->named && slow_steps(rank) > STRAGGLER_STEPS / 4);
    }
    free(times);
    return found;
}
