// SPDX-License-Identifier: Apache-2.0
/* Learning rate schedule as a pure function of the step: warm-up, decay, then constant min_lr (`constant`:
 * lr). Megatron's formulas, with step 1 as the first step. */
#pragma once

#include "trainer/recipe/recipe.h"

/* Returns the rate of `step`, counted from 1. Linear warm-up reaches lr at step lr_warmup_iters. */
double learning_rate(const struct recipe_optimizer *optimizer, int64_t step);
