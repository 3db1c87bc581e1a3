// SPDX-License-Identifier: Apache-2.0
/* The tensors in a folder of a pretrained model: model.safetensors, or the files that
 * model.safetensors.index.json lists. */
#pragma once

#include "trainer/checkpoint/format/safetensors.h"

struct pretrained_entry {
    const struct safetensors_tensor *tensor;
    int file;
    bool used; // set by the caller
};

struct pretrained_weights {
    const char *folder; // not owned
    struct safetensors **files;
    char **names; // of the files
    int file_count;
    struct pretrained_entry *entries; // sorted by name
    int count;
};

/* Opens all files. BAD_CHECKPOINT names the file, and the tensor that is missing or in another file than the
 * index says; also for an index that names a file outside of the folder. */
MUST_USE enum status pretrained_weights_open(const char *folder, struct pretrained_weights *out);
void pretrained_weights_close(struct pretrained_weights *weights); // accepts {0}, and a failed open's result

/* NULL if there is no such tensor. */
struct pretrained_entry *pretrained_weights_find(const struct pretrained_weights *weights, const char *name);

/* Reads a whole tensor. INTERRUPTED after a signal that is held (stop_signals.h). */
MUST_USE enum status pretrained_weights_read(const struct pretrained_weights *weights,
                                             const struct pretrained_entry *entry, void *out);
