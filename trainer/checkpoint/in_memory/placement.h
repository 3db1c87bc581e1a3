// SPDX-License-Identifier: Apache-2.0
/* Which nodes hold the shards of a node in their memory: the mixed placement of GEMINI (SOSP 2023). Pure
 * arithmetic.
 *
 *     8 nodes, 2 copies     (0 1) (2 3) (4 5) (6 7)           groups of consecutive nodes: each holds all
 *     7 nodes, 2 copies     (0 1) (2 3) (4 5 6)               the last, larger group is a ring: node 4 has
 *                                                             its copy on 5, 5 on 6, 6 on 4
 *
 * A checkpoint is lost only if all holders of some node are lost: of the 120 pairs of 16 nodes, 8 with 2
 * copies. */
#pragma once

struct placement {
    int nodes, copies; // 1 <= copies <= nodes
};

/* The node with copy `copy` of the shards of `node`; copy 0 is on `node` itself. */
int placement_holder(const struct placement *placement, int node, int copy);
