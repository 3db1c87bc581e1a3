// SPDX-License-Identifier: Apache-2.0
/* One source's documents of one split, in epochs of shuffled samples.
 *
 *     epoch 3:  documents in the order of a permutation     d7      d2   d9 ...
 *               where each begins, in tokens                0       812  900 ...
 *               sample k                                    k*S .. k*S + S
 *               given as the i-th                           k = another permutation of i
 *
 * Both permutations are computed, not stored. Of the places, that of the first document of each block of
 * PART_BLOCK is stored, for the last two epochs asked for (a global batch may lie across the end of one), and
 * made when an epoch is first asked for: a pass over the lengths of all documents, which is what the start of
 * a run on very many documents costs. */
#pragma once

#include "base/philox.h"
#include "trainer/data/dataset.h"

#include <pthread.h>

enum { PART_EPOCHS = 2, PART_BLOCK = 32 };

struct part_epoch {
    int64_t epoch;
    int64_t *starts; // [blocks + 1]; NULL: none made yet
};

struct part {
    const struct dataset *dataset; // outlives this
    int64_t first, documents;      // documents [first, first + documents)
    int64_t tokens;
    int64_t seq_length;
    int64_t samples; // of an epoch; 0 when there are too few tokens for one
    struct philox document_order, sample_order;
    pthread_mutex_t lock; // of what follows
    struct part_epoch epochs[PART_EPOCHS];
    int last; // the one used last
};

/* `name` and `seed` key the shuffles. */
void part_init(struct part *part, const struct dataset *dataset, int64_t first, int64_t documents,
               int64_t seq_length, uint64_t seed, const char *name);
void part_fini(struct part *part);

/* tokens[S + 1] of the i-th sample counted over all epochs. Only for a part with samples. */
MUST_USE enum status part_sample(struct part *part, uint64_t i, int64_t vocab_size, int32_t *tokens);
