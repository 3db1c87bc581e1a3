// SPDX-License-Identifier: Apache-2.0
/* Checkpoints in the memory of the nodes (GEMINI, SOSP 2023): files on a tmpfs of each node, in the format of
 * those on disk. A rank writes its shards into the folder of its node, and other nodes of its group receive
 * copies (placement.h):
 *
 *     /dev/shm/run/a/step-00000100/rank-00000.safetensors    of rank 0, on node a
 *                                  rank-00001.safetensors    the copy of rank 1, on node b
 *                                  recipe.yaml, data.json, manifest.json
 *     /dev/shm/run/b/step-00000100/...                       the same manifest: "in_memory": true
 *
 * The folder of a node is locked and cleaned like a folder of checkpoints on disk (store.h); the
 * leader of the node does that. It holds two generations: before a save all checkpoints are removed but the
 * newest that every node has completed, so that one is always complete.
 *
 * A run resumes from these files, so the folder of a node must belong to the user of the run alone (0700).
 *
 * Caution: all calls are collective, and a memory may be full on one node only. */
#pragma once

#include "trainer/checkpoint/reader.h"
#include "trainer/engine/rank.h"

struct memory_checkpoints;

/* Locks the folders of all nodes. *out is NULL if the recipe has no memory_dir, or if nothing is saved to
 * checkpoint.save. BAD_RECIPE before step 0: memory_dir is no tmpfs, too small, of another run or another
 * user; more copies than nodes. Nothing is left in memory_dir then. */
MUST_USE enum status memory_checkpoints_open(struct rank_state *state, struct memory_checkpoints **out);
/* Accepts NULL. */
void memory_checkpoints_close(struct memory_checkpoints *memory);
/* Removes what opening has created, if nothing was saved: the run fails before its first step. */
void memory_checkpoints_undo(struct memory_checkpoints *memory);
/* Removes all checkpoints in memory: when training is complete, the one on disk is final. */
void memory_checkpoints_remove(struct memory_checkpoints *memory);

/* Saves the state of the rank. If that fails because of the files or the memory of a node, rank 0 warns once,
 * and the result is OK: the previous checkpoint remains, and training may continue. */
MUST_USE enum status memory_checkpoints_save(struct memory_checkpoints *memory);

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
/* The run resumes from the checkpoint of `step` in memory; -1: not from memory. */
void memory_checkpoints_resumed(struct memory_checkpoints *memory, int64_t step);
