// SPDX-License-Identifier: Apache-2.0
/* Multiple-choice items from a file of JSON lines, as windows to score.
 *
 *     HellaSwag   {"activity_label": "Cooking", "ctx_a": "A man stirs.", "ctx_b": "he", "label": 1,
 *                  "endings": ["eats.", "sleeps."]}
 *     ARC         {"question": "What melts?", "answerKey": "A",
 *                  "choices": {"text": ["ice", "stone"], "label": ["A", "B"]}}
 *     AI2's form  {"question": {"stem": "What melts?", "choices": [{"text": "ice", "label": "A"}, ...]},
 *                  "answerKey": "A"}
 *
 * Texts and tokens are those of lm-evaluation-harness without examples: context and " " + choice are
 * encoded as one text; spaces at the end of the context belong to the choice; the tokens after those of
 * the context alone are predicted. An empty context is the end-of-document token. */
#pragma once

#include "trainer/evaluate/score.h"
#include "trainer/tokenizer/tokenizer.h"

struct choice {
    int64_t first, count, targets; // its window, in choice_task.ids
    double characters, bytes;      // of its text, by which lm-evaluation-harness divides
};

struct choice_item {
    int64_t line;       // of the file, from 1
    int64_t first;      // its first choice
    int count, correct; // choices; the index of the answer
};

struct choice_task {
    const char *path;
    struct choice_item *items;
    struct choice *choices;
    int64_t item_count, choice_count;
    struct tokens ids;
};

/* BAD_DATA names the file, the line, the value, and what is valid: a line that is not JSON, lacks a key or
 * its answer, or is longer than the context of the model. */
MUST_USE enum status choice_task_read(const char *path, const struct recipe *recipe,
                                      const struct tokenizer *tokenizer, struct choice_task *out);
void choice_task_free(struct choice_task *task); // accepts {0}

struct window_source choice_task_source(const struct choice_task *task);

/* Accuracies and their standard errors. An item is right if its answer has the largest log-likelihood, the
 * first one of equals: as it is, per character (acc_norm) or per byte of the choice. */
enum choice_metric { CHOICE_ACC, CHOICE_ACC_NORM, CHOICE_ACC_BYTES, CHOICE_METRICS };
const char *choice_metric_name(enum choice_metric metric); // "acc_norm"
struct choice_accuracy {
    double mean, standard_error; // NAN for a single item
};
/* log_likelihood[choice_count] */
void choice_task_accuracy(const struct choice_task *task, const double *log_likelihood,
                          struct choice_accuracy out[CHOICE_METRICS]);
/* The chosen index of an item. */
int choice_task_chosen(const struct choice_task *task, const double *log_likelihood,
                       const struct choice_item *item, enum choice_metric metric);
