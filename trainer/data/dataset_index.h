// SPDX-License-Identifier: Apache-2.0
/* The index of a dataset (the .idx file, whose format is in dataset.h), checked in full and kept in memory as
 * the length of each document. Nothing of the file is read again after that: a file that is truncated during
 * a run cannot hurt it.
 *
 * Memory: 4.25 bytes a document; 4 bytes a sequence more while it is read. */
#pragma once

#include "base/status.h"

#include <stdint.h>

enum { INDEX_BLOCK = 32 }; // documents for each stored start

struct dataset_index {
    int type;         // the code of the file
    int64_t id_bytes; // of one id
    const char *type_name;
    int64_t sequences, documents, tokens;
    uint32_t *lengths; // [documents], in ids
    int64_t *starts;   // [documents / INDEX_BLOCK + 1] ids before the first document of each block
    int64_t file_bytes;
    uint64_t checksum; // of the whole file
};

/* Reads the index from `fd`, a regular file of `bytes` bytes. The names and the size of the .bin file are for
 * the checks and for messages. BAD_DATA names the file, the place and the value; NO_MEMORY; IO_ERROR. */
MUST_USE enum status index_read(int fd, const char *path, int64_t bytes, const char *bin_path,
                                int64_t bin_bytes, struct dataset_index *out);
void index_free(struct dataset_index *index); // takes {0}
