// SPDX-License-Identifier: Apache-2.0
/* Delayed scaling, as Transformer Engine's DelayedScaling: a scale follows from how large a tensor was in the
 * steps before, so that a matrix multiplication need not wait until all of its operand is known.
 *
 *     step s     every lowered operand is scaled by `used`, and its largest magnitude goes into `seen`
 *     behind it  seen: the maximum over the world; into the history, from which `used` of step s + 1 follows
 *
 *     layers.3.mlp.fc1.weight   x    4.1  4.0  4.3 ...    newest first, amax_history_len of them
 *                               w    0.3  0.3  0.3 ...
 *                               dy   2e-3 0    3e-3 ...   0: never seen
 *
 * A maximum does not depend on who takes it of what, nor how often: over microbatches, tensor-parallel and
 * data ranks, passes that are computed again. So the history is a function of the step and the logical
 * tensor, the same on every rank, and no layout shows in it. Evaluation reads it only.
 *
 * What was zero, or not finite, in a step repeats the step before: it says nothing of the next one (a
 * gradient that overflowed, a layer that saw none). A step that fp16 skips is left out: it was made with
 * another loss scale.
 *
 * The trap: it is state. Without it a resumed run begins with scales of 1. */
#pragma once

#include "layers/pass.h"
#include "parallel/group.h"
#include "trainer/recipe/recipe.h"

struct amax_history_config {
    const struct recipe_precision *recipe;
    const struct params *params;
    const struct groups *groups;
    struct device *device;
    struct stream *compute;
};

struct amax_history;
/* Empty: every scale is 1, until a step has been seen. *out NULL unless the recipe scales with delay; every
 * function below takes NULL, and does nothing then. */
MUST_USE enum status amax_history_create(const struct amax_history_config *config, struct amax_history **out);
void amax_history_destroy(struct amax_history *history);

/* Where lowering reads and writes. */
struct delayed_scaling amax_history_scaling(const struct amax_history *history);

/* The step's backward passes are submitted: the maximum over the world, on its way to the host. */
MUST_USE enum status amax_history_reduce(struct amax_history *history);
/* The compute stream has been waited for since: the next step's scales. */
MUST_USE enum status amax_history_update(struct amax_history *history);

/* The history of the operands of one linear layer's weight: [OPERAND_COUNT][*columns], newest first; NULL for
 * a row that is no such weight. Owned by the history. */
const float *amax_history_of(const struct amax_history *history, int row, int64_t *columns);
/* Overwrites it, from one of any length. What is no magnitude (negative, not finite) is taken for 0.
 * Afterwards amax_history_settle(). */
void amax_history_put(struct amax_history *history, int row, const float *values, int64_t columns);
MUST_USE enum status amax_history_settle(struct amax_history *history);
