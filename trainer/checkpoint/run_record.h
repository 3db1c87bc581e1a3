// SPDX-License-Identifier: Apache-2.0
/* SAVE/run.json: the persistent state of the run that owns a checkpoint folder.
 *
 *   {"format": "cuboid run", "version": 1, "run": "<32 digits>", "unfinished": ["step-00000200.partial"]}
 *
 * `run` is the identity of the run: drawn once at random, unchanged when the run is resumed, and stored in
 * the manifest of each of its checkpoints. `unfinished` names the folders that this run is creating or
 * removing: it is written before such a folder appears, so that after a kill the next save can identify
 * them. A folder that is not listed here is never removed, whatever its name.
 *
 * "replaced": "step-00000100.replaced" is added while two renames replace a checkpoint: the complete
 * checkpoint of that step, until step-00000100 is complete again (store.h). */
#pragma once

#include "trainer/checkpoint/format/rank_file.h"

enum { RUN_RECORD_MAX_FOLDERS = 4, RUN_RECORD_NAME_CHARS = 64 };

struct run_record {
    char run[RUN_CHARS]; // "": the folder has no run yet
    char unfinished[RUN_RECORD_MAX_FOLDERS][RUN_RECORD_NAME_CHARS];
    int count;
    char replaced[RUN_RECORD_NAME_CHARS]; // "": none
};

/* Sets *out to an empty record if there is none, or with a warning if it cannot be parsed. */
MUST_USE enum status run_record_read(const char *save, struct run_record *out);
MUST_USE enum status run_record_write(const char *save, const struct run_record *record);
/* Writes the record with exactly this unfinished folder; NULL: none. */
MUST_USE enum status run_record_set_unfinished(const char *save, const char *name);

/* Writes the record with this checkpoint being replaced; keeps the rest. */
MUST_USE enum status run_record_set_replaced(const char *save, const char *name);

/* Writes `digits` random hexadecimal digits (a multiple of 16) and a terminating 0. */
MUST_USE enum status random_hex(char *out, size_t digits);
