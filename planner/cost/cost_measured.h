// SPDX-License-Identifier: Apache-2.0
/* Interpolation in the measured tables of a profile. */
#pragma once

#include "planner/profile/profile.h"

/* The key of a lookup in a table of rates. */
struct measured_query {
    const int64_t *shape;
    enum profile_dtype dtype;
    int op; // for MEASURED_OP, else 0
    bool is_matmul;
    bool transposed;    // of a matmul
    bool any_operands;  // set by measured_rate(): transposed or not
    int threads, cores; // of a rank, and of its CPU; 0: of a GPU
};

/* The rate at a shape: the geometric mean of the samples of this op and dtype, of matmuls those that are
 * transposed or not (all, if there are none), weighted by the inverse fourth power of their distance in log
 * space, or an exact match. The alignment of a CPU's matrix rows counts as a distance. On a CPU: interpolated
 * between the nearest numbers of threads, as a power of the threads; beyond all samples, in proportion to the
 * nearest. A matmul always uses the samples with the most threads up to query->threads, else those with the
 * fewest, times the gain from dividing it among more threads (kernels/device_plan.h). False if the table has
 * none. */
bool measured_rate(const struct profile_measured *table, const struct measured_query *query, double *out);

/* The key of a lookup in a table of seconds. */
struct measured_transfer {
    int ranks, nodes;
    double bytes;
    int node_ranks; // of a CPU: ranks of a node in groups with concurrent transfers; 0: a GPU
    bool processes; // prefers samples of ranks that are processes
};

/* Seconds of a transfer: linear between the two nearest sizes; at the rate of the largest beyond it; the time
 * of the smallest below it. Uses the samples of these ranks and nodes with the nearest node_ranks. False if
 * the table has none. */
bool measured_seconds(const struct profile_measured *table, const struct measured_transfer *transfer,
                      double *out);
