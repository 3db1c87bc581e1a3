// SPDX-License-Identifier: Apache-2.0
/* Before a checkpoint in the memory of several nodes is loaded (redistribute.h): a rank receives the
 * shards that it would read, but that its node does not have, from ranks of nodes that do. */
#pragma once

#include "trainer/checkpoint/distribute/load_plan.h"
#include "trainer/checkpoint/reader.h"

/* A slice that this rank reads, of one state. */
struct piece {
    int param;
    enum state state;
    struct slice slice;
    float *target; // the memory of the state, if it can be read straight into it; else NULL
    float *values; // NULL: not read yet, or no longer needed
};

struct fetch_config {
    struct rank_state *rank_state;
    struct checkpoint_reader *source; // with nodes
    struct load_plan *plan;
    bool same_layout;
    enum state states;
    struct piece *pieces; // of this rank
    int piece_count;
    char *staging; // device memory for `capacity` elements, the same number on all ranks
    int64_t capacity;
};

/* Collective. Allocates the values of pieces that are not entirely on this node and fills in the parts of
 * other nodes; read_piece() adds those of this node. On failure of a file, *why describes the first one, and
 * the other ranks continue. */
MUST_USE enum status fetch_pieces(const struct fetch_config *config, enum status *failed, struct text *why);
