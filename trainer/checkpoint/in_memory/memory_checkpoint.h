// SPDX-License-Identifier: Apache-2.0
/* Checkpoints in the memory of the nodes (GEMINI, SOSP 2023): files on a tmpfs of each node, in the format of
 * those on disk. A rank writes its shards into the folder of its node, and other nodes of its group receive
 * copies (memory_copy.h):
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

#include "trainer/checkpoint/in_memory/memory_copy.h"
#include "trainer/checkpoint/reader.h"

struct store_lock;

enum { MEMORY_RECORDS = 3 }; // files of a locked folder

struct memory_checkpoints {
    struct rank_state *rank_state;
    struct rank_nodes nodes;
    struct placement placement;
    struct text folder;       // memory_dir/NODE
    struct text made;         // the first folder of its path that this run creates; empty: none
    bool had[MEMORY_RECORDS]; // the files that it had before this run locked it
    struct store_lock *lock;  // of the leader
    char run[RUN_CHARS];
    int64_t complete;            // step of the newest checkpoint that every node has; -1: none
    bool failed;                 // the last save failed
    struct manifest manifest;    // of the checkpoint that was found last, until it is opened
    struct reader_nodes holders; // of its files
};

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

/* The run resumes from the checkpoint of `step` in memory; -1: not from memory. */
void memory_checkpoints_resumed(struct memory_checkpoints *memory, int64_t step);

/* ---- for memory_save.c and memory_load.c ---- */

/* True for the rank that creates and removes folders on its node. */
bool memory_is_leader(const struct memory_checkpoints *memory);

/* Checks the lock of this node's folder. Creates the folder and its record again, with a warning, if they
 * were removed during the run. IO_ERROR if that is not possible. */
MUST_USE enum status memory_restore_folder(const struct memory_checkpoints *memory);
