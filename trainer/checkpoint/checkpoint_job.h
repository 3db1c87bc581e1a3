// SPDX-License-Identifier: Apache-2.0
/* The file that one rank writes in a save: its shards, and where their elements are. */
#pragma once

#include "trainer/checkpoint/distribute/checkpoint_note.h"
#include "trainer/checkpoint/distribute/checkpoint_share.h"

struct save_job {
    struct rank_state *rank_state;
    struct tensor_list tensors;
    struct share share;
    struct shard *shards;
    struct slice *slices;
    const char **sources; // device address of the first element of each shard, used for arithmetic only
    const void **in_host; // or its host memory; else NULL
    uint8_t *has;         // [tensors] whether a shard of the tensor is written
    int count;
    float *host;    // holds the largest band
    char *snapshot; // copies of all shards; NULL: none
    size_t snapshot_bytes;
    bool is_host_memory; // the sources can be read by any thread of this process, without the device
    struct note note;
};

MUST_USE enum status save_job_create(struct rank_state *state, struct save_job *out);
void save_job_free(struct save_job *job); // accepts {0}
/* The size of all shards. */
size_t save_job_bytes(const struct save_job *job);

/* Allocates host memory for copies of all shards, of exactly their size, and copies those that are in host
 * memory already. */
MUST_USE enum status save_job_allocate_snapshot(struct save_job *job);
/* Copies the others. From then on, writing the file uses neither the device nor the state of the rank,
 * which may change. On a device whose memory is that of the host it may be called on another thread. */
MUST_USE enum status save_job_snapshot(struct save_job *job);

/* Writes the file of this rank in `folder`, and completes the note; a rank without shards writes none.
 * After save_job_snapshot() it may be called on another thread. */
MUST_USE enum status save_job_write(struct save_job *job, const struct save_identity *identity,
                                    const char *folder);
