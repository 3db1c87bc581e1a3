// SPDX-License-Identifier: Apache-2.0
/* A checkpoint being loaded: its manifest and its open files. */
#pragma once

#include "trainer/checkpoint/format/manifest.h"

/* A file of a checkpoint, and the shards in it once its header was read. */
struct reader_file {
    struct checkpoint_file *open; // NULL: not open
    struct shard *shards;         // sorted by name; NULL: not read
    int count;
};

/* Of a checkpoint in the memory of several nodes: which nodes have which files. */
struct reader_nodes {
    int words;          // of each node
    uint32_t *has;      // [nodes][words]: bit f is set if the node has file f
    int *reader;        // [files] the rank that reads the file for ranks of other nodes
    const int *node_of; // [world], not owned
};
void reader_nodes_free(struct reader_nodes *nodes); // accepts {0}
/* True if the node of `rank` has the file. */
bool reader_nodes_has(const struct reader_nodes *nodes, int rank, int file);

/* Files with a block of 1 MiB in memory. */
enum { READER_RECENT = 16 };

struct checkpoint_reader {
    const char *folder;
    const struct reader_nodes *nodes; // NULL: all files are in the folder. Not owned
    struct manifest manifest;
    struct reader_file *files; // [manifest.file_count]
    int open_count, opened;    // files that are open; number of times that one was opened
    int recent[READER_RECENT]; // files that were read last, newest first; -1: none
    int first_rank;            // whose file is searched first: that of this rank; -1: none
    struct shard *found;       // result of checkpoint_reader_find()
    int found_capacity;
    float *chunk;     // [READER_CHUNK_ELEMENTS]
    uint16_t *narrow; // [READER_CHUNK_ELEMENTS], for bf16 values
};
enum { READER_CHUNK_ELEMENTS = 1 << 18 };

MUST_USE enum status checkpoint_reader_open(const char *folder, int first_rank,
                                            struct checkpoint_reader *out);
/* The same with its manifest, which the source frees. */
void checkpoint_reader_from(const char *folder, const struct manifest *manifest, int first_rank,
                            struct checkpoint_reader *out);
void checkpoint_reader_close(
    struct checkpoint_reader *source); // accepts the result of a failed checkpoint_reader_open()

/* Sets *out to the whole tensor; false if the checkpoint has no tensor of this name. */
bool checkpoint_reader_tensor(const struct checkpoint_reader *source, const char *name, struct shard *out);

/* Reads the shards of a file from its header. */
MUST_USE enum status checkpoint_reader_shards(struct checkpoint_reader *source, int file,
                                              const struct shard **shards, int *count);
/* Sets the shards of a file of another node; the source frees them. */
void checkpoint_reader_set_shards(struct checkpoint_reader *source, int file, struct shard *shards,
                                  int count);

/* The shard of a tensor in a file whose header was read; NULL: none. */
const struct shard *checkpoint_reader_shard_in(const struct checkpoint_reader *source, int file,
                                               const char *name);

/* The rank that reads replicated state for all ranks. */
int checkpoint_reader_root(const struct checkpoint_reader *source);

/* True if the file of a rank has exactly this part of a tensor. */
bool checkpoint_reader_file_has(struct checkpoint_reader *source, int rank, const char *name,
                                const struct slice *part);

/* Finds the shards of a tensor that overlap `want`, which they cover exactly once: BAD_CHECKPOINT
 * otherwise, or if there is no such tensor. Reads headers of files that may contain it, until all of them
 * are found. The list is valid until the next call. */
MUST_USE enum status checkpoint_reader_find(struct checkpoint_reader *source, const char *name,
                                            const struct slice *want, const struct shard **list, int *count);

/* Copies the elements of `shard` (F32, or BF16 if may_be_narrow) that are in `want` to their offsets in
 * `local`, f32[padded]. Returns BAD_CHECKPOINT on a checksum mismatch. */
MUST_USE enum status checkpoint_reader_read(struct checkpoint_reader *source, const struct shard *shard,
                                            bool may_be_narrow, const struct slice *want, float *local);

/* Copies the bytes of `shard` that are in `want` to their offsets in `out`, which holds `want` without
 * padding in the type of the shard. They overlap. */
MUST_USE enum status checkpoint_reader_read_bytes(struct checkpoint_reader *source, const struct shard *shard,
                                                  const struct slice *want, char *out);
/* checkpoint_reader_find() and checkpoint_reader_read_bytes() of all that is in `want`. */
MUST_USE enum status checkpoint_reader_read_whole(struct checkpoint_reader *source, const char *name,
                                                  const struct slice *want, char *out);
/* Reads a file in full and verifies all of its checksums; adds the size of its data to *bytes. */
MUST_USE enum status checkpoint_reader_verify_file(struct checkpoint_reader *source, int index,
                                                   int64_t *bytes);

/* Reads a small F64 tensor that is stored in one shard; *found is false if the checkpoint lacks it. */
MUST_USE enum status checkpoint_reader_read_f64(struct checkpoint_reader *source, const char *name,
                                                double *out, int count, bool *found);
