// SPDX-License-Identifier: Apache-2.0
/* Writes a safetensors file (safetensors.h). */
#pragma once

#include "trainer/checkpoint/format/safetensors.h"

struct safetensors_pair {
    const char *key, *value;
};

struct safetensors_writer;

/* Creates PATH under a temporary name. Tensors are stored in list order. The header is written last, so that
 * metadata may depend on the data: `metadata_bytes` are reserved for it; each pair takes at most its
 * characters and 6 more. */
MUST_USE enum status safetensors_create(const char *path, const struct safetensors_tensor *list, int count,
                                        size_t metadata_bytes, struct safetensors_writer **out);
/* Appends the next bytes of the data. */
MUST_USE enum status safetensors_append(struct safetensors_writer *writer, const void *bytes, size_t length);
/* Call it after all data: writes the header, syncs to disk, and only then renames the file to PATH. */
MUST_USE enum status safetensors_finish(struct safetensors_writer *writer,
                                        const struct safetensors_pair *metadata, int count);
/* The size of a finished file, and the checksum of all bytes before its data. */
int64_t safetensors_writer_bytes(const struct safetensors_writer *writer);
uint64_t safetensors_writer_checksum(const struct safetensors_writer *writer);
/* Accepts NULL. An unfinished file is removed. */
void safetensors_writer_destroy(struct safetensors_writer *writer);
