// SPDX-License-Identifier: Apache-2.0
/* `cuboid train`: the training loop on every rank, and its terminal output on rank 0. */
#pragma once

#include "planner/advice/advice.h"
#include "trainer/engine/rank_state.h"

/* Trains to the last step of the recipe, or until a stop is requested. Returns OK, STOPPED (a complete
 * checkpoint was written), or an error. source: what the recipe was loaded from; may be NULL for a recipe
 * without cluster.profile. size: of the world; 0: from the launcher. */
MUST_USE enum status train(const struct recipe *recipe, const struct advice_source *source, int size);
