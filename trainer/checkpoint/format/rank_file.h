// SPDX-License-Identifier: Apache-2.0
/* One file of a checkpoint, format version 3: a safetensors file whose metadata holds the identity of run and
 * save, the offset of each tensor in the global tensor, and checksums of the data. It can be verified by
 * itself; the manifest (manifest.h) only lists files.
 *
 *   "cuboid.version": "3"
 *   "cuboid.run":     32 hexadecimal digits, the identity of the run
 *   "cuboid.save":    16 hexadecimal digits, a new random number for each save
 *   "cuboid.step":    "100"
 *   "cuboid.xxh3":    16 digits for each MiB of the data after the header; the last block may be shorter
 *   "head.weight":    "129,0 257,192", begin and shape of the global tensor; one entry for each tensor
 *
 * Data is read in blocks of one MiB; each is verified before any of its bytes is used. */
#pragma once

#include "trainer/checkpoint/shard.h"

enum { CHECKPOINT_VERSION = 3, CHECKPOINT_BLOCK_BYTES = 1 << 20 };
/* Blocks are written this many bytes at a time. */
enum { CHECKPOINT_WRITE_BYTES = 4 * CHECKPOINT_BLOCK_BYTES };
enum { RUN_CHARS = 33, SAVE_CHARS = 17 };

/* Run, save and step of a checkpoint, the same in all of its files. */
struct save_identity {
    char run[RUN_CHARS], save[SAVE_CHARS];
    int64_t step;
};

bool identity_equal(const struct save_identity *a, const struct save_identity *b);
/* True if `text` consists of exactly `digits` hexadecimal digits. */
bool is_hex(const char *text, size_t digits);

/* ---- writing ---- */

struct checkpoint_writer;

/* Creates PATH under a temporary name. `shards` (name, dtype, rectangle) are stored in this order and must
 * outlive the writer. */
MUST_USE enum status checkpoint_writer_create(const char *path, const struct save_identity *identity,
                                              const struct shard *shards, int count,
                                              struct checkpoint_writer **out);
/* Appends the next bytes of the data. They bypass the page cache where the file system supports it, so that a
 * save in the background takes neither a copy nor memory from the steps. */
MUST_USE enum status checkpoint_writer_append(struct checkpoint_writer *writer, const void *bytes,
                                              size_t length);
/* Call it after all data: writes the header, syncs to disk, and renames the file to PATH. */
MUST_USE enum status checkpoint_writer_finish(struct checkpoint_writer *writer);
/* What the manifest lists of a finished file: its size, and the checksum of its header. */
int64_t checkpoint_writer_bytes(const struct checkpoint_writer *writer);
uint64_t checkpoint_writer_checksum(const struct checkpoint_writer *writer);
/* Accepts NULL. An unfinished file is removed. */
void checkpoint_writer_destroy(struct checkpoint_writer *writer);

/* ---- reading ---- */

struct checkpoint_file;

/* Opens a file; BAD_CHECKPOINT names the file and the problem. Not thread-safe. */
MUST_USE enum status checkpoint_file_open(const char *path, struct checkpoint_file **out);
void checkpoint_file_close(struct checkpoint_file *file); // accepts NULL

const struct safetensors *checkpoint_file_tensors(const struct checkpoint_file *file);
const struct save_identity *checkpoint_file_identity(const struct checkpoint_file *file);
/* Frees the block that was read last. */
void checkpoint_file_free_block(struct checkpoint_file *file);
/* Returns the shard stored in a tensor of the file, except for its file index. */
MUST_USE enum status checkpoint_file_shard(const struct checkpoint_file *file,
                                           const struct safetensors_tensor *tensor, struct shard *out);
/* Reads `length` bytes of the tensor starting at byte `from`. If a checksum differs, `out` is written all the
 * same. */
MUST_USE enum status checkpoint_file_read(struct checkpoint_file *file,
                                          const struct safetensors_tensor *tensor, int64_t from,
                                          size_t length, void *out);
