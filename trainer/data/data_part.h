// SPDX-License-Identifier: Apache-2.0
/* The documents of one source in one split, as epochs of shuffled samples.
 *
 *     epoch 3:  documents in the order of a permutation     d7      d2   d9 ...
 *               first token of each                         0       812  900 ...
 *               sample k                                    k*S .. k*S + S
 *               returned as the i-th                        k = another permutation of i
 *
 * Both permutations are computed, not stored. The token offset of the first document of each block of
 * DATA_PART_BLOCK documents is stored, for the last two epochs used (a global batch may span two epochs), and
 * computed when an epoch is first used: a pass over the lengths of all documents, which dominates the start
 * of a run with very many documents.
 *
 * With packed documents a sample is a pack of whole documents (data_pack.h), then padding; only the order of
 * the packs is shuffled. */
#pragma once

#include "base/philox.h"
#include "trainer/data/data.h"
#include "trainer/data/data_pack.h"
#include "trainer/data/dataset.h"

#include <pthread.h>

enum { DATA_PART_EPOCHS = 2, DATA_PART_BLOCK = 32 };

struct data_part_epoch {
    int64_t epoch;
    int64_t *starts; // [blocks + 1]; NULL: not computed
};

struct data_part {
    const struct dataset *dataset; // must outlive this
    int64_t first, documents;      // documents [first, first + documents)
    int64_t tokens;
    int64_t seq_length;
    int64_t samples; // per epoch; 0 if there are too few tokens
    bool is_packed;
    struct data_pack pack;
    int64_t truncated, cut_tokens; // packed documents longer than S, and their tokens after the S-th
    int64_t longest;               // of them; -1: none
    // With a loss mask: packed tokens that it selects and that are a label; not packed: 0 if it selects none,
    // else 1.
    int64_t counted;
    struct philox document_order, sample_order;
    pthread_mutex_t lock; // protects the members below
    struct data_part_epoch epochs[DATA_PART_EPOCHS];
    int last; // index of the epoch used last
};

/* Initializes a part. `name` and `seed` are the keys of the shuffles. */
void data_part_init(struct data_part *part, const struct dataset *dataset, int64_t first, int64_t documents,
                    int64_t seq_length, uint64_t seed, const char *name);
void data_part_fini(struct data_part *part);

/* Changes the keys of the shuffles, before the first sample is read. */
void data_part_rename(struct data_part *part, uint64_t seed, const char *name);

/* Packs the documents of an initialized part. Only the first S tokens of a longer one are used: the caller
 * decides whether that is an error. BAD_RECIPE for too many documents; IO_ERROR of the mask. */
MUST_USE enum status data_part_pack(struct data_part *part);

/* Looks for a token that the loss mask selects, for `counted` of a part that is not packed. IO_ERROR. */
MUST_USE enum status data_part_find_counted(struct data_part *part);

/* Reads tokens[S + 1] and marks[S + 1] (enum data_mark) of the i-th sample, counted over all epochs. The part
 * must have samples. The last token of a packed sample, and its padding, are 0, which no position attends to
 * and no loss counts. */
MUST_USE enum status data_part_sample(struct data_part *part, uint64_t i, int64_t vocab_size, int32_t *tokens,
                                      uint8_t *marks);
