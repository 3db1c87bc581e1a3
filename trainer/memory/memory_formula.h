// SPDX-License-Identifier: Apache-2.0
/* What a rank will hold while it trains, term by term, from the recipe alone: nothing is allocated, opened or
 * run. Every term is bytes x count x slots and belongs to a part of the device's ledger (kernels/device.h);
 * the terms of a part add up to what the ledger says of a run, to the byte (tests/ranks/training/test_dry.c).
 *
 *     part         stage  bytes     count  slots  what
 *     activations  0      3145728   3      4      q, k, v           of 3 layers that keep them; 4 slots of
 * 1F1B workspace           9437184   1      1      temporary memory of the layers
 *
 * The dry device counts the same by rehearsing the program; this says what it is made of. The trap: a term
 * that is written down here as the program computes it proves nothing. Sizes come from the model's dimensions
 * and lives from the schedule, not from the layouts of layers/. */
#pragma once

#include "trainer/engine/rank_state.h"
#include "trainer/engine/stash.h"
#include "trainer/memory/memory_layer.h"

struct memory_term {
    enum part part;
    int stage; // -1: of the whole rank
    const char *what;
    int64_t bytes, count, slots;
};

struct memory_table {
    struct memory_term *list;
    int count, room;
    int64_t part_bytes[PART_COUNT], bytes; // sums; all but PART_HOST
    struct slot_use *slots;                // [chunks][SLOT_KINDS], as stash_slots() has them
};

/* Of a rank of the world with `threads` compute threads, ranks being threads of one process. What sums
 * between GPUs work in (parallel/transports/nccl/comm_nccl_scratch.h) is left out. */
MUST_USE enum status memory_formula(const struct run *run, int rank, int threads, struct memory_table *out);
void memory_table_free(struct memory_table *table);
