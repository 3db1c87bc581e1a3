// SPDX-License-Identifier: Apache-2.0
/* Loss scaling (Micikevicius et al., 1710.03740, section 3.2). fp16 has no value between 0 and 2^-24, the
 * range of many activation gradients. So the gradient of the loss is multiplied by a scale at the start of
 * the backward pass, all gradients carry this factor, and the optimizer divides by it in fp32. An fp16
 * overflow during the backward pass appears as a non-finite weight gradient on one rank, and thus in the
 * norm, which all ranks share: the step is then skipped on all of them.
 *
 * The scale is static or dynamic (as Megatron-LM's DynamicGradScaler):
 *
 *   good step   after `window` good steps in a row the scale doubles, and the hysteresis is reset
 *   overflow    decrements the hysteresis; at 0 the scale is halved, down to `min_scale`
 *
 * The next state is a function of the state and the overflow flag, the same on every rank; no communication
 * is needed, and a checkpoint stores three values.
 *
 * Caution: a value that overflows at any scale would be skipped forever. `stuck` reports it. */
#pragma once

#include "trainer/recipe/recipe.h"

#define LOSS_SCALE_MAX 1e18 // more than fp16 can need; fp32 gradients still have headroom above it

/* A static scale with this many overflows in a row cannot train. */
enum { LOSS_SCALE_PATIENCE = 20 };

struct loss_scale {
    double scale;       // factor on the loss of the next step; 0: no loss scaling
    int64_t good_steps; // since the last overflow or the last increase of the scale
    int64_t hysteresis; // overflows until the scale falls; 0: at the next one
    bool stuck;         // the last step overflowed, and the scale cannot be lowered
    int64_t skipped;    // consecutive skipped steps up to now
    // Parameters, from the recipe:
    bool fixed;
    double min_scale;
    int64_t window, initial_hysteresis;
};

/* The initial state of a run; scale 0 unless params_dtype is fp16. */
struct loss_scale loss_scale_of(const struct recipe *recipe);

/* Continues with the state of a checkpoint if both runs use dynamic scaling; not below the minimum of this
 * run. */
void loss_scale_resume(struct loss_scale *state, double scale, int64_t good_steps, int64_t hysteresis);

/* Updates the state at the end of a step. */
void loss_scale_step(struct loss_scale *state, bool overflow);
