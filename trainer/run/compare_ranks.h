// SPDX-License-Identifier: Apache-2.0
/* Start-up comparison: ranks of one job that were started with different programs, recipes or data would
 * train, and give wrong results. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Collective, before step 0. BAD_RECIPE on every rank names the first rank whose executable, section of
 * the recipe or dataset is not that of rank 0; or rank 0, if it differs from all others. A vector width,
 * C library or device that differs, which may only change bits, is a warning of rank 0. */
MUST_USE enum status compare_ranks(struct rank_state *state);
