// SPDX-License-Identifier: Apache-2.0
/* What a checkpoint holds beside parameters and their moments: state that every rank has alike, as tensors
 * under global names. The first rank writes it, and every rank reads all of it.
 *
 *   precision.amax.NAME     F32 [OPERAND_COUNT, steps]   delayed scaling: the history of one weight's
 * operands, newest first precision.loss_scale    F64 [3]                      fp16: the scale, good steps,
 * hysteresis
 *
 * More of this kind gets a name here, and the two functions that write and read it. */
#pragma once

#include "trainer/checkpoint_source.h"

struct state_tensor {
    struct piece piece; // the whole tensor
    const void *bytes;  // owned by the worker, or by `room`
    double room[3];
};

/* The same on every rank. The caller frees *out; it may be NULL when *count is 0. */
MUST_USE enum status state_list(const struct worker *worker, struct state_tensor **out, int *count);

/* Histories of another length are cut or filled; those that are missing begin anew, with a warning. */
MUST_USE enum status state_load_amax(struct worker *worker, struct source *source);
/* The scale to go on with: the checkpoint's where both runs adapt one, else as it begins. */
MUST_USE enum status state_load_loss_scale(const struct worker *worker, struct source *source,
                                           struct loss_scale *out);
