// SPDX-License-Identifier: Apache-2.0
/* How many elements of weights, gradients and optimizer state a rank holds: the formula (memory_formula.h) of
 * what weights.h allocates, from the rows of the model and the schedule alone. With ZeRO a slice of
 * each bucket is what the rules of parallel/bucket_plan.h make of it; slices begin at cache lines. */
#pragma once

#include "trainer/engine/rank_state.h"

struct memory_states {
    int64_t values, gradients; // whole, or with ZeRO 3, and 2, slices; gradients and the following are f32
    int64_t gathered, opened;  // room for whole values, and gradients, of a layer and its neighbour
    int64_t whole;             // f32: gradients before they are shared out
    int messages;              // in which they are
    int64_t moments;           // f32, of each of the two
    int64_t packed;            // f32: gradients that are partial over tp
    int64_t blocks;            // f64: blocks whose squares are added up for the norm
};

MUST_USE enum status memory_states_of(const struct run *run, const struct params *params, struct place place,
                                      struct memory_states *out);
