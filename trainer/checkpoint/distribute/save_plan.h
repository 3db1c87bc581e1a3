// SPDX-License-Identifier: Apache-2.0
/* Distributes the writing of a checkpoint: the parts of each parameter that each rank writes.
 *
 * Ranks that hold the same elements (over the data axes without ZeRO, and replicas of a stage in a
 * bidirectional pipeline) form a replica group. The parameters of the group, in the order of the model, are
 * cut into one share for each of its ranks, of equal size up to one row:
 *
 *     parameters      | embedding         | norm | q     | k     | ...
 *     dp 2            |dp 0                              |dp 1
 *
 * With ZeRO each data rank writes what it owns. Everything follows from the layout, so that every rank can
 * compute the share of every other, without a message.
 *
 * Caution: every element has exactly one writer. Of the ranks that hold the same tensor-parallel share
 * (replicated parameters and key/value heads) only the first writes, and second uses of a tied weight are
 * not written. */
#pragma once

#include "trainer/checkpoint/shard.h"

/* A slice of a parameter, the same in all of its states; never empty. padded[1] is the stride of its
 * rows in the memory of the rank, and padded[0] equals count[0]. */
struct save_part {
    int param; // index of the parameter, or another ascending number
    struct slice slice;
};

/* The parts that one rank writes, at most one of each parameter, in the order of the model. */
struct save_plan {
    struct save_part *parts;
    int count;
};

/* Computes the share of `rank`. `weights`: of a rank with the same stages, which determine what each data
 * rank owns; NULL without ZeRO. The caller frees the share. */
void save_plan_of_rank(const struct run *run, const struct params *params, const struct weights *weights,
                       int rank, struct save_plan *out);
void save_plan_free(struct save_plan *share); // accepts {0}

/* Keeps share `index` of `count` equal shares of a list, cut between rows; a cut near the end of a part
 * moves there. */
void save_plan_cut(struct save_plan *share, int index, int count);
/* True if both ranks hold the same stages: the same pipeline rank, or its mirror image. */
bool save_plan_same_stages(const struct run *run, int rank, int other);
/* With ZeRO: reduces the slice of a parameter that `rank` holds to what it owns; false if it owns
 * nothing. `param` or `second_use` (-1: none) is held by this rank, too: both uses are cut identically. */
bool save_plan_owned(const struct run *run, const struct weights *weights, int param, int second_use,
                     int rank, struct slice *slice);
