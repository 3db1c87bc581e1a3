// SPDX-License-Identifier: Apache-2.0
/* Token sampling from the model's distribution, with temperature, top-k and top-p.
 *
 *     logits  2.0 1.0 0.0 -1.0      temperature 1 -> 0.64 0.24 0.09 0.03
 *                                   top-k 2       -> 0.73 0.27
 *                                   top-p 0.9     -> 0.67 0.24 0.09         the fewest that reach 0.9
 *
 * Temperature 0 is greedy. The random number of a token is a function of the seed, the sequence and the
 * token's index: the same model, prompts and seed reproduce the text.
 *
 * Caution: equal logits. They are ordered by id; otherwise the text would depend on the sort algorithm. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct sampling {
    double temperature; // >= 0
    int64_t top_k;      // 0: all
    double top_p;       // (0, 1]
    uint64_t seed;
};

struct sampler;
/* Creates a sampler over `count` ids. Returns BAD_ARGUMENT for parameters outside their ranges. */
MUST_USE enum status sampler_create(const struct sampling *sampling, int64_t count, struct sampler **out);
void sampler_destroy(struct sampler *sampler); // accepts NULL

/* Samples the id of token `index` of a sequence from logits[count]; they are the key of the random number.
 * Returns NOT_FINITE if a logit is NaN or infinite. */
MUST_USE enum status sampler_draw(struct sampler *sampler, const float *logits, int64_t sequence,
                                  int64_t index, int32_t *out);
