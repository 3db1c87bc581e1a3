// SPDX-License-Identifier: Apache-2.0
/* One training step of a rank: load, execute the schedule, update, report (docs/reading.md). */
#pragma once

#include "trainer/engine/rank.h"

/* Runs one complete step and increments state->step. */
MUST_USE enum status rank_step(struct rank_state *state, struct step_result *out);
/* Like rank_step(), for a caller that starts the next step at once on every rank: with post-validation,
 * ranks may already be in the next step on return. Weights and moments are still those of this step. */
MUST_USE enum status rank_step_look_ahead(struct rank_state *state, struct step_result *out);

/* Ends the run on a non-finite loss or gradient: every rank returns NOT_FINITE with the step, the parameter
 * and its rank. Returns OK if the recipe disables the check; also for gradients only, if the step was
 * skipped and the loss scale can still be lowered. */
MUST_USE enum status rank_check_finite(const struct rank_state *state, const struct step_result *result);

/* Mean loss per token over eval_iters global batches of the validation split, the same batches each time;
 * NAN if it has no unmasked tokens. Since evaluation may take hours, the exit signal is queried before each
 * batch: then *stop is true on all ranks and *loss is not set. */
MUST_USE enum status rank_evaluate(struct rank_state *state, double *loss, bool *stop);
