// SPDX-License-Identifier: Apache-2.0
/* Blending of sources by weight: sample i is taken from the source that is furthest behind its share, as in
 * Megatron's build_blending_indices. Before sample i, source k should have contributed weight_k * i samples
 * and has contributed c_k; the source with the largest weight_k * max(i, 1) - c_k is next, the first one if
 * equal.
 *
 *     weights 0.7 0.3:   0 1 0 0 1 0 0 1 0 0   0 1 0 0 ...
 *
 * A run may ask for any sample, so the choices of one period are stored in a table: with integer weights w_k
 * of sum P, every source has contributed exactly w_k after P samples. (The choice never puts a source a full
 * sample ahead, since the largest lag is never negative; so after P samples every lag is an integer above -1,
 * and their sum is 0.) P is the smallest period that represents the weights exactly, which is small for
 * weights written by people; other weights are rounded to multiples of 2^-20. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct blend;

/* Creates a blend. The caller guarantees finite positive weights and a count of 1 to 65535 (CHECKed). */
struct blend *blend_create(const double *weights, int count);
void blend_destroy(struct blend *blend); // accepts NULL

/* Sample `sample` of the blend is sample `*ordinal` of source `*source`. */
void blend_at(const struct blend *blend, uint64_t sample, int *source, uint64_t *ordinal);

/* Samples of a source in one period, and the period. */
int64_t blend_share(const struct blend *blend, int source, int64_t *period);

/* Samples of each source, counts[count], among the first `samples` of the blend. */
void blend_counts(const struct blend *blend, int64_t samples, int64_t *counts);

/* True if both choose the same source for every sample. */
bool blend_equal(const struct blend *a, const struct blend *b);
