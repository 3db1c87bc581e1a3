// SPDX-License-Identifier: Apache-2.0
/* What a person wants to see before and after: which rank holds which layers, and what memory is for. */
#pragma once

#include "trainer/engine/rank_state.h"

#include <stdio.h>

/* Model, layout, and the layer -> rank table. */
void report_layout(const struct run *run, FILE *to);
/* The table of memory by part that the formula gives (memory_formula.h), a line for the first rank of each
 * pipeline coordinate. */
MUST_USE enum status report_formula(const struct run *run, FILE *to);
/* What a rank's bytes are, under names; those of several stages together. */
MUST_USE enum status report_terms(const struct run *run, int rank, FILE *to);
/* A line of such a table. */
struct part_row {
    int rank, pp;
    int64_t part_bytes[PART_COUNT], bytes;
    struct slot_use *slots; // [chunks][SLOT_KINDS]
};
/* The table, and below it what the slots of activations are: of each stage how many, and what a microbatch
 * has in one. */
void report_parts(const struct run *run, const struct part_row *rows, int count, FILE *to);
/* Warns where memory.offload_activations has nothing to offload. */
MUST_USE enum status report_offload(const struct run *run, FILE *to);
/* The process's peak resident size beside what its ranks have allocated at most, together. */
void report_resident(int ranks, int64_t allocated_bytes, FILE *to);
