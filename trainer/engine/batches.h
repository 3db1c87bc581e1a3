// SPDX-License-Identifier: Apache-2.0
/* The microbatches of a step in device memory. Every rank reads the token ids of its own data coordinate:
 * they are small, and no stage has to wait for tokens from another. The host copy is written once per step
 * and must stay valid until the stream is synchronized: a step ends before the next one is loaded. */
#pragma once

#include "layers/pass.h"
#include "trainer/data/data.h"

struct batches {
    int count;                // capacity in microbatches
    int64_t rows, seq_length; // B and S of each microbatch
    struct buffer device;
    char *host;                  // host copy of `device`; not initialized if the device does not compute
    size_t batch_bytes;          // bytes per microbatch
    struct batch_tokens scratch; // empty if the device does not compute
    struct batch *list;          // views into `device`, one per microbatch
};

MUST_USE enum status batches_create(struct device *device, int count, int64_t rows, int64_t seq_length,
                                    struct batches *out);
void batches_destroy(struct batches *batches);

/* Loads microbatches 0 .. count-1 of step `coord->step` (coord->microbatch is ignored) and copies them to the
 * device. with_documents=false: one document per row, so attention needs no document mask. data NULL: only
 * enqueues the copy. */
MUST_USE enum status batches_load(struct batches *batches, struct stream *stream, struct data *data,
                                  enum data_split split, const struct batch_coord *coord,
                                  bool with_documents);

/* The two parts of batches_load(), for tokens that are not a split's: copies `scratch` into the host copy of
 * microbatch j, and the first `count` host copies to the device. */
void batches_pack(struct batches *batches, int j, bool with_documents);
MUST_USE enum status batches_send(const struct batches *batches, struct stream *stream, int count);

/* Counts the unmasked tokens of microbatch j per sample: f64[rows], bitwise equal to the counts of the
 * head; 0 if the device does not compute. */
void batches_count_tokens(const struct batches *batches, int j, double *out);
