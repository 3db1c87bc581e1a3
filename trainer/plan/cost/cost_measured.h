// SPDX-License-Identifier: Apache-2.0
/* Looks up measured tables of a profile. */
#pragma once

#include "trainer/plan/profile/profile.h"

/* Which rate. */
struct measured_query {
    const int64_t *shape;
    enum profile_dtype dtype;
    int op; // of MEASURED_OP, else 0
    bool is_matmul;
    int threads, cores; // of a rank, and of its CPU; 0: of a GPU
};

/* The rate at a shape: the geometric mean of the samples of this op and dtype, weighted by the inverse fourth
 * power of their distance in log space; the sample itself where one matches. On a CPU: between those of the
 * nearest numbers of threads, by a power of the threads; fewer or more threads than all samples have get
 * their part or multiple of the nearest. A matmul always gets those of the most threads up to query->threads,
 * else of the fewest, times how much better more threads divide it (kernels/device_plan.h). False if the
 * table has none. */
bool measured_rate(const struct profile_measured *table, const struct measured_query *query, double *out);

/* Which time. */
struct measured_transfer {
    int ranks, nodes;
    double bytes;
    int node_ranks; // of a CPU, in groups of such transfers at the same time; 0: a GPU
    bool processes; // and whether they are, if there are such samples
};

/* Seconds of a transfer: between the two nearest sizes, linear; beyond the largest, at its rate; below the
 * smallest, its time. Of the samples of these ranks and nodes, those with the nearest node_ranks. False if
 * the table has none. */
bool measured_seconds(const struct profile_measured *table, const struct measured_transfer *transfer,
                      double *out);
