// SPDX-License-Identifier: Apache-2.0
/* The memory of a rank during training, term by term, from the recipe alone: nothing is allocated, opened or
 * run. Every term is bytes x count x slots and belongs to a part of the device's ledger (kernels/device.h);
 * the terms of a part add up exactly to the ledger of a run (tests/ranks/training/test_dry.c).
 *
 *     part         stage  bytes     count  slots  what
 *     activations  0      3145728   3      4      q, k, v           of 3 layers; 4 slots of 1F1B
 *     workspace           9437184   1      1      scratch memory of the layers
 *
 * The dry device counts the same bytes by a dry run of the program; this formula explains them. Caution: a
 * term copied from the program's own computation would prove nothing. Sizes of activations are derived from
 * the model's dimensions, not from the declarations of regions in layers/; parameters, buckets, slots and the
 * scratch memory of ops come from the functions that the program uses. */
#pragma once

#include "planner/memory/memory_layer.h"
#include "trainer/engine/activations/stash.h"
#include "trainer/engine/rank.h"

struct memory_term {
    enum part part;
    int stage; // -1: of the whole rank
    const char *what;
    int64_t bytes, count, slots;
};

struct memory_table {
    struct memory_term *list;
    int count, capacity;
    int64_t part_bytes[PART_COUNT], bytes; // sums; bytes: without the parts on the host
    struct slot_use *slots;                // [chunks][SLOT_LIFETIMES], as from stash_slots()
};

/* Computes the terms of a rank with `threads` compute threads; ranks are threads of one process. Excludes the
 * work buffers of reductions between GPUs (parallel/transports/nccl/comm_nccl_scratch.h). */
MUST_USE enum status memory_formula(const struct run *run, int rank, int threads, struct memory_table *out);
/* The bytes of the rank with the most memory. */
MUST_USE enum status memory_formula_max(const struct run *run, int threads, int64_t *bytes);
void memory_table_free(struct memory_table *table);

/* ---- memory_formula_assumed.c ---- */

/* The section `assume` of a recipe, as far as it changes the memory formula (memory_formula.h). */

struct memory_assume memory_assumed(const struct recipe *recipe);

/* Bytes that activations need less if all chunks of pipeline rank `pp` share memory (assume.activations): the
 * slots of all chunks, minus the largest sum of tensors that are alive at the same time. slots:
 * [chunks][SLOT_LIFETIMES]. */
int64_t memory_shared_saving(const struct schedule *schedule, int pp, const struct slot_use *slots);
