// SPDX-License-Identifier: Apache-2.0
/* Compares the ranks at start: a job whose ranks were started with different programs, recipes or data would
 * train with wrong results. */
#pragma once

#include "trainer/engine/rank.h"

/* Collective, before step 0. BAD_RECIPE on every rank names the first rank whose executable, key of the
 * recipe, dataset or folder of checkpoints differs from that of rank 0; or rank 0, if it differs from all
 * others. */
MUST_USE enum status compare_ranks(struct rank_state *state);
