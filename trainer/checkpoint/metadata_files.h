// SPDX-License-Identifier: Apache-2.0
/* The files of a checkpoint besides those of the ranks. Rank 0 makes them. */
#pragma once

#include "trainer/checkpoint/writer.h"

struct metadata_files {
    struct text recipe, data, manifest; // data: empty if the run reads no data
};

/* Collective, when all ranks have written their files: gathers the notes on rank 0, which completes
 * `manifest` and fills in the texts; they are empty on other ranks. `path` is for error messages. Ranks agree
 * on the outcome. */
MUST_USE enum status metadata_files_make(struct rank_writer *writer, const char *path,
                                         struct manifest *manifest, struct metadata_files *out);
void metadata_files_free(struct metadata_files *texts); // accepts {0}

/* Writes and reads the files of a folder, the manifest last. */
MUST_USE enum status metadata_files_write(const struct metadata_files *texts, const char *folder);
MUST_USE enum status metadata_files_read(const char *folder, struct metadata_files *out);
