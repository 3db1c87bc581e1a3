// SPDX-License-Identifier: Apache-2.0
/* A checkpoint being loaded: its manifest and its open files. */
#pragma once

#include "trainer/checkpoint/format/checkpoint_manifest.h"

struct source {
    const char *folder;
    struct manifest manifest;
    struct checkpoint_file **open; // [file_count], NULL: not open
    int open_count;
    float *chunk;     // [SOURCE_CHUNK_ELEMENTS]
    uint16_t *narrow; // [SOURCE_CHUNK_ELEMENTS], for bf16 values
};
enum { SOURCE_CHUNK_ELEMENTS = 1 << 18 };

MUST_USE enum status source_open(const char *folder, struct source *out);
void source_close(struct source *source); // accepts the result of a failed source_open()

/* Copies the elements of `shard` (F32, or BF16 if may_be_narrow) that are in `want` to their offsets in
 * `local`, f32[padded]; adds their number to *given. Returns BAD_CHECKPOINT on a checksum mismatch. */
MUST_USE enum status source_read(struct source *source, const struct shard *shard, bool may_be_narrow,
                                 const struct slice *want, float *local, int64_t *given);

/* Reads a small F64 tensor that is stored in one shard; *found is false if the checkpoint lacks it. */
MUST_USE enum status source_read_f64(struct source *source, const char *name, double *out, int count,
                                     bool *found);
