// SPDX-License-Identifier: Apache-2.0
/* Token ids of documents on disk: Megatron-LM's indexed dataset, a pair of files.
 *
 *     PREFIX.bin   the ids of all documents, concatenated, nothing else
 *     PREFIX.idx   their index. Little endian, and not aligned, because the magic has 9 bytes:
 *
 *         byte 0    "MMIDIDX\0\0"
 *              9    u64  version, 1
 *             17    u8   type of an id: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16  (6 and 7 are floats)
 *             18    u64  number n of sequences
 *             26    u64  number d of document boundaries: documents + 1
 *             34    i32  length of each sequence, in ids      [n]
 *                   i64  offset of each sequence in .bin, bytes [n]
 *                   i64  first sequence of each document      [d]   0, ..., n
 *                   i8   mode of each sequence                [n]   only in multimodal sets; not read
 *
 * A document is usually one sequence. Sequences are contiguous in .bin, so a document is one contiguous range
 * of ids; this redundancy is checked in full when a dataset is opened, together with every count against the
 * actual sizes of both files, so that later reads need no bounds checks.
 *
 * The index is read into memory when a dataset is opened, and ids are read from the open .bin file with
 * pread: a truncated file or a failing disk is an error of that read, not a signal. Caution: a file that is
 * rewritten in place while it is open returns other ids without an error; write a new dataset under a new
 * name, or with dataset_writer, which renames. */
#pragma once

#include "base/status.h"

#include <stdint.h>

struct dataset;

/* Opens a dataset; `prefix` with or without ".bin" or ".idx". IO_ERROR or BAD_DATA names the file, the byte
 * offset and the value. */
MUST_USE enum status dataset_open(const char *prefix, struct dataset **out);
void dataset_close(struct dataset *dataset); // accepts NULL

const char *dataset_prefix(const struct dataset *dataset);
const char *dataset_type_name(const struct dataset *dataset); // "uint16", "int32", ...
int64_t dataset_documents(const struct dataset *dataset);
int64_t dataset_sequences(const struct dataset *dataset);
int64_t dataset_tokens(const struct dataset *dataset);

/* Number of ids before `document`, which is in [0, documents]. */
int64_t dataset_start(const struct dataset *dataset, int64_t document);
int64_t dataset_length(const struct dataset *dataset, int64_t document);

/* Reads ids [begin, begin + count) of a document. An id outside [0, vocab_size) is BAD_DATA, with the file,
 * the document, the position in it and the id; IO_ERROR if the file cannot be read or has been truncated.
 * Thread-safe. */
MUST_USE enum status dataset_read(const struct dataset *dataset, int64_t document, int64_t begin,
                                  int64_t count, int64_t vocab_size, int32_t *out);

/* Opens the loss mask of the dataset (dataset_mask.h), which must exist. The same errors. */
MUST_USE enum status dataset_open_mask(struct dataset *dataset);
bool dataset_has_mask(const struct dataset *dataset); // is open
/* Of an open mask: the number of tokens that count in the loss, the checksum of its bits, and the chat
 * template that wrote the conversations ("": unknown). */
int64_t dataset_counted_tokens(const struct dataset *dataset);
uint64_t dataset_mask_checksum(const struct dataset *dataset);
const char *dataset_chat_template(const struct dataset *dataset);
/* out[i] = 1 if token begin + i of a document counts in the loss, else 0; always 1 without an open mask. */
MUST_USE enum status dataset_read_mask(const struct dataset *dataset, int64_t document, int64_t begin,
                                       int64_t count, uint8_t *out);

/* Properties of the files when they were opened: sizes, and the checksum of the whole .idx file. */
int64_t dataset_index_bytes(const struct dataset *dataset);
uint64_t dataset_index_checksum(const struct dataset *dataset);
int64_t dataset_bin_bytes(const struct dataset *dataset);

/* Reads `count` bytes of the .bin file from byte `at` on, within its size. IO_ERROR names the file and the
 * byte. */
MUST_USE enum status dataset_read_bytes(const struct dataset *dataset, int64_t at, size_t count, void *out);
