// SPDX-License-Identifier: Apache-2.0
#include "planner/cost/cost_measured.h"

#include "kernels/device_plan.h"

#include <math.h>

/* The largest power of two that divides the bytes of a row, up to a page. */
static double row_alignment(int64_t elements, enum profile_dtype dtype)
{
    enum { PAGE_BYTES = 4096 };
    const int64_t bytes = elements * (dtype == PROFILE_BF16 || dtype == PROFILE_FP16 ? 2 : 4);
    const int64_t power = bytes & -bytes;
    return power < PAGE_BYTES ? (double)power : PAGE_BYTES;
}

/* Whether a dimension of a CPU's matmul (m, n, k) is the length of the rows of an operand. Addresses that are
 * a multiple of a page apart share few sets of a cache, so the alignment of rows can halve the rate. */
static bool is_row_length(const struct measured_query *query, int dimension)
{
    enum { M, N };
    return query->is_matmul && query->threads > 0 &&
           (dimension == N || (dimension == M) == query->transposed);
}

/* In log space. A factor of two in the alignment of rows counts as much as four such factors in size: with 0,
 * samples of other m and n predict the rate of a weight gradient with an error of 24 %, with 4 of 4 %
 * (medians, AMD EPYC). */
static double distance(const struct profile_sample *sample, const struct measured_query *query)
{
    static const double ALIGNMENT = 4.0;
    double squares = 0.0;
    for (int i = 0; i < MEASURED_COLUMNS; i++) {
        const int64_t there = sample->shape[i], here = query->shape[i];
        if (there < 1 || here < 1)
            continue;
        const double size = log((double)there / (double)here);
        squares += size * size;
        if (!is_row_length(query, i))
            continue;
        const double rows =
            ALIGNMENT * log(row_alignment(there, sample->dtype) / row_alignment(here, query->dtype));
        squares += rows * rows;
    }
    return squares;
}

/* The threads per rank of a sample. */
static int threads_of(const struct profile_sample *sample, const struct measured_query *query)
{
    return sample->threads > 0 ? sample->threads : query->cores;
}

static bool is_of_op(const struct profile_sample *sample, const struct measured_query *query)
{
    return sample->dtype == query->dtype && sample->op == query->op;
}

static bool matches(const struct profile_sample *sample, const struct measured_query *query)
{
    return is_of_op(sample, query) && (query->any_operands || sample->transposed == query->transposed);
}

static bool has_samples(const struct profile_measured *table, const struct measured_query *query)
{
    size_t i = 0;
    while (i < table->count && !matches(&table->list[i], query))
        i++;
    return i < table->count;
}

/* The rate from the samples with query->threads; 0: from all. */
static bool rate_at(const struct profile_measured *table, const struct measured_query *query, double *out)
{
    double weights = 0.0, logs = 0.0;
    for (size_t i = 0; i < table->count; i++) {
        const struct profile_sample *sample = &table->list[i];
        if (!matches(sample, query) || (query->threads > 0 && threads_of(sample, query) != query->threads))
            continue;
        double squares = distance(sample, query);
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

static double divided(const struct measured_query *query, int threads)
{
    return cpu_matmul_speedup(query->shape[0], query->shape[1], threads);
}

static bool rate_of_threads(const struct profile_measured *table, const struct measured_query *query,
                            double *out)
{
    struct measured_query fewer = *query, more = *query;
    double low = 0.0, high = 0.0;
    if (query->threads == 0)
        return rate_at(table, query, out);
    fewer.threads = more.threads = 0;
    for (size_t i = 0; i < table->count; i++) {
        const int threads = threads_of(&table->list[i], query);
        if (!matches(&table->list[i], query))
            continue;
        if (threads <= query->threads && threads > fewer.threads)
            fewer.threads = threads;
        if (threads >= query->threads && (more.threads == 0 || threads < more.threads))
            more.threads = threads;
    }
    if (fewer.threads == 0 && more.threads == 0)
        return false;
    if (fewer.threads > 0)
        rate_at(table, &fewer, &low);
    if (more.threads > 0)
        rate_at(table, &more, &high);
    const double threads = query->threads;
    if (query->is_matmul)
        *out = fewer.threads > 0 ? low * divided(query, query->threads) / divided(query, fewer.threads)
                                 : high * divided(query, query->threads) / divided(query, more.threads);
    else if (fewer.threads == 0)
        *out = high * threads / more.threads;
    else if (more.threads <= fewer.threads)
        *out = low * threads / fewer.threads;
    else
        *out =
            low * pow(high / low, log(threads / fewer.threads) / log((double)more.threads / fewer.threads));
    return true;
}

bool measured_rate(const struct profile_measured *table, const struct measured_query *query, double *out)
{
    struct measured_query asked = *query;
    asked.any_operands = !has_samples(table, query);
    return rate_of_threads(table, &asked, out);
}

/* ---- transfers ---- */

/* The conditions of a sample. */
struct conditions {
    int node_ranks;
    bool processes;
};

static bool is_of(const struct profile_sample *sample, const struct measured_transfer *transfer)
{
    return sample->shape[0] == transfer->ranks && sample->shape[1] == transfer->nodes;
}

static int node_ranks_of(const struct profile_sample *sample)
{
    return sample->node_ranks > 0 ? sample->node_ranks : (int)(sample->shape[0] / sample->shape[1]);
}

/* Finds the conditions nearest to those of the transfer. False: there are no samples. */
static bool nearest_conditions(const struct profile_measured *table, const struct measured_transfer *transfer,
                               struct conditions *out)
{
    const double asked = transfer->node_ranks > 0 ? transfer->node_ranks : 1.0;
    double nearest = INFINITY;
    for (size_t i = 0; i < table->count; i++) {
        const struct profile_sample *sample = &table->list[i];
        const double other_kind = sample->processes != transfer->processes ? 1e3 : 0.0;
        const double away = fabs(log(node_ranks_of(sample) / asked)) + other_kind;
        if (!is_of(sample, transfer) || !(away < nearest))
            continue;
        nearest = away;
        *out = (struct conditions){node_ranks_of(sample), sample->processes};
    }
    return nearest < INFINITY;
}

bool measured_seconds(const struct profile_measured *table, const struct measured_transfer *transfer,
                      double *out)
{
    const struct profile_sample *below = NULL, *above = NULL;
    const double bytes = transfer->bytes;
    struct conditions way = {0, false};
    if (!nearest_conditions(table, transfer, &way))
        return false;
    for (size_t i = 0; i < table->count; i++) {
        const struct profile_sample *sample = &table->list[i];
        double size = (double)sample->shape[2];
        if (!is_of(sample, transfer) || node_ranks_of(sample) != way.node_ranks ||
            sample->processes != way.processes)
            continue;
        if (size <= bytes && (below == NULL || sample->shape[2] > below->shape[2]))
            below = sample;
        if (size >= bytes && (above == NULL || sample->shape[2] < above->shape[2]))
            above = sample;
    }
    if (above == NULL)
        *out = below->value * bytes / (double)below->shape[2];
    else if (below == NULL || above->shape[2] == below->shape[2])
        *out = above->value;
    else
        *out = below->value + (above->value - below->value) * (bytes - (double)below->shape[2]) /
                                  (double)(above->shape[2] - below->shape[2]);
    return true;
}
