// SPDX-License-Identifier: Apache-2.0
/* All microbatches of a step on the device. Every rank reads the ids of its own data coordinate: they are
 * small, and so no stage waits for another one's tokens. The host side is written once per step and must
 * stay until the stream was synchronised: one step ends before the next is loaded. */
#pragma once

#include "layers/pass.h"
#include "trainer/data/data.h"

struct batches {
    int count;                // microbatches it can hold
    int64_t rows, seq_length; // B, S of each
    struct buffer device;
    char *host;         // the same bytes
    size_t batch_bytes; // of one microbatch
    struct batch_tokens scratch;
    struct batch *list; // views into `device`, one per microbatch
};

MUST_USE enum status batches_create(struct device *device, int count, int64_t rows, int64_t seq_length,
                                    struct batches *out);
void batches_destroy(struct batches *batches);

/* Fills microbatches 0 .. count-1 of step `place->step` (place->microbatch is ignored) and sends them to the
 * device. with_documents false: one document per row, and attention need not look. */
MUST_USE enum status batches_load(struct batches *batches, struct stream *stream, struct data *data,
                                  enum data_split split, const struct batch_place *place,
                                  bool with_documents);

/* The tokens of microbatch j that count, sample by sample: f64[rows], to the bit what the head finds. */
void batches_count_tokens(const struct batches *batches, int j, double *out);
