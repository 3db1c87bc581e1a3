// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_blend.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLEND "the blend of data.train or data.valid"

enum { EXACT_PERIODS = 1 << 16, ROUNDED_PERIOD = 1 << 20 };

struct blend {
    int count;
    int64_t period;
    int64_t *share;   // [count] samples of each source per period
    uint16_t *source; // [period]
    uint32_t *turn;   // [period] previous samples of the same source in this period
};

/* Tests whether every weight (sum 1) is a multiple of 1/period, and returns the multiples. */
static bool weights_fit(const double *weights, int count, int64_t period, int64_t *share)
{
    for (int k = 0; k < count; k++) {
        double parts = weights[k] * (double)period;
        share[k] = llrint(parts);
        if (share[k] < 1 || fabs(parts - (double)share[k]) > 1e-9)
            return false;
    }
    return true;
}

/* The nearest integers of sum `period`, each at least 1: rounds down, then adds the remainder one by one to
 * the sources with the largest rounding loss (or subtracts it from those with the largest gain). */
static void round_weights(const double *weights, int count, int64_t period, int64_t *share)
{
    int64_t left = period;
    for (int k = 0; k < count; k++) {
        int64_t parts = (int64_t)floor(weights[k] * (double)period);
        share[k] = parts < 1 ? 1 : parts;
        left -= share[k];
    }
    for (int step = left > 0 ? 1 : -1; left != 0; left -= step) {
        int best = -1;
        double best_gap = 0.0;
        for (int k = 0; k < count; k++) {
            double gap = (weights[k] * (double)period - (double)share[k]) * step;
            if (share[k] + step >= 1 && (best < 0 || gap > best_gap)) {
                best = k;
                best_gap = gap;
            }
        }
        share[best] += step;
    }
}

/* Computes the choices of one period. lag[k] is (weight_k * max(i, 1) - c_k) * period, an integer. */
static void fill_period(struct blend *b, int64_t *lag, uint32_t *given)
{
    for (int k = 0; k < b->count; k++)
        lag[k] = b->share[k];
    for (int64_t i = 0; i < b->period; i++) {
        int next = 0;
        for (int k = 0; k < b->count; k++) {
            lag[k] += i >= 2 ? b->share[k] : 0;
            next = lag[k] > lag[next] ? k : next;
        }
        lag[next] -= b->period;
        b->source[i] = (uint16_t)next;
        b->turn[i] = given[next]++;
    }
    for (int k = 0; k < b->count; k++)
        CHECK(given[k] == (uint64_t)b->share[k]); // otherwise the next period would begin differently
}

static void make_table(struct blend *b, const double *weights)
{
    int64_t period = 1;
    while (period <= EXACT_PERIODS && !weights_fit(weights, b->count, period, b->share))
        period++;
    if (period > EXACT_PERIODS) {
        period = ROUNDED_PERIOD;
        round_weights(weights, b->count, period, b->share);
    }
    b->period = period;
    b->source = memory_zeroed((size_t)period, sizeof *b->source, BLEND);
    b->turn = memory_zeroed((size_t)period, sizeof *b->turn, BLEND);
    AUTO_FREE int64_t *lag = memory_zeroed((size_t)b->count, sizeof *lag, BLEND);
    AUTO_FREE uint32_t *given = memory_zeroed((size_t)b->count, sizeof *given, BLEND);
    fill_period(b, lag, given);
}

struct blend *blend_create(const double *weights, int count)
{
    CHECK(count >= 1 && count <= UINT16_MAX);
    struct blend *b = memory_zeroed(1, sizeof *b, BLEND);
    AUTO_FREE double *normal = memory_zeroed((size_t)count, sizeof *normal, BLEND);
    double largest = 0.0, sum = 0.0;
    for (int k = 0; k < count; k++) {
        CHECK(isfinite(weights[k]) && weights[k] > 0.0);
        largest = fmax(largest, weights[k]);
    }
    for (int k = 0; k < count; k++)
        sum += weights[k] / largest; // cannot overflow, for any weights
    for (int k = 0; k < count; k++)
        normal[k] = weights[k] / largest / sum;
    b->count = count;
    b->share = memory_zeroed((size_t)count, sizeof *b->share, BLEND);
    make_table(b, normal);
    return b;
}

void blend_destroy(struct blend *blend)
{
    if (blend == NULL)
        return;
    free(blend->share);
    free(blend->source);
    free(blend->turn);
    free(blend);
}

void blend_at(const struct blend *blend, uint64_t sample, int *source, uint64_t *ordinal)
{
    uint64_t period = (uint64_t)blend->period, at = sample % period;
    *source = blend->source[at];
    *ordinal = sample / period * (uint64_t)blend->share[*source] + blend->turn[at];
}

int64_t blend_share(const struct blend *blend, int source, int64_t *period)
{
    *period = blend->period;
    return blend->share[source];
}

void blend_counts(const struct blend *blend, int64_t samples, int64_t *counts)
{
    for (int k = 0; k < blend->count; k++)
        counts[k] = samples / blend->period * blend->share[k];
    for (int64_t i = 0; i < samples % blend->period; i++)
        counts[blend->source[i]]++;
}

bool blend_equal(const struct blend *a, const struct blend *b)
{
    return a->count == b->count && a->period == b->period &&
           memcmp(a->share, b->share, (size_t)a->count * sizeof *a->share) == 0;
}
