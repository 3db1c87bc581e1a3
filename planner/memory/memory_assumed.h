// SPDX-License-Identifier: Apache-2.0
/* The section `assume` of a recipe, as far as it changes the memory formula (memory_formula.h). Private to
 * this folder. */
#pragma once

#include "planner/memory/memory_layer.h"
#include "trainer/engine/activations/stash.h"
#include "trainer/engine/rank.h"

struct memory_assume memory_assumed(const struct recipe *recipe);

/* Bytes that activations need less if all chunks of pipeline rank `pp` share memory (assume.activations): the
 * slots of all chunks, minus the largest sum of tensors that are alive at the same time. slots:
 * [chunks][SLOT_LIFETIMES]. */
int64_t memory_shared_saving(const struct schedule *schedule, int pp, const struct slot_use *slots);
