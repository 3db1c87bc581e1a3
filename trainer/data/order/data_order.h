// SPDX-License-Identifier: Apache-2.0
/* The order of the training samples of a run, as its checkpoints record it: which source gives each sample,
 * and how many samples the source has given before.
 *
 *   {"sources": [{"path": "data/books", "content": "<16 digits>"}, {"path": "data/web", ...}],
 *    "segments": [
 *     {"from_sample": 0, "seq_length": 1024, "seed": "1234", "pack_documents": false,
 *      "truncate_documents": false, "blend": [
 *       {"source": 0, "weight": 0.5, "offset": 0, "samples": 911, "documents": [0, 1200]},
 *       {"source": 1, "weight": 0.5, "offset": 0, "samples": 40210, "documents": [0, 98000]}]},
 *     {"from_sample": 6400, ..., "blend": [
 *       {"source": 1, "weight": 0.9, "offset": 3200, ...},
 *       {"source": 0, "weight": 0.1, "offset": 3200, ...}]}]}
 *
 * Segments are in the order of their first sample; the last one has no end. In a segment that begins at
 * sample b, sample i is the (i - b)-th of a blend with these weights (data_blend.h). If that is the n-th one
 * of a source in the blend, it is sample offset + n of the source, counted over all epochs. A change of the
 * blend begins a segment in which each source continues after what it gave. A run without a change has one
 * segment with offsets of 0.
 *
 * `sources` lists all that the run has ever read. The position of a source in it, its number, never changes:
 * it is the key of the source's shuffles. So a source continues with the same shuffles if the list in the
 * recipe is reordered, and if it is removed and added again.
 *
 * The other values say where samples begin: seq_length, seed, packing, the range of documents in the dataset,
 * and with these the samples of an epoch. An `offset` counts samples that begin there. */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

#define DATA_ORDER_MOST (INT64_MAX / 4) // of the counts below

struct data_order_part {
    int source; // its number
    double weight;
    int64_t offset;           // samples that it has given before the segment
    int64_t samples;          // of an epoch; 0: unknown
    int64_t first, documents; // documents [first, first + documents) of the dataset; documents 0: unknown
};

struct data_segment {
    int64_t from; // the first sample
    int64_t seq_length;
    uint64_t seed;
    bool pack_documents, truncate_documents;
    int count;                     // 0: mock data
    struct data_order_part *parts; // in the order of data.train
};

struct data_order_source {
    char *path;
    uint64_t content; // checksum; 0: unknown
};

struct data_order {
    struct data_order_source *sources;
    struct data_segment *segments;
    int source_count, segment_count;
};

/* Parses the text of data_order_text(); BAD_DATA if it is not valid. */
MUST_USE enum status data_order_parse(const char *chars, size_t length, struct data_order *out);
void data_order_text(const struct data_order *order, struct text *out);
void data_order_free(struct data_order *order); // accepts {0}

/* Adds a source and returns its number. Ends the program if out of memory, like text_add(). */
int data_order_add_source(struct data_order *order, const char *path, uint64_t content);
/* Adds a segment at the end with `count` parts of zeros. */
struct data_segment *data_order_add_segment(struct data_order *order, int count);

/* The last segment that reads a source, and the source's part in it; NULL if there is none. */
const struct data_segment *data_order_last(const struct data_order *order, int source,
                                           const struct data_order_part **part);

/* Samples that each source has given before sample `end` of the run, given[source_count], in the units of the
 * last segment that reads it. */
void data_order_given(const struct data_order *order, int64_t end, int64_t *given);

/* The share of each part, shares[count]. */
void data_segment_shares(const struct data_segment *segment, double *shares);
/* True if both read the same sources by the same weights, in this order. */
bool data_segment_same_blend(const struct data_segment *a, const struct data_segment *b);
