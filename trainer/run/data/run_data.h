// SPDX-License-Identifier: Apache-2.0
/* What a run reads. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Prints the data of the run, and a warning of many epochs: on one rank, when it is known where the run
 * starts. */
void run_data_report(const struct rank_state *state);
