// SPDX-License-Identifier: Apache-2.0
/* Gathers the model state of all ranks into whole tensors in host memory, for inspection and comparison (not
 * for saving). Each element is written by one rank; its replicas on other ranks are compared bitwise, and
 * elements that differ are counted. */
#pragma once

#include "trainer/engine/rank.h"

#include <stdatomic.h>

enum snapshot_kind { SNAPSHOT_WEIGHT, SNAPSHOT_GRADIENT, SNAPSHOT_M, SNAPSHOT_V, SNAPSHOT_KINDS };

struct snapshot {
    int rows;
    int64_t *count;                        // [rows] elements; 0 for a second use of a tied weight
    float **tensor[SNAPSHOT_KINDS];        // [rows] whole tensors
    atomic_llong *differs[SNAPSHOT_KINDS]; // [rows] elements that differ bitwise between replicas
    double loss, grad_norm, tokens;
    float **amax; // [rows] amax history of delayed scaling, or NULL
    int64_t amax_steps;
    double loss_scale; // factor on the gradients; 1 without loss scaling
};

struct snapshot snapshot_create(const struct params *params);
void snapshot_destroy(struct snapshot *snapshot);

/* Collective over the world: copies this rank's slices into the whole tensors, then compares the replicas. */
MUST_USE enum status snapshot_gather(struct snapshot *snapshot, struct rank_state *state,
                                     enum snapshot_kind kind);
/* Copies the amax history of delayed scaling, which is the same on all ranks: from rank 0 to the snapshot, or
 * from the snapshot to this rank. */
void snapshot_read_amax(struct snapshot *snapshot, const struct rank_state *state);
MUST_USE enum status snapshot_write_amax(const struct snapshot *snapshot, struct rank_state *state);
/* Copies this rank's slices from the whole tensors to the device. */
MUST_USE enum status snapshot_scatter(const struct snapshot *snapshot, struct rank_state *state,
                                      enum snapshot_kind kind);
