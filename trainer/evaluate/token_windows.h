// SPDX-License-Identifier: Apache-2.0
/* A dataset as windows in which every token is predicted once.
 *
 *     seq_length 4     a b c d e f g h i j
 *                      a b c d               inputs of window 0; predicts b c d e
 *                              e f g h       of window 1; predicts f g h i
 *                                f g h i     of window 2, the last: moved back until it is full; predicts j
 *
 * This is the rolling window of lm-evaluation-harness with one token of context: a token is predicted from at
 * most seq_length tokens before it. Two ways to divide a dataset:
 *
 *     stream        all documents of a source one after another, as in training; the first token of the
 *                   source is not predicted
 *     by document   each document alone, after a token that begins it: the last one that the tokenizer adds
 *                   before a text, or else the end-of-document token. The end-of-document token at its end is
 *                   not predicted. This is loglikelihood_rolling() of the harness.
 *
 * With data.pack_documents each document is a sequence of its own, whose first token is not predicted, as in
 * training. With data.loss_mask only the tokens count that the mask of the dataset selects. */
#pragma once

#include "trainer/evaluate/score.h"
#include "trainer/tokenizer/tokenizer.h"

struct token_windows_config {
    const struct recipe *recipe;
    const struct tokenizer *tokenizer; // for the sizes of texts; NULL: unknown
    const char *data;                  // prefix of a dataset, all documents; NULL: the recipe's
    enum data_split split;             // of the recipe's data
    bool by_document;
};

struct token_windows;
/* BAD_RECIPE or BAD_DATA if the split has nothing to predict. The tokenizer must outlive the windows. */
MUST_USE enum status token_windows_open(const struct token_windows_config *config,
                                        struct token_windows **out);
void token_windows_close(struct token_windows *windows); // accepts NULL

struct window_source token_windows_source(const struct token_windows *windows);
int64_t token_windows_documents(const struct token_windows *windows);
