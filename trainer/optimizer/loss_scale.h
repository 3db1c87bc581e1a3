// SPDX-License-Identifier: Apache-2.0
/* Loss scaling (Micikevicius et al., 1710.03740, section 3.2). f16 has nothing between 0 and 2^-24, and many
 * gradients of activations lie there. So the gradient of the loss is multiplied by a scale where the backward
 * pass begins, all others come with that factor, and the optimizer takes it away again, in fp32. What is too
 * large for f16 on the way ends as a gradient of a weight that is not finite, on one rank, and so in the
 * norm, which all ranks share: then the step is skipped on all of them.
 *
 * The scale is fixed, or goes where it is needed (as Megatron-LM's DynamicGradScaler):
 *
 *   a good step     `window` of them, one after the other: the scale doubles, and the hysteresis is whole
 * again an overflow     takes one off the hysteresis; where nothing of it is left the scale is halved, down
 * to `least`
 *
 * It is state and an overflow that make the next state, on every rank the same; so no rank tells another, and
 * a checkpoint holds three numbers.
 *
 * The trap: what overflows at any scale would be skipped for ever. `stuck` says so. */
#pragma once

#include "trainer/recipe/recipe.h"

#define LOSS_SCALE_MOST 1e18 // more than f16 can need, and fp32 has room above it for the gradients

/* A fixed scale that overflows so often, one step after the other, trains nothing. */
enum { LOSS_SCALE_PATIENCE = 20 };

struct loss_scale {
    double scale;       // what the next step's loss is multiplied by; 0: nothing is scaled
    int64_t good_steps; // since the last overflow, or since the scale last rose
    int64_t hysteresis; // overflows until it falls; 0: with the next one
    bool stuck;         // the last step overflowed, and nothing can be done about it
    int64_t skipped;    // steps, one after the other, until now
    // As the recipe says:
    bool fixed;
    double least;
    int64_t window, whole_hysteresis;
};

/* As a run begins; scale 0 where params_dtype is not fp16. */
struct loss_scale loss_scale_of(const struct recipe *recipe);

/* Goes on with what a checkpoint had, where both runs look for a scale; not below this run's least. */
void loss_scale_resume(struct loss_scale *state, double scale, int64_t good_steps, int64_t hysteresis);

/* A step is over. */
void loss_scale_step(struct loss_scale *state, bool overflow);
