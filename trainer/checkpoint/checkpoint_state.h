// SPDX-License-Identifier: Apache-2.0
/* The replicated state in a checkpoint, apart from parameters and moments: the same on every rank, as tensors
 * under global names. The first rank writes it, and every rank reads all of it.
 *
 *   precision.amax.NAME     F32 [OPERAND_COUNT, steps]   delayed scaling: the history of one weight's
 *                                                        operands, newest first
 *   precision.loss_scale    F64 [3]                      fp16: the scale, good steps, hysteresis
 *
 * New state of this kind gets a name here, and a function each to write and to read it. */
#pragma once

#include "trainer/checkpoint/checkpoint_source.h"

struct state_tensor {
    struct piece piece; // the whole tensor
    const void *bytes;  // owned by the worker, or by `room`
    double room[3];
};

/* The same on every rank. The caller frees *out; it may be NULL when *count is 0. */
MUST_USE enum status state_list(const struct rank_state *state, struct state_tensor **out, int *count);

/* Histories of another length are truncated or padded; missing ones start empty, with a warning. */
MUST_USE enum status state_load_amax(struct rank_state *state, struct source *source);
/* The scale to resume with: the checkpoint's if both runs have a dynamic one, else the initial one. */
MUST_USE enum status state_load_loss_scale(const struct rank_state *state, struct source *source,
                                           struct loss_scale *out);
