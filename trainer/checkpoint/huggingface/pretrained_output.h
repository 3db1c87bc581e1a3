// SPDX-License-Identifier: Apache-2.0
/* A folder that appears under its name only when it is complete. From begin to free, SIGINT and SIGTERM are
 * held (trainer/files/stop_signals.h): check them while large files are written. */
#pragma once

#include "base/text.h"
#include "trainer/files/stop_signals.h"

struct pretrained_output {
    const char *path;    // not owned
    struct text partial; // "PATH.partial", where files are written
    bool holds_signals;
    struct stop_signals held;
};

/* BAD_USAGE for a path that is empty, ends with a slash or exists. */
MUST_USE enum status pretrained_output_check(const char *path);
/* Checks PATH, and creates PATH.partial and its parents. BAD_USAGE if it exists, too. */
MUST_USE enum status pretrained_output_begin(const char *path, struct pretrained_output *out);
/* Makes the files durable, and renames the folder. INTERRUPTED after a signal. */
MUST_USE enum status pretrained_output_finish(struct pretrained_output *output);
/* Removes what is not finished, and releases the signals. Accepts {0}. */
void pretrained_output_free(struct pretrained_output *output);

/* Writes a small file into the folder. */
MUST_USE enum status pretrained_output_write(const struct pretrained_output *output, const char *name,
                                             const struct text *text);
/* Copies the two files of GPT2BPE, if they exist: *found, and names their class for AutoTokenizer. */
MUST_USE enum status pretrained_output_copy_gpt2(const struct pretrained_output *output,
                                                 const char *vocab_file, const char *merge_file, bool *found);
/* Copies a tokenizer's file as `name` (tokenizer.json or tokenizer.model), if it exists: *found. If that is
 * its name, also copies the files next to it that transformers reads, which may exist without it. */
MUST_USE enum status pretrained_output_copy_tokenizer(const struct pretrained_output *output,
                                                      const char *path, const char *name, bool *found);
