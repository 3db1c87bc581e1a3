// SPDX-License-Identifier: Apache-2.0
/* The file that one rank writes in a save: its shards, and where their elements are. */
#pragma once

#include "trainer/checkpoint/distribute/coverage.h"
#include "trainer/checkpoint/distribute/save_plan.h"

#include <stdatomic.h>

struct rank_writer {
    struct rank_state *rank_state;
    struct tensor_list tensors;
    struct save_plan plan;
    struct shard *shards;
    const char **sources; // device address of the first element of each shard, used for arithmetic only
    const void **in_host; // or its host memory; else NULL
    uint8_t *has;         // [tensors] whether a shard of the tensor is written
    int count;
    float *host; // holds the largest band
    /* What is staged: from row `staged_row` of shard `staged_from` to the end of the file. */
    char *staging; // not owned
    size_t staged_bytes;
    struct stream *copies; // to `staging`, not awaited; NULL: awaited copies on the compute stream
    int staged_from;       // count: nothing is staged
    int64_t staged_row;
    bool is_host_memory; // the sources can be read by any thread of this process, without the device
    struct checkpoint_writer *file; // between begin and finish
    atomic_int parts;               // that have been written, for a thread that waits for the writer
    struct note note;
};

void rank_writer_create(struct rank_state *state, struct rank_writer *out);
void rank_writer_free(struct rank_writer *writer); // accepts {0}
/* The size of all shards. */
size_t rank_writer_bytes(const struct rank_writer *writer);

/* Stages the end of the file, as many rows as fit into `bytes` of host memory, which the caller owns. copies:
 * a stream of the rank. */
void rank_writer_stage(struct rank_writer *writer, void *memory, size_t bytes, struct stream *copies);

/* Creates the file of this rank in `folder`, writes what is not staged, and copies what is: when the stream
 * of copies has come so far, finishing the file uses neither the device nor the state of the rank, which may
 * change. On a device whose memory is that of the host it uses no stream, and may be called on another
 * thread. A rank without shards has no file. */
MUST_USE enum status rank_writer_begin(struct rank_writer *writer, const struct save_identity *identity,
                                       const char *folder);
/* Writes the rest of the file, and completes the note; on any thread. */
MUST_USE enum status rank_writer_finish(struct rank_writer *writer);
/* Both. */
MUST_USE enum status rank_writer_write(struct rank_writer *writer, const struct save_identity *identity,
                                       const char *folder);
