// SPDX-License-Identifier: Apache-2.0
/* Records one step of a rank in less time than the program takes to enqueue it: only the first compute action
 * of each kind and stage is run; it is then repeated (tape_recorder.h) for the other microbatches. Everything
 * else is run: transfers, copies, reductions, the update.
 *
 * An action is repeated only if enqueueing is its only effect:
 *   - not the last backward pass of a chunk, after which its gradients are reduced
 *   - with ZeRO stages 2 and 3, only if the rotating buffers are in the same state (tape_recorder.h)
 *   - not if it waits for an event from before its beginning, except for those of these buffers
 *   - not if memory is allocated or freed between the two: scratch memory grows with the first actions. */
#pragma once

#include "planner/tape/tape.h"
#include "trainer/engine/stage_ops.h"

struct step_recorder;
struct step_recorder *step_recorder_create(struct tape_recorder *recorder);
void step_recorder_destroy(struct step_recorder *recorder); // takes NULL

/* Runs a compute action, or repeats an earlier one. */
MUST_USE enum status step_recorder_run(struct step_recorder *recorder, const struct stage_ops *ops,
                                       struct graph **graph);

/* Compute actions of the step. */
struct step_recorder_counts {
    int64_t run, repeated;
};
struct step_recorder_counts step_recorder_counts(const struct step_recorder *recorder);
