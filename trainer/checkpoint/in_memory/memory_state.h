// SPDX-License-Identifier: Apache-2.0
/* The state of checkpoints in memory, shared by saving and loading. */
#pragma once

#include "trainer/checkpoint/in_memory/memory_checkpoint.h"
#include "trainer/checkpoint/in_memory/placement.h"
#include "trainer/checkpoint/in_memory/rank_nodes.h"
#include "trainer/checkpoint/metadata_files.h"
#include "trainer/checkpoint/store.h"

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

/* True for the rank that creates and removes folders on its node. */
bool memory_is_leader(const struct memory_checkpoints *memory);

/* Checks the lock of this node's folder. Creates the folder and its record again, with a warning, if they
 * were removed during the run. IO_ERROR if that is not possible. */
MUST_USE enum status memory_restore_folder(const struct memory_checkpoints *memory);
