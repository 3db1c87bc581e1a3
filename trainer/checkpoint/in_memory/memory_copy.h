// SPDX-License-Identifier: Apache-2.0
/* Copies the file of each rank to other nodes. */
#pragma once

#include "trainer/checkpoint/in_memory/placement.h"
#include "trainer/checkpoint/in_memory/rank_nodes.h"

/* Collective: sends the file of this rank in `folder` to its other holders, and receives those that this node
 * holds for other ranks into `folder`. bytes[world]: sizes of the files, 0 without one. A failure is that of
 * this rank: the others continue. */
MUST_USE enum status memory_copy(struct rank_state *state, const struct rank_nodes *nodes,
                                 const struct placement *placement, const int64_t *bytes, const char *folder);

/* Lists the ranks whose copies `rank` receives, in ascending order: list[world * copies]. Returns their
 * number. */
int memory_copy_sources(const struct rank_nodes *nodes, const struct placement *placement, int rank,
                        int *list);
