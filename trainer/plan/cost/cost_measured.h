// SPDX-License-Identifier: Apache-2.0
/* Looks up measured tables of a profile. */
#pragma once

#include "trainer/plan/profile/profile.h"

/* The rate at a shape: the geometric mean of the samples of this dtype, weighted by the inverse fourth power
 * of their distance in log space; the sample itself where one matches. False if the table has none. */
bool measured_rate(const struct profile_measured *table, const int64_t *shape, enum profile_dtype dtype,
                   double *out);

/* Seconds of `bytes` among `ranks` on `nodes`: between the two nearest sizes, linear; beyond the largest, at
 * its rate; below the smallest, its time. False if the table has no sample of these ranks and nodes. */
bool measured_seconds(const struct profile_measured *table, int ranks, int nodes, double bytes, double *out);
