// SPDX-License-Identifier: Apache-2.0
/* Reports before and after a run: the layers and the memory of each rank. */
#pragma once

#include "trainer/engine/rank.h"

#include <stdio.h>

/* Prints model and layout: two lines. */
void report_layout(const struct run *run, FILE *to);
/* Prints the layer -> rank table. detail: equal stages have rows of their own. */
void report_stages(const struct run *run, bool detail, FILE *to);
/* Prints report_most() according to the formula (memory_formula.h). */
MUST_USE enum status report_formula(const struct run *run, FILE *to);
/* The same according to a dry run: one rank of each pipeline coordinate is created on a device that computes
 * nothing and runs one step. Returns the errors that a run would return (BAD_RECIPE, ...). */
MUST_USE enum status report_dry_run(const struct run *run, FILE *to);
/* Prints the named memory terms of a rank, summed over its stages. */
MUST_USE enum status report_terms(const struct run *run, int rank, FILE *to);
/* Memory of one rank: a line of the table. */
struct rank_memory {
    int rank, pp;
    int64_t part_bytes[PART_COUNT], bytes;
    struct slot_use *slots; // [chunks][SLOT_LIFETIMES]
};
/* Prints the table of memory by part. detail: equal ranks have rows of their own; then, for each stage, the
 * number of activation slots and their bytes. */
void report_parts(const struct run *run, const struct rank_memory *ranks, int count, bool detail, FILE *to);
/* Prints the memory of the rank that needs the most, with its largest parts: one line. */
void report_most(const struct rank_memory *ranks, int count, FILE *to);
enum { REPORT_RANGE_CHARS = 32 };
/* "1-14", or "3" for a single one. */
void report_range(int first, int last, char out[REPORT_RANGE_CHARS]);
/* Warns if memory.offload_activations has nothing to offload. */
MUST_USE enum status report_offload(const struct run *run, FILE *to);
