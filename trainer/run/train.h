// SPDX-License-Identifier: Apache-2.0
/* `cuboid train`: the loop over steps on every rank, with what a person wants to see of it. Rank 0 speaks. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Trains to the recipe's last step, or until asked to stop. OK, STOPPED (a complete checkpoint was written),
 * or what went wrong. size: of the world; 0: the launcher's. */
MUST_USE enum status train(const struct recipe *recipe, int size);
