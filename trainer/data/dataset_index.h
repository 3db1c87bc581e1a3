// SPDX-License-Identifier: Apache-2.0
/* The index of a dataset (the .idx file; format in dataset.h), checked in full and stored in memory as the
 * length of each document. The file is not read again, so truncating it during a run has no effect.
 *
 * Memory: 4.25 bytes per document; 4 more per sequence while it is read. */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum { INDEX_BLOCK = 32 }; // documents per stored start

struct dataset_index {
    int type;         // type code in the file
    int64_t id_bytes; // of one id
    const char *type_name;
    int64_t sequences, documents, tokens;
    uint32_t *lengths; // [documents], in ids
    int64_t *starts;   // [documents / INDEX_BLOCK + 1] ids before the first document of each block
    int64_t file_bytes;
    uint64_t checksum; // of the whole file
};

/* Reads the index from `fd`, a regular file of `bytes` bytes. Names and size of the .bin file are for checks
 * and messages. BAD_DATA names the file, the byte offset and the value; NO_MEMORY; IO_ERROR. */
MUST_USE enum status index_read(int fd, const char *path, int64_t bytes, const char *bin_path,
                                int64_t bin_bytes, struct dataset_index *out);
void index_free(struct dataset_index *index); // accepts {0}
