// SPDX-License-Identifier: Apache-2.0
/* The learning rate of a step, as a pure function: warm-up, then decay, then min_lr for ever (`constant`:
 * lr). Megatron's formulas, counted so that step 1 is the first. */
#pragma once

#include "trainer/recipe/recipe.h"

/* step counts from 1. Linear warm-up reaches lr at step lr_warmup_iters. */
double learning_rate(const struct recipe_optimizer *optimizer, int64_t step);
