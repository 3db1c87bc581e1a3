// SPDX-License-Identifier: Apache-2.0
/* Which token comes next: one drawn from the model's distribution, sharpened and cut as asked.
 *
 *     logits  2.0 1.0 0.0 -1.0      temperature 1 -> 0.64 0.24 0.09 0.03
 *                                   top-k 2       -> 0.73 0.27
 *                                   top-p 0.9     -> 0.67 0.24 0.09         the fewest that reach 0.9
 *
 * Temperature 0 takes the most likely one. The draw of token i is a function of the seed and i, so the same
 * model, prompt and seed give the same text again.
 *
 * The trap: equal logits. They are ordered by id, or the text would depend on how a sort moves its elements.
 */
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
/* count: how many ids may be drawn. BAD_ARGUMENT for a sampling outside its ranges. */
MUST_USE enum status sampler_create(const struct sampling *sampling, int64_t count, struct sampler **out);
void sampler_destroy(struct sampler *sampler); // takes NULL

/* The id of token `index`, from logits[count]. NOT_FINITE when one is NaN or infinite. */
MUST_USE enum status sampler_draw(struct sampler *sampler, const float *logits, int64_t index, int32_t *out);
