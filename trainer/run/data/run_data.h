// SPDX-License-Identifier: Apache-2.0
/* What a run reads and when it evaluates. */
#pragma once

#include "trainer/engine/rank.h"
#include "trainer/run/metrics.h"

/* Prints the data of the run, and a warning of many epochs: on one rank, when it is known where the run
 * starts. */
void run_data_report(const struct rank_state *state);

/* Whether an evaluation follows this step. */
bool evaluation_is_due(const struct recipe *recipe, int64_t step);

/* Collective. A run that was stopped during an evaluation has saved its step without the validation loss:
 * evaluates in the run that resumes, and adds the loss to the step's metrics. metrics: of rank 0, NULL on
 * other ranks. *stop: the evaluation was interrupted, too. */
MUST_USE enum status evaluate_late(struct rank_state *state, struct metrics *metrics, bool *evaluated,
                                   bool *stop);
