// SPDX-License-Identifier: Apache-2.0
/* Which source gives sample i, when several are mixed by weight: the one that lags most behind its share,
 * as Megatron's build_blending_indices has it. Before sample i, source k should have given weight_k * i
 * samples and has given c_k; the largest weight_k * max(i, 1) - c_k is next, the first of equals.
 *
 *     weights 0.7 0.3:   0 1 0 0 1 0 0 1 0 0   0 1 0 0 ...
 *
 * A run may ask for any sample, so the choices of one period are kept in a table: with weights that are
 * whole numbers w_k of sum P, every source has given exactly w_k after P samples. (A choice leaves no source
 * a full sample ahead, since the largest lag is never negative; so after P samples every lag is a whole
 * number above -1, and they add up to 0.) The P used is the smallest that writes the weights exactly, which
 * for weights typed by people is small; weights without one are rounded to parts of 2^20. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct blend;

/* `weights` are finite and positive; `count` is at least 1, at most 65535 (CHECKed: the caller knows their
 * names). */
MUST_USE enum status blend_create(const double *weights, int count, struct blend **out);
void blend_destroy(struct blend *blend); // takes NULL

/* Sample `sample` of the whole is sample `*ordinal` of source `*source`. */
void blend_at(const struct blend *blend, uint64_t sample, int *source, uint64_t *ordinal);

/* The samples that a source gives in a period, and the period. */
int64_t blend_share(const struct blend *blend, int source, int64_t *period);
