// SPDX-License-Identifier: Apache-2.0
/* The files of a checkpoint besides those of the ranks. Rank 0 makes them. */
#pragma once

#include "trainer/checkpoint/checkpoint_job.h"

struct save_texts {
    struct text recipe, data, manifest; // data: empty if the run reads no data
};

/* Collective, when all ranks have written their files: gathers the notes on rank 0, which completes
 * `manifest` and fills in the texts; they are empty on other ranks. `path` is for error messages. Ranks agree
 * on the outcome. */
MUST_USE enum status save_texts_make(struct save_job *job, const char *path, struct manifest *manifest,
                                     struct save_texts *out);
void save_texts_free(struct save_texts *texts); // accepts {0}

/* Writes and reads the files of a folder, the manifest last. */
MUST_USE enum status save_texts_write(const struct save_texts *texts, const char *folder);
MUST_USE enum status save_texts_read(const char *folder, struct save_texts *out);
