// SPDX-License-Identifier: Apache-2.0
/* A checkpoint that is being loaded: its manifest, and the files that are open. */
#pragma once

#include "trainer/checkpoint/format/checkpoint_manifest.h"

struct source {
    const char *folder;
    struct manifest manifest;
    struct checkpoint_file **open; // [file_count], NULL: not open
    int open_count;
    float *chunk;     // [SOURCE_CHUNK_ELEMENTS]
    uint16_t *narrow; // [SOURCE_CHUNK_ELEMENTS], of values that are bf16
};
enum { SOURCE_CHUNK_ELEMENTS = 1 << 18 };

MUST_USE enum status source_open(const char *folder, struct source *out);
void source_close(struct source *source); // takes what source_open() left when it failed

/* The elements of `piece` (F32; where it may be narrow BF16, too) that lie in `want` go to their place in
 * `local`, f32[padded]; *given grows by their number. BAD_CHECKPOINT when a checksum does not agree. */
MUST_USE enum status source_read(struct source *source, const struct piece *piece, bool may_be_narrow,
                                 const struct slice *want, float *local, int64_t *given);

/* A small tensor of F64 that lies in one piece: *found false when the checkpoint has none. */
MUST_USE enum status source_read_f64(struct source *source, const char *name, double *out, int count,
                                     bool *found);
