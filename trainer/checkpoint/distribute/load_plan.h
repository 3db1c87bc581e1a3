// SPDX-License-Identifier: Apache-2.0
/* Distributes the reading of a checkpoint: for each parameter, which rank reads which slice of it, and
 * which rank needs which. Together the ranks read every element once; what a rank needs and does not read,
 * it receives (redistribute.h).
 *
 *   same layout     a rank reads what it wrote: its own file, and no other
 *   another one     the ranks of a stage (all tensor and data ranks) read consecutive rows of its
 *                   parameters and their moments, whole rows, in equal shares. A row that was written in
 *                   several parts is in several files, but is read once
 *
 * Everything follows from the two layouts, so that every rank knows the slices of every other. */
#pragma once

#include "trainer/checkpoint/distribute/save_plan.h"

struct load_plan_config {
    const struct run *run;
    const struct params *params;
    const struct weights *weights;
    enum state states; // number of states that are loaded
    bool same_layout;
};

struct load_plan;

struct load_plan *load_plan_create(const struct load_plan_config *config);
void load_plan_destroy(struct load_plan *plan); // accepts NULL

/* A rank that takes part in loading a parameter. */
struct load_rank {
    int rank;
    bool reads[STATE_COUNT];
    struct slice slices[STATE_COUNT]; // that it reads of each state; if `reads`
    bool needs[2];                    // the values; the moments
    struct slice needed[2];
};

/* Sets *out to all ranks that read or need parameter `param`, which this rank must need or read too, in
 * ascending order. Valid until the next call. */
void load_plan_of(struct load_plan *plan, int param, const struct load_rank **out, int *count);

/* Not with the same layout: sets *out to the slice of one state that any rank reads, of any stage; false
 * if it reads none. */
bool load_plan_slice(struct load_plan *plan, int param, enum state state, int rank, struct slice *out);

/* True if `rank` holds parameter `param`, or a second use of it. */
bool load_plan_has(const struct load_plan *plan, int param, int rank);
