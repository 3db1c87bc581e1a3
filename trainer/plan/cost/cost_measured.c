// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/cost/cost_measured.h"

#include <math.h>

static double distance(const struct profile_sample *sample, const int64_t *shape)
{
    double squares = 0.0;
    for (int i = 0; i < MEASURED_COLUMNS; i++) {
        if (sample->shape[i] < 1 || shape[i] < 1)
            continue;
        double d = log((double)sample->shape[i] / (double)shape[i]);
        squares += d * d;
    }
    return squares;
}

bool measured_rate(const struct profile_measured *table, const int64_t *shape, enum profile_dtype dtype,
                   double *out)
{
    double weights = 0.0, logs = 0.0;
    for (size_t i = 0; i < table->count; i++) {
        const struct profile_sample *sample = &table->list[i];
        if (sample->dtype != dtype)
            continue;
        double squares = distance(sample, shape);
        if (squares == 0.0) {
            *out = sample->value;
            return true;
        }
        double weight = 1.0 / (squares * squares);
        weights += weight;
        logs += weight * log(sample->value);
    }
    if (weights > 0.0)
        *out = exp(logs / weights);
    return weights > 0.0;
}

static bool is_of(const struct profile_sample *sample, int ranks, int nodes)
{
    return sample->shape[0] == ranks && sample->shape[1] == nodes;
}

bool measured_seconds(const struct profile_measured *table, int ranks, int nodes, double bytes, double *out)
{
    const struct profile_sample *below = NULL, *above = NULL;
    for (size_t i = 0; i < table->count; i++) {
        const struct profile_sample *sample = &table->list[i];
        double size = (double)sample->shape[2];
        if (!is_of(sample, ranks, nodes))
            continue;
        if (size <= bytes && (below == NULL || sample->shape[2] > below->shape[2]))
            below = sample;
        if (size >= bytes && (above == NULL || sample->shape[2] < above->shape[2]))
            above = sample;
    }
    if (below == NULL && above == NULL)
        return false;
    if (above == NULL)
        *out = below->value * bytes / (double)below->shape[2];
    else if (below == NULL || above->shape[2] == below->shape[2])
        *out = above->value;
    else
        *out = below->value + (above->value - below->value) * (bytes - (double)below->shape[2]) /
                                  (double)(above->shape[2] - below->shape[2]);
    return true;
}
