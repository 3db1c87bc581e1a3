// SPDX-License-Identifier: Apache-2.0
/* Finds and opens checkpoints in the memory of the nodes. */
#pragma once

#include "trainer/checkpoint/in_memory/memory_checkpoint.h"

/* Finds the newest checkpoint of a step in [from, below) of which all files remain on some node; *path is
 * NULL if there is none. With `verify` each node reads its files in full, and those that differ from their
 * checksums do not count: other nodes may have intact copies. Gives the manifest and other small files to the
 * nodes that lack it. The caller frees *path, the folder on this node. */
MUST_USE enum status memory_checkpoints_find(struct memory_checkpoints *memory, int64_t from, int64_t below,
                                             bool verify, int64_t *step, char **path);
/* Opens what was found last, with the shards of all files: `source` reads those that this node has. The
 * caller closes the source, also after a failure. */
MUST_USE enum status memory_checkpoints_source(struct memory_checkpoints *memory, const char *path,
                                               struct checkpoint_reader *out);
