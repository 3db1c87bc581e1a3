// SPDX-License-Identifier: Apache-2.0
/* What the model sees, as a pure function of (seed, sample): one counter numbers the samples of a whole
 * run, and nothing here knows of ranks, pipelines or steps already taken. Resuming is asking for a later
 * number; another layout asks for the same numbers in other places.
 *
 *     sample 1234567
 *       -> blend        source 2, its 411522nd sample             a table that repeats; see data_blend.h
 *       -> epoch        epoch 3, place 8871 of that epoch         division by the samples of an epoch
 *       -> shuffle      sample k = 60214                          a permutation keyed by seed, source, epoch
 *       -> tokens       k*S .. k*S + S of that epoch's documents  shuffled likewise, laid end to end
 *
 * As in Megatron's GPTDataset, a sample is S + 1 tokens, may span documents, and the next one begins at
 * its last token: that token is the last label here and the first input there. So each token of an
 * epoch is an input exactly once, except the last ones, at most S, which do not fill a sample; other
 * tokens are left over in the next epoch, because the documents lie in another order then.
 *
 * The trap: anything that depends on dp, tp, pp or the size of a microbatch must stay out of here,
 * with one exception that is pure arithmetic, batch_first_sample(). */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

struct dataset;

enum data_split { DATA_TRAIN, DATA_VALID, DATA_TEST, DATA_SPLITS };

/* A dataset (PREFIX of PREFIX.bin and .idx), and its share of the samples relative to the others. */
struct data_source_config {
    const char *path;
    double weight;
};

/* Named as the recipe's keys. Nothing of it is kept but values; strings may go after data_open(). */
struct data_config {
    const struct data_source_config *train;
    int train_count;
    const struct data_source_config *valid; // a list of its own: then every document of `train` trains
    int valid_count;                        // 0: a part of train's documents, as `split` says
    const char *split;                      // "949,50,1"; NULL for the default; NULL when `valid` is given
    uint64_t seed;
    int64_t seq_length;      // S
    int64_t vocab_size;      // the model's, before padding; ids beyond it are refused when they are read
    int32_t end_of_document; // the tokenizer's id; -1 when there is none
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
};

#define DATA_SPLIT_DEFAULT "969,30,1" // Megatron's

/* "949,50,1": what is trained on, validated on, and left for a test; the last ones may be missing. Gives
 * shares that add up to 1. BAD_RECIPE when a part is not a number or negative, or all are zero. */
MUST_USE enum status data_split_parse(const char *split, double share[DATA_SPLITS]);

/* Opens every source, and checks that each has a sample to train on. BAD_RECIPE, BAD_DATA or IO_ERROR.
 * The object may be shared by the threads of a process. */
struct data;
MUST_USE enum status data_open(const struct data_config *config, struct data **out);
void data_close(struct data *data); // takes NULL

/* OK when every source of the split has at least one sample, so that data_sample() can give any; else
 * BAD_RECIPE says how many tokens there are, how many a sample takes, and what would work. A run that
 * evaluates asks this for DATA_VALID before it starts. */
MUST_USE enum status data_require(const struct data *data, enum data_split split);

/* Samples in one epoch of all sources of a split together; 0 when there is none. */
int64_t data_epoch_samples(const struct data *data, enum data_split split);

/* Source `i` of data.train or data.valid; NULL beyond the last. */
const struct dataset *data_source(const struct data *data, enum data_split list, int i);
/* Where data_fingerprint.h keeps its text; empty at first, and freed with the data. */
struct text *data_fingerprint_room(struct data *data);

/* One line for each source of a split that has documents: how many, tokens, samples of an epoch, share. */
void data_describe(const struct data *data, struct text *out);

/* tokens[S + 1] of a sample; any number is good, epochs follow one another. Validation samples do not depend
 * on the seed: sample i is the same text in every run over the same data. BAD_DATA when an id is outside
 * the vocabulary, naming file, document, position and id. Takes O(log documents), and O(documents) when an
 * epoch of a source begins. */
MUST_USE enum status data_sample(struct data *data, enum data_split split, uint64_t sample, int32_t *tokens);

/* One microbatch, [B, S] each. Owns its arrays. */
struct batch_tokens {
    int64_t rows, seq_length; // B, S
    int32_t *tokens;          // inputs
    int32_t *labels;          // labels[b, s] is the token after tokens[b, s]
    int32_t *positions;       // s; with reset_position_ids, counted from the last end of a document
    int32_t *documents;       // 0; with reset_attention_mask, how many documents ended before s in this row
    float *loss_mask;         // 1; with eod_mask_loss, 0 where the *input* is the end of a document
    uint64_t *samples;        // [B] the global number of each row's sample
};

MUST_USE enum status batch_create(int64_t rows, int64_t seq_length, struct batch_tokens *out);
void batch_free(struct batch_tokens *batch); // takes {0}

/* Where a microbatch stands in a run. Steps and microbatches count from 0 here. */
struct batch_place {
    uint64_t step;             // n
    int64_t global_batch_size; // G
    int64_t micro_batch_size;  // B
    int dp_size, dp_rank;      // dp, r
    int64_t microbatch;        // j, in [0, G / (dp * B))
};

/* Step n trains on samples [n*G, (n + 1)*G); row b of a microbatch holds sample n*G + (j*dp + r)*B + b, which
 * is Megatron's order. Which rank gets which does not matter to the mathematics. */
uint64_t batch_first_sample(const struct batch_place *place);

/* Fills `batch`, whose rows and seq_length are those of `place` and of the data. */
MUST_USE enum status data_batch(struct data *data, enum data_split split, const struct batch_place *place,
                                struct batch_tokens *batch);
