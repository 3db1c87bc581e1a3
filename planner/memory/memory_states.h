// SPDX-License-Identifier: Apache-2.0
/* Number of elements of weights, gradients and optimizer state on a rank: the formula (memory_formula.h) for
 * the allocations of weights.h, from the rows of the model and the schedule alone. With ZeRO the slice of
 * each bucket follows the rules of parallel/bucket_plan.h; slices begin at cache lines. */
#pragma once

#include "trainer/engine/rank.h"

struct memory_states {
    int64_t values, gradients; // whole, or slices with ZeRO 3 (values) and 2 (gradients); f32 from gradients
                               // on
    int64_t gathered,
        opened;      // buffers for the whole values, and gradients, of one layer or two consecutive ones
    int64_t whole;   // f32: gradients before the reduce-scatter
    int messages;    // number of reduce-scatter messages
    int64_t moments; // f32, of each of m and v
    int64_t packed;  // f32: gradients that are partial over tp
    int64_t blocks;  // f64: blocks for the squares of the norm
    int64_t saved;   // of each state, in this rank's file of a checkpoint; 0 without checkpoint.async_save
};

MUST_USE enum status memory_states_of(const struct run *run, const struct params *params,
                                      struct mesh_coord coord, struct memory_states *out);

/* Bytes of the copy that checkpoint.async_save makes: the tensors of this rank's file, or
 * checkpoint.staging_mb; 0: none. */
int64_t memory_snapshot_bytes(const struct run *run, const struct params *params, int rank,
                              const struct memory_states *states);
