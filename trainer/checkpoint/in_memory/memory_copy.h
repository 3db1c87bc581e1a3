// SPDX-License-Identifier: Apache-2.0
/* Copies the file of each rank to other nodes, those of the mixed placement of GEMINI (SOSP 2023):
 *
 *     8 nodes, 2 copies     (0 1) (2 3) (4 5) (6 7)           groups of consecutive nodes: each holds all
 *     7 nodes, 2 copies     (0 1) (2 3) (4 5 6)               the last, larger group is a ring: node 4 has
 *                                                             its copy on 5, 5 on 6, 6 on 4
 *
 * A checkpoint is lost only if all holders of some node are lost: of the 120 pairs of 16 nodes, 8 with 2
 * copies. */
#pragma once

#include "trainer/checkpoint/in_memory/rank_nodes.h"

struct placement {
    int nodes, copies; // 1 <= copies <= nodes
};

/* The node with copy `copy` of the shards of `node`; copy 0 is on `node` itself. */
int placement_holder(const struct placement *placement, int node, int copy);

/* Collective: sends the file of this rank in `folder` to its other holders, and receives those that this node
 * holds for other ranks into `folder`. bytes[world]: sizes of the files, 0 without one. A failure is that of
 * this rank: the others continue. */
MUST_USE enum status memory_copy(struct rank_state *state, const struct rank_nodes *nodes,
                                 const struct placement *placement, const int64_t *bytes, const char *folder);

/* Lists the ranks whose copies `rank` receives, in ascending order: list[world * copies]. Returns their
 * number. */
int memory_copy_sources(const struct rank_nodes *nodes, const struct placement *placement, int rank,
                        int *list);
