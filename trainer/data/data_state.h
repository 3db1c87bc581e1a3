// SPDX-License-Identifier: Apache-2.0
/* The members of struct data, for the files of this folder that open, describe and resume it. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/data_blend.h"
#include "trainer/data/data_part.h"

/* The sources of one split. `part[i].dataset` is a source of data->train, or of data->valid. */
struct data_mix {
    int count;
    struct data_part *parts;
    struct blend *blend;
    // Of the current segment (data_order.h): its first sample, and samples of each source before it.
    int64_t from, *offsets;
};

struct data_list {
    int count;
    struct dataset **datasets;
    double *weights;
};

struct data {
    int64_t seq_length, vocab_size;
    struct document_marks marks;
    bool mock;
    struct philox random[DATA_SPLITS]; // tokens of mock data
    char split[64];                    // as configured, for messages; "" with a validation list
    struct data_list train, valid;
    struct data_mix mixes[DATA_SPLITS];
    uint64_t seed;
    bool truncate_documents;
    struct text fingerprint;
    pthread_mutex_t lock; // of `order`, which each rank of a process sets
    struct text order;    // data_order.h; empty: not computed
};
