// SPDX-License-Identifier: Apache-2.0
/* The nodes of a run: which ranks run on which node. Nodes are numbered in the order of their lowest rank,
 * which is the leader of the node. */
#pragma once

#include "trainer/engine/rank.h"

enum { NODE_NAME_CHARS = 64 };

struct rank_nodes {
    char name[NODE_NAME_CHARS]; // of this rank's node: a host name, fit for a file name
    int world, count;
    int *node_of; // [world]
    int *index;   // [world] among the ranks of its node
    int *ranks;   // [count] number of ranks
    int *first;   // [count] where its ranks begin in `list`
    int *list;    // [world] the ranks of each node, in ascending order
};

/* Collective. With CUBOID_NODE=a,b,c, threads of one process run on virtual nodes, in equal shares. */
MUST_USE enum status rank_nodes_find(struct rank_state *state, struct rank_nodes *out);
void rank_nodes_free(struct rank_nodes *nodes); // accepts {0}

/* Rank `index` of a node; index < nodes->ranks[node]. */
int rank_nodes_at(const struct rank_nodes *nodes, int node, int index);
/* True if this rank is the leader of its node. */
bool rank_nodes_is_leader(const struct rank_nodes *nodes, int rank);
