// SPDX-License-Identifier: Apache-2.0
/* The loss of a trained model on a dataset, or its answers to multiple-choice items: `cuboid evaluate`.
 * Forward passes only, on the recipe's layout: ranks have weights and activations, but no gradients and
 * moments. */
#pragma once

#include "trainer/evaluate/choice_task.h"
#include "trainer/evaluate/token_windows.h"

struct evaluate_options {
    const struct recipe *recipe;
    int size;               // ranks, as for world_run()
    const char *checkpoint; // a path as for checkpoint_resolve()
    const char *data;       // as in token_windows_config
    enum data_split split;
    bool by_document;
    const char *task;     // a file of multiple-choice items, instead of a dataset; NULL: none
    struct text *samples; // of a task: a line of JSON for each item is added; may be NULL
    /* Called by rank 0 after each global batch, with the windows so far; may be NULL. */
    void (*progress)(void *context, int64_t done, int64_t count);
    void *context;
};

struct evaluate_result {
    int64_t step; // of the checkpoint
    int64_t documents, windows;
    double tokens;    // predicted, and not masked
    double text_size; // bytes of their text; 0: there is no tokenizer
    double loss;      // mean over tokens, in nats
    double seconds;
    int64_t items; // of a task
    struct choice_accuracy accuracy[CHOICE_METRICS];
};

/* NAN without a text. */
double evaluate_bits_per_byte(const struct evaluate_result *result);

/* Under a launcher the process of rank 0 gets the result, the others get zeros. */
MUST_USE enum status evaluate(const struct evaluate_options *options, struct evaluate_result *out);
