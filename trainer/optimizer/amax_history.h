// SPDX-License-Identifier: Apache-2.0
/* Delayed scaling, as Transformer Engine's DelayedScaling: the scale of a tensor follows from its amax in
 * previous steps, so that a matmul need not wait for the whole operand.
 *
 *     step s     every quantized operand is scaled by `used`, and its amax is recorded in `seen`
 *     after s    seen: the maximum over the world; into the history, which gives `used` of step s + 1
 *
 *     layers.3.mlp.fc1.weight   x    4.1  4.0  4.3 ...    newest first, amax_history_len values
 *                               w    0.3  0.3  0.3 ...
 *                               dy   2e-3 0    3e-3 ...   0: no value yet
 *
 * A maximum is independent of the partition and of repetition: over microbatches, tensor-parallel and data
 * ranks, recomputed passes. The history is therefore a function of the step and the logical tensor, the same
 * on every rank and for every layout. Evaluation only reads it.
 *
 * An amax that is zero or not finite repeats the value of the previous step, since it does not predict the
 * next one (a gradient overflow, a layer without gradients). A step skipped by fp16 is not recorded: it used
 * another loss scale.
 *
 * Caution: the history is training state. Without it a resumed run starts with scales of 1. */
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
/* Creates an empty history: every scale is 1 until a step has been recorded. *out is NULL unless the recipe
 * uses delayed scaling; all functions below accept NULL and then do nothing. */
MUST_USE enum status amax_history_create(const struct amax_history_config *config, struct amax_history **out);
void amax_history_destroy(struct amax_history *history);

/* Device addresses read and written by quantization. */
struct delayed_scaling amax_history_scaling(const struct amax_history *history);

/* Call it after the backward passes of the step were enqueued: starts the max all-reduce over the world and
 * the copy to the host. */
MUST_USE enum status amax_history_reduce(struct amax_history *history);
/* Call it after a synchronization of the compute stream: computes the scales of the next step. */
MUST_USE enum status amax_history_update(struct amax_history *history);

/* The history of the operands of one linear layer's weight: [OPERAND_COUNT][*columns], newest first; NULL for
 * other rows. Owned by the history. */
const float *amax_history_get(const struct amax_history *history, int row, int64_t *columns);
/* Overwrites it with a history of any length. Invalid values (negative, not finite) become 0. Call
 * amax_history_upload() afterwards. */
void amax_history_set(struct amax_history *history, int row, const float *values, int64_t columns);
/* Computes the scales from the history, and copies them to the device. */
MUST_USE enum status amax_history_upload(struct amax_history *history);
