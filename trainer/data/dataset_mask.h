// SPDX-License-Identifier: Apache-2.0
/* The loss mask of a dataset: which of its tokens count in the loss when they are predicted. A third file
 * next to Megatron's two, which do not change:
 *
 *     PREFIX.mask   little endian
 *         byte 0    "CUBOIDLM"
 *              8    u64  version, 2
 *             16    u64  number n of tokens, all of PREFIX.bin
 *             24    u64  number of them that count
 *             32    u64  XXH3 of PREFIX.idx
 *             40    u64  XXH3 of blocks of PREFIX.bin (dataset_blocks.h), one after the other
 *             48    u64  XXH3 of all bytes from 56 on
 *             56    char the chat template that wrote the conversations, "chatml", then zeros [16]
 *             72    u8   bit i % 8 of byte i / 8: whether token i counts [(n + 7) / 8], zeros after bit n - 1
 *
 * Version 1, without the name, is also read: its bits begin at byte 56.
 *
 * The first three checksums bind a mask to its dataset: one of other tokens, or of the same tokens in another
 * order, is refused. All is checked when the file is opened; bits are then read with pread, like ids. */
#pragma once

#include "base/file.h"

#include <stdint.h>

enum { MASK_TEMPLATE_CHARS = 16 };

struct dataset_mask {
    int fd; // -1: not open
    struct text path;
    int64_t bits_at;                         // in the file
    char chat_template[MASK_TEMPLATE_CHARS]; // "": unknown
    int64_t tokens, counted;
    uint64_t checksum; // of the name and the bits
};

/* What a mask is bound to. */
struct dataset_mask_of {
    int64_t tokens;
    uint64_t index_checksum, ids_checksum;
};

/* The checksum of blocks of an open .bin file; `path` is for messages. IO_ERROR. */
MUST_USE enum status dataset_ids_checksum(int fd, const char *path, int64_t bytes, uint64_t *out);

/* Opens PREFIX.mask and checks it. BAD_DATA names the file, the byte, the value and the fix; IO_ERROR. */
MUST_USE enum status mask_open(const char *prefix, const struct dataset_mask_of *of,
                               struct dataset_mask *out);
void mask_close(struct dataset_mask *mask); // accepts one that is not open

/* out[i] = 1 if token first + i of the dataset counts, else 0. IO_ERROR. Thread-safe. */
MUST_USE enum status mask_read(const struct dataset_mask *mask, int64_t first, int64_t count, uint8_t *out);

/* Writes a mask under a temporary name; {.file.fd = -1} is none. */
struct mask_writer {
    struct file_temporary file;
    FILE *stream; // on a duplicated descriptor; NULL if not open
    struct text path;
    struct checksum *sum;
    uint8_t byte; // the bits of the last, incomplete byte
    int64_t tokens, counted;
    char chat_template[MASK_TEMPLATE_CHARS];
};

MUST_USE enum status mask_writer_create(const char *prefix, const char *chat_template,
                                        struct mask_writer *out);
MUST_USE enum status mask_writer_add(struct mask_writer *writer, const uint8_t *counts, int64_t count);
/* Writes the header and syncs; the file keeps its temporary name until file_temporary_commit(). */
MUST_USE enum status mask_writer_complete(struct mask_writer *writer, const struct dataset_mask_of *of);
void mask_writer_destroy(
    struct mask_writer *writer); // removes the file unless it was committed; accepts none
