// SPDX-License-Identifier: Apache-2.0
/* What a file is, by its first bytes: compressed text, an archive, or something that is no text.
 *
 *     1f 8b 08 ...          KIND_GZIP
 *     a header's checksum   KIND_TAR
 *     "PAR1"                KIND_OTHER, "Parquet", and how to make text of it
 *
 * Text itself has no such bytes: NULL. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum file_form {
    KIND_GZIP,
    KIND_XZ,
    KIND_ZSTD,
    KIND_BZIP2,
    KIND_LZ4,
    KIND_TAR,
    KIND_OTHER, // not read
};

struct file_kind {
    const char *name; // "gzip", "a Parquet file"
    enum file_form form;
    const char *magic; // the first bytes; NULL: see file_kind.c
    int length;
    const char *as_text; // KIND_OTHER: commands that read the text of FILE; NULL: there are none
};

/* The kind of bytes[0..count), the beginning of a file, of which 512 bytes are enough; NULL: none known. */
const struct file_kind *file_kind_of(const char *bytes, int64_t count);
