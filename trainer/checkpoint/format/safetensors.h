// SPDX-License-Identifier: Apache-2.0
/* The file format of Hugging Face's safetensors: named tensors, nothing that runs.
 *
 *   8 bytes    n, the length of the header, little endian
 *   n bytes    JSON: {"__metadata__": {"key": "text"},
 *                     "norm.weight": {"dtype": "F32", "shape": [192], "data_offsets": [0, 768]}, ...}
 *   the rest   the numbers, little endian, row-major, one tensor after the other without a hole
 *
 * The format leaves no room between tensors; the header is padded with spaces so that the first of them
 * begins at a multiple of 64 bytes.
 *
 * A file is read with pread and not mapped: a disk that fails, or a file that another program cuts short, is
 * then an error with a name, and not a signal; and what was read is not counted among the memory of the run.
 *
 * The trap: nothing in a header is true before the file's own size agrees. No length of it is
 * allocated, and no offset followed, unchecked. */
#pragma once

#include "base/text.h"

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_NAME_CHARS = 256, SAFETENSORS_ALIGN_BYTES = 64 };

enum safetensors_dtype {
    SAFETENSORS_F32, // what Cuboid writes, and BF16 of weights without masters
    SAFETENSORS_F64,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U64,
    SAFETENSORS_U32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_DTYPES
};
const char *safetensors_dtype_name(enum safetensors_dtype dtype); // "F32"
size_t safetensors_dtype_bytes(enum safetensors_dtype dtype);
bool safetensors_dtype_parse(const char *name, enum safetensors_dtype *out);

struct safetensors_tensor {
    const char *name; // printable, without spaces
    enum safetensors_dtype dtype;
    int ndim;
    int64_t dim[SAFETENSORS_MAX_DIMS];
    int64_t offset_bytes, bytes; // among the numbers; filled in by reader and writer
};

/* ---- reading ---- */

struct safetensors;

/* Opens and checks a file. BAD_CHECKPOINT names the file and, where there is one, the tensor; IO_ERROR when
 * it cannot be read. One open file may be read by several threads. */
MUST_USE enum status safetensors_open(const char *path, struct safetensors **out);
void safetensors_close(struct safetensors *file); // takes NULL

/* In the order in which they lie in the file. */
int safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, int index);
const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name);               // or NULL
const char *safetensors_metadata(const struct safetensors *file, const char *key); // or NULL

int64_t safetensors_file_bytes(const struct safetensors *file);
int64_t safetensors_data_bytes(const struct safetensors *file);
/* Of all bytes before the numbers; as checkpoints of version 1 have it, too. */
uint64_t safetensors_header_checksum(const struct safetensors *file);
uint64_t safetensors_header_checksum_v1(const struct safetensors *file);

/* `length` bytes of the tensor's from `from` on. */
MUST_USE enum status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                                      int64_t from, size_t length, void *out);

/* `length` bytes of all tensors' from `from` on. */
MUST_USE enum status safetensors_read_data(const struct safetensors *file, int64_t from, size_t length,
                                           void *out);

/* ---- writing ---- */

struct safetensors_pair {
    const char *key, *value;
};

struct safetensors_writer;

/* Begins PATH under a temporary name. The tensors lie as they are listed. The header comes last, so that
 * metadata may say what only the numbers tell: `metadata_bytes` of room are kept for it, each pair taking at
 * most its characters and 6 more. */
MUST_USE enum status safetensors_create(const char *path, const struct safetensors_tensor *list, int count,
                                        size_t metadata_bytes, struct safetensors_writer **out);
/* The next bytes of the numbers. */
MUST_USE enum status safetensors_append(struct safetensors_writer *writer, const void *bytes, size_t length);
/* All numbers are there: writes the header, waits for the disk, and only then gives the file its name. */
MUST_USE enum status safetensors_finish(struct safetensors_writer *writer,
                                        const struct safetensors_pair *metadata, int count);
/* Takes NULL. A file that was not finished disappears. */
void safetensors_writer_destroy(struct safetensors_writer *writer);
