// SPDX-License-Identifier: Apache-2.0
/* What a run knows of its model, put together from the slices of all ranks into whole tensors in host memory.
 * Each element is written by the one rank that speaks for its share; every other rank that holds it must hold
 * the same bits, and those that do not are counted. For looking and comparing, not for saving. */
#pragma once

#include "trainer/engine/rank_state.h"

#include <stdatomic.h>

enum snapshot_kind { SNAPSHOT_WEIGHT, SNAPSHOT_GRADIENT, SNAPSHOT_M, SNAPSHOT_V, SNAPSHOT_KINDS };

struct snapshot {
    int rows;
    int64_t *count;                        // [rows] elements; 0 for a second use of another row
    float **tensor[SNAPSHOT_KINDS];        // [rows] whole tensors
    atomic_llong *differs[SNAPSHOT_KINDS]; // [rows] elements of which another holder has other bits
    double loss, grad_norm, tokens;
    float **amax; // [rows] what delayed scaling remembers of each row, or NULL
    int64_t amax_steps;
    double loss_scale; // the factor that the gradients come with; 1 without one
};

MUST_USE enum status snapshot_create(const struct params *params, struct snapshot *out);
void snapshot_destroy(struct snapshot *snapshot);

/* Collective over the worker's world: this rank's slices into the whole, then the comparison of the others.
 */
MUST_USE enum status snapshot_take(struct snapshot *snapshot, struct rank_state *state,
                                   enum snapshot_kind kind);
/* The history of delayed scaling, which all ranks have: the first one's, and to every rank. */
MUST_USE enum status snapshot_take_amax(struct snapshot *snapshot, const struct rank_state *state);
MUST_USE enum status snapshot_give_amax(const struct snapshot *snapshot, struct rank_state *state);
/* This rank's slices out of the whole. */
MUST_USE enum status snapshot_give(const struct snapshot *snapshot, struct rank_state *state,
                                   enum snapshot_kind kind);
