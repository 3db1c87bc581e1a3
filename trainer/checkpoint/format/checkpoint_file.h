// SPDX-License-Identifier: Apache-2.0
/* One file of a checkpoint, format version 2: a safetensors file whose metadata has the run and the save that
 * wrote it, the offset of each of its tensors in the global one, and the checksums of the data. It can be
 * verified by itself; the manifest (checkpoint_manifest.h) only lists files.
 *
 *   "cuboid.version": "2"
 *   "cuboid.run":     32 hexadecimal digits, the identity of the run
 *   "cuboid.save":    16 hexadecimal digits, a new random number for each save
 *   "cuboid.step":    "100"
 *   "cuboid.xxh3":    16 digits for each MiB of the data after the header; the last block may be shorter
 *   "head.weight":    "129,0 257,192", begin and shape of the global tensor; one entry for each tensor
 *
 * Version 1 had one checksum for each tensor, kept in the manifest, and no identity; its files are read here
 * unchecked, and the caller compares the checksums.
 *
 * Data is read in whole MiB, each compared with its checksum before a byte of it is used. */
#pragma once

#include "trainer/checkpoint/checkpoint_piece.h"

enum { CHECKPOINT_VERSION = 2, CHECKPOINT_BLOCK_BYTES = 1 << 20 };
enum { RUN_CHARS = 33, SAVE_CHARS = 17 };

/* The run, save and step of a checkpoint, the same in all of its files. In version 1 run and save are "". */
struct save_identity {
    char run[RUN_CHARS], save[SAVE_CHARS];
    int64_t step;
};

bool identity_equal(const struct save_identity *a, const struct save_identity *b);
/* `text` has `digits` hexadecimal digits and nothing else. */
bool is_hex(const char *text, size_t digits);

/* ---- writing ---- */

struct checkpoint_writer;

/* Begins PATH under a temporary name; `pieces` (name, dtype, rectangle) lie in this order and live longer
 * than the writer. */
MUST_USE enum status checkpoint_writer_create(const char *path, const struct save_identity *identity,
                                              const struct piece *pieces, int count,
                                              struct checkpoint_writer **out);
/* The next bytes of the data. */
MUST_USE enum status checkpoint_writer_append(struct checkpoint_writer *writer, const void *bytes,
                                              size_t length);
/* All data is there: writes the header, waits for the disk, and gives the file its name. */
MUST_USE enum status checkpoint_writer_finish(struct checkpoint_writer *writer);
/* Takes NULL. A file that was not finished disappears. */
void checkpoint_writer_destroy(struct checkpoint_writer *writer);

/* ---- reading ---- */

struct checkpoint_file;

/* BAD_CHECKPOINT names the file and what is wrong with it. Not for several threads at once. */
MUST_USE enum status checkpoint_file_open(const char *path, int version, struct checkpoint_file **out);
void checkpoint_file_close(struct checkpoint_file *file); // takes NULL

const struct safetensors *checkpoint_file_tensors(const struct checkpoint_file *file);
const struct save_identity *checkpoint_file_identity(const struct checkpoint_file *file);
/* The piece that a tensor of the file is, without its index of the file. */
MUST_USE enum status checkpoint_file_piece(const struct checkpoint_file *file,
                                           const struct safetensors_tensor *tensor, struct piece *out);
/* `length` bytes of the tensor from `from` on. */
MUST_USE enum status checkpoint_file_read(struct checkpoint_file *file,
                                          const struct safetensors_tensor *tensor, int64_t from,
                                          size_t length, void *out);
