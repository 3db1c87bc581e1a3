// SPDX-License-Identifier: Apache-2.0
/* The safetensors file format of Hugging Face: named tensors, no executable content.
 *
 *   8 bytes    n, the length of the header, little endian
 *   n bytes    JSON: {"__metadata__": {"key": "text"},
 *                     "norm.weight": {"dtype": "F32", "shape": [192], "data_offsets": [0, 768]}, ...}
 *   the rest   the elements, little endian, row-major, tensor after tensor without gaps
 *
 * The format allows no gaps between tensors; the header is padded with spaces so that the data begins at a
 * multiple of 64 bytes.
 *
 * A file is read with pread, not mapped: a failing disk or a file truncated by another program is then an
 * error with a file name instead of a signal, and the data read does not count towards the memory of the run.
 *
 * Caution: no header can be trusted before it agrees with the size of the file. No length is allocated and
 * no offset is followed unchecked. */
#pragma once

#include "base/text.h"

/* The data of a written file begin at a multiple of ALIGN_BYTES: a page, which can bypass the page cache. */
enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_NAME_CHARS = 256, SAFETENSORS_ALIGN_BYTES = 4096 };

enum safetensors_dtype {
    SAFETENSORS_F32, // written by Cuboid; BF16 for weights without master weights
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
    int64_t offset_bytes, bytes; // within the data; filled in by reader and writer
};

struct safetensors;

/* Opens and checks a file. BAD_CHECKPOINT names the file and, if applicable, the tensor; IO_ERROR if it
 * cannot be read. An open file may be read by several threads. */
MUST_USE enum status safetensors_open(const char *path, struct safetensors **out);
void safetensors_close(struct safetensors *file); // accepts NULL

/* Tensors are in file order. */
int safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, int index);
const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name);               // or NULL
const char *safetensors_metadata(const struct safetensors *file, const char *key); // or NULL

int64_t safetensors_file_bytes(const struct safetensors *file);
int64_t safetensors_data_bytes(const struct safetensors *file);
/* Checksum of all bytes before the data. */
uint64_t safetensors_header_checksum(const struct safetensors *file);

/* Reads `length` bytes of one tensor starting at byte `from`. */
MUST_USE enum status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                                      int64_t from, size_t length, void *out);

/* Reads `length` bytes of the data section starting at byte `from`. */
MUST_USE enum status safetensors_read_data(const struct safetensors *file, int64_t from, size_t length,
                                           void *out);
