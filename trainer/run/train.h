// SPDX-License-Identifier: Apache-2.0
/* `cuboid train`: the training loop on every rank, and its terminal output on rank 0. */
#pragma once

#include "trainer/run/run_plan.h"

/* Trains to the last step of the recipe, or until a stop is requested. Returns OK, STOPPED (a complete
 * checkpoint was written), or an error. plan: NULL: none. size: of the world; 0: from the launcher. */
MUST_USE enum status train(const struct recipe *recipe, const struct run_plan *plan, int size);
