// SPDX-License-Identifier: Apache-2.0
/* Saves a checkpoint in the memory of the nodes. */
#pragma once

#include "trainer/checkpoint/in_memory/memory_checkpoint.h"

/* Saves the state of the rank. If that fails because of the files or the memory of a node, rank 0 warns once,
 * and the result is OK: the previous checkpoint remains, and training may continue. */
MUST_USE enum status memory_checkpoints_save(struct memory_checkpoints *memory);
