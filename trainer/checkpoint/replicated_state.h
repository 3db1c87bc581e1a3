// SPDX-License-Identifier: Apache-2.0
/* Replicated training state in a checkpoint, besides parameters and moments: the same on every rank, stored
 * as tensors under global names. Rank 0 writes it, and checkpoint_reader_root() reads it for all ranks.
 *
 *   precision.amax.NAME     F32 [OPERAND_COUNT, steps]   delayed scaling: the history of one weight's
 *                                                        operands, newest first
 *   precision.loss_scale    F64 [3]                      fp16: the scale, good steps, hysteresis
 *
 * New state of this kind needs a name here, and one function each to write and to read it. */
#pragma once

#include "trainer/checkpoint/reader.h"

struct state_tensor {
    struct shard shard; // the whole tensor
    const void *bytes;  // owned by the rank state, or by `values`
    double values[3];
};

/* Lists the state tensors, the same on every rank. The caller frees *out, which may be NULL if *count is
 * 0. */
void state_list(const struct rank_state *w, struct state_tensor **out, int *count);

/* Collective. Truncates or pads histories of another length; missing ones start empty, with a warning. */
MUST_USE enum status state_load_amax(struct rank_state *state, struct checkpoint_reader *source);
/* Collective. Sets the loss scale to resume with: that of the checkpoint if both runs use dynamic scaling,
 * else the initial one. */
MUST_USE enum status state_load_loss_scale(struct rank_state *state, struct checkpoint_reader *source,
                                           struct loss_scale *out);
