// SPDX-License-Identifier: Apache-2.0
/* Losses of windows of tokens, on any layout, through the forward passes of training.
 *
 *     window   ids  7 1 4 4 2          inputs 7 1 4 4, labels 1 4 4 2
 *              targets 2               loss of the last two labels: -log p(4 | 7 1 4) - log p(2 | 7 1 4 4)
 *
 * Windows are numbered like the samples of a global batch: window b of a microbatch j on data rank r is the
 * (j * dp + r) * B + b-th of a batch. Each is a row of seq_length tokens, padded at the end: attention is
 * causal, so padding does not change what precedes it. Each window has its own slot in a report with one
 * contributor, so the reduction over the world is exact, and a sum in the order of the windows does not
 * depend on data and pipeline ranks. */
#pragma once

#include "trainer/engine/rank.h"

struct window {
    int32_t *ids;      // room for S + 1
    uint8_t *counts;   // likewise: 1 if the token counts in the loss when it is predicted, else 0
    int64_t count;     // 2 to S + 1
    int64_t targets;   // 1 to count - 1: the last ids, which are predicted
    int64_t text_size; // bytes of their text; 0: unknown
};

/* Where windows come from. */
struct window_source {
    int64_t count;
    const void *self;
    /* Fills a window; called with any index, by several threads. */
    enum status (*read)(const void *self, int64_t index, struct window *out);
    struct document_marks marks; // {-1}: windows have no documents
};

struct window_score {
    double loss, tokens, text_size; // sum over its targets, in nats; targets that count; see struct window
};

struct scorer {
    struct rank_state *state;
    struct batches batches;
    struct buffer report;
    int64_t capacity; // windows of a call
    double *host;     // host copy of the report
    int32_t *ids;     // of one window
    uint8_t *counts;
    struct window_score *scores; // [capacity] results of the last call
};

/* The rank state needs no training state. */
MUST_USE enum status scorer_create(struct rank_state *state, struct scorer *out);
void scorer_destroy(struct scorer *scorer);

/* Collective over the world: scores windows [begin, begin + count) of the source, at most scorer->capacity of
 * them. Every rank gets all scores, in scorer->scores, or the same failure. NOT_FINITE if a loss is not
 * finite. */
MUST_USE enum status scorer_run(struct scorer *scorer, const struct window_source *source, int64_t begin,
                                int64_t count);
