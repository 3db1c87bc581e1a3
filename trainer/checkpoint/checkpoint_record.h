// SPDX-License-Identifier: Apache-2.0
/* SAVE/run.json: the persistent state of the run that owns a folder of checkpoints.
 *
 *   {"format": "cuboid run", "version": 1, "run": "<32 digits>", "unfinished": ["step-00000200.partial"]}
 *
 * `run` is the identity of the run: drawn once, the same whenever it is resumed, and in the manifest of
 * each of its checkpoints. `unfinished` names the folders that this run is making or removing: it is written
 * before such a folder appears, so that after a kill the next save knows which ones are its own. A folder
 * that is not listed here is never removed, whatever its name is.
 *
 * "replaced": "step-00000100.replaced" is added while two renames replace a checkpoint: the complete
 * checkpoint of that step, until step-00000100 is complete again (checkpoint_folder.h). */
#pragma once

#include "trainer/checkpoint/format/checkpoint_file.h"

enum { RECORD_MOST_FOLDERS = 4, RECORD_NAME_CHARS = 64 };

struct record {
    char run[RUN_CHARS]; // "": the folder has no run yet
    char unfinished[RECORD_MOST_FOLDERS][RECORD_NAME_CHARS];
    int count;
    char replaced[RECORD_NAME_CHARS]; // "": none
};

/* Without a record, or with one that cannot be parsed (which prints a warning), *out is empty. */
MUST_USE enum status record_read(const char *save, struct record *out);
MUST_USE enum status record_write(const char *save, const struct record *record);
/* The record with exactly these unfinished folders, NULL for none. */
MUST_USE enum status record_set_unfinished(const char *save, const char *name);

/* The record with this checkpoint being replaced; the rest of it is kept. */
MUST_USE enum status record_set_replaced(const char *save, const char *name);

/* `digits` random hexadecimal digits (a multiple of 16), and a 0 after them. */
MUST_USE enum status random_hex(char *out, size_t digits);
