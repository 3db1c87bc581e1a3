// SPDX-License-Identifier: Apache-2.0
/* Training samples as a pure function of (seed, sample): one counter numbers the samples of a whole run.
 * Nothing here depends on ranks, pipelines or previous steps. A resumed run asks for later numbers; another
 * layout asks for the same numbers on other ranks.
 *
 *     sample 1234567
 *       -> blend        source 2, its 411522nd sample             a table that repeats; see data_blend.h, and
 *                                                                 data_order.h if the blend changed
 *       -> epoch        epoch 3, sample 8871 of that epoch        division by the samples of an epoch
 *       -> shuffle      sample k = 60214                          a permutation keyed by seed, source, epoch
 *       -> tokens       k*S .. k*S + S of that epoch's documents  shuffled likewise, concatenated
 *
 * As in Megatron's GPTDataset, a sample is S + 1 tokens, may span documents, and the next one begins at its
 * last token: that token is the last label here and the first input there. So each token of an epoch is an
 * input exactly once, except the last ones, at most S, which do not fill a sample; they differ from epoch
 * to epoch, because the documents are in another order.
 *
 * With pack_documents a sample is whole documents of at most S tokens together, then padding (data_part.h);
 * documents begin where those of the dataset do, whatever tokens they end with.
 *
 * Mock data has no sources: token i of a sample is a random id below vocab_size, a function of seed, sample
 * and i.
 *
 * Caution: anything that depends on dp, tp, pp or the microbatch size must stay out of this file, except
 * batch_first_sample(), which is pure arithmetic. */
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

struct dataset;

enum data_split { DATA_TRAIN, DATA_VALID, DATA_TEST, DATA_SPLITS };

/* A dataset (the prefix of PREFIX.bin and PREFIX.idx) and its weight relative to the others. */
struct data_source_config {
    const char *path;
    double weight;
};

/* Named like the recipe's keys. data_open() copies values only; strings may be freed afterwards. */
struct data_config {
    bool mock; // random tokens instead of sources; train_count and valid_count are 0, split is NULL
    const struct data_source_config *train;
    int train_count;
    const struct data_source_config *valid; // separate validation list: all documents of `train` are then for
                                            // training
    int valid_count;                        // 0: validate on a part of the documents of `train`, according to
                                            // `split`
    const char *split;                      // "949,50,1"; NULL: the default; must be NULL with `valid`
    uint64_t seed;
    int64_t seq_length;      // S
    int64_t vocab_size;      // of the model, before padding; reading a larger id is an error
    int32_t end_of_document; // id in the tokenizer; -1: none
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    bool loss_mask;          // of every source: PREFIX.mask says which tokens count (dataset_mask.h)
    bool pack_documents;     // false: samples cut a stream of documents
    bool truncate_documents; // with pack_documents: a document longer than S is cut; false: it is an error
};

#define DATA_SPLIT_DEFAULT "969,30,1" // Megatron's default

/* Parses "949,50,1": the weights of training, validation and test; trailing ones may be omitted. Returns
 * shares with sum 1. BAD_RECIPE if a weight is not a number or negative, or if all are zero. */
MUST_USE enum status data_split_parse(const char *split, double share[DATA_SPLITS]);

/* The documents [*first, *end) of a source of `documents` that belong to a split; boundaries are rounded half
 * to even, as in Megatron. */
void data_split_range(const double share[DATA_SPLITS], enum data_split split, int64_t documents,
                      int64_t *first, int64_t *end);

/* Opens every source and checks its training samples with data_require(). Returns BAD_RECIPE, BAD_DATA or
 * IO_ERROR. The threads of a process may share the object. */
struct data;
MUST_USE enum status data_open(const struct data_config *config, struct data **out);
void data_close(struct data *data); // accepts NULL

/* Returns OK if every source of the split has at least one sample, so that data_sample() is defined for any
 * number, and packs have a token that counts in the loss; otherwise BAD_RECIPE with the number of tokens, the
 * tokens of a sample, and valid values. A run with evaluation calls this for DATA_VALID before it starts. */
MUST_USE enum status data_require(const struct data *data, enum data_split split);

/* Samples in one epoch of all sources of a split; 0 if there are none, and of mock data. */
int64_t data_epoch_samples(const struct data *data, enum data_split split);

/* Source `i` of data.train or data.valid; NULL after the last. */
const struct dataset *data_source(const struct data *data, enum data_split list, int i);
/* The chat template that wrote all sources of the training data; "": unknown, or not the same. */
const char *data_chat_template(const struct data *data);
/* Storage of data_fingerprint.h for its text; empty at first, and freed with the data. */
struct text *data_fingerprint_cache(struct data *data);

/* What a run reads by its end. */
struct data_use {
    int64_t samples, steps; // since its beginning
    int64_t batch;          // samples of a step
    int64_t eval_samples;   // of one evaluation; 0: there is none
};
enum { DATA_EPOCHS_MAX = 4 };

/* Appends lines: for training and validation the documents, tokens and samples, also of each source of a
 * blend, and the epochs that training makes; the loss mask, packing and truncation. `warning`: set if a
 * source is read more than DATA_EPOCHS_MAX times. */
void data_describe(const struct data *data, const struct data_use *use, struct text *out,
                   struct text *warning);

/* Marks of a token of a sample. */
enum data_mark {
    MARK_COUNTS = 1, // counts in the loss where it is the label
    MARK_BEGINS = 2, // the first one of a packed document, or of the padding
};

/* Reads tokens[S + 1] and marks[S + 1] (enum data_mark) of a sample; any number is valid, since epochs
 * repeat. Validation samples do not depend on the seed: sample i is the same text in every run over the same
 * data. BAD_DATA if an id is outside the vocabulary, with file, document, position and id. O(log documents),
 * and O(documents) at the beginning of an epoch of a source. */
MUST_USE enum status data_sample(struct data *data, enum data_split split, uint64_t sample, int32_t *tokens,
                                 uint8_t *marks);

/* One microbatch, arrays [B, S]. Owns its arrays. */
struct batch_tokens {
    int64_t rows, seq_length; // B, S
    int32_t *tokens;          // inputs
    int32_t *labels;          // labels[b, s] is the token after tokens[b, s]
    int32_t *positions;       // s; with reset_position_ids, relative to the begin of its document
    int32_t *documents;       // 0; with reset_attention_mask, number of documents ended before s in this row
    float *loss_mask;  // 1 if the *label* counts, else 0; with eod_mask_loss also 0 if the *input* is the
                       // end of a document
    uint8_t *marks;    // [S + 1] scratch: marks of one row
    uint64_t *samples; // [B] global sample number of each row
};

struct batch_tokens batch_create(int64_t rows, int64_t seq_length);
void batch_free(struct batch_tokens *batch); // accepts {0}

/* What an end of a document changes in a row; see data_config. */
struct document_marks {
    int32_t end_of_document; // id in the tokenizer; -1: none
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    bool pack_documents; // documents begin at MARK_BEGINS, not after an end-of-document token
};
/* Sets positions, documents and loss mask of a row from its tokens and from batch->marks, like Megatron's
 * get_ltor_masks_and_position_ids: the end-of-document token belongs to its document, at its position; the
 * next token begins another document. The loss is masked if the end-of-document token is the *input*, since
 * its label is the first token of another document. */
void batch_mark_row(const struct document_marks *rules, struct batch_tokens *batch, int64_t row);

/* The coordinates of a microbatch in a run. Steps and microbatches count from 0. */
struct batch_coord {
    uint64_t step;             // n
    int64_t global_batch_size; // G
    int64_t micro_batch_size;  // B
    int dp_size, dp_rank;      // dp, r
    int64_t microbatch;        // j, in [0, G / (dp * B))
    int64_t offset;            // added to all sample numbers; n*G + offset is not negative
};

/* Step n trains on the G samples from n*G + offset; row b of a microbatch is the (j*dp + r)*B + b-th of
 * them, as in Megatron. The assignment to ranks does not change the mathematics. The offset is 0 unless G
 * changed during the run: the samples before step n are always those that were consumed. */
uint64_t batch_first_sample(const struct batch_coord *coord);

/* Fills `batch`; its rows and seq_length must match `coord` and the data. */
MUST_USE enum status data_batch(struct data *data, enum data_split split, const struct batch_coord *coord,
                                struct batch_tokens *batch);
