// SPDX-License-Identifier: Apache-2.0
/* The period of consecutive steps with optimizer post-validation (trainer/optimizer/post_validation.h). A
 * rank starts the next step when the ranks above it have passed down their report, before the last rank has
 * ended, so the time of a step is shorter than the simulated one, from the first op to the last:
 *
 *     rank 0   F F F B W B W B W u|F F F B W ...       u  update
 *     rank 1     F F B W F B W B W u|F F B W ...
 *              ├──── period ─────┤
 *              ├───── simulated ──────┤
 *
 * It is the longest time of a rank from its first pass to its update, where an update follows those of the
 * ranks above, and at least so long that the verdict of the last rank arrives before the first backward pass
 * of the next step. Private to this folder. */
#pragma once

#include <stdbool.h>

struct predictor;
struct rank;
struct lane;

/* Phases of a step, in this order on each rank. */
enum step_phase { PHASE_BEFORE, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASE_VERDICT };
/* The phase of an action: of a schedule, "optimizer" or "verdict"; PHASE_BEFORE: another one. */
struct tape_action;
enum step_phase period_phase(const struct tape_action *action);

/* Times of a rank's compute lane. */
struct rank_period {
    double before_s;        // duration of the ops before the first pass
    double begin_s, turn_s; // start of the first forward and of the first backward pass; 0: none
    double ready_s;         // end of the last op before the verdict
    double verdict_s;       // duration of the ops of the verdict
    bool begun, turned;
};
/* Call it when ops of the compute lane end. */
void period_note(const struct lane *lane);

/* Whether the tape of the rank has a verdict. */
bool period_has_verdict(const struct rank *rank);

/* Sets step_s and overlap_s of the prediction, if the tapes have a verdict. */
void period_find(struct predictor *predictor);
