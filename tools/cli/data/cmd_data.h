// SPDX-License-Identifier: Apache-2.0
/* Shared by the subcommands of `cuboid data`: the parsed, unvalidated command line. */
#pragma once

#include "base/status.h"
#include "trainer/tokenizer/tokenizer.h"

/* The command line; NULL: option not given. */
struct data_options {
    const char *output, *tokenizer, *vocab_file, *merge_file, *tokenizer_model;
    const char *documents, *split_lines, *json_key, *format, *threads;
    const char *chat_template, *seq_length; // of conversations
    bool append_eod, skip_invalid, overwrite;
    const char **inputs; // positional arguments, in order; space for argc
    int input_count;
};

/* Creates the tokenizer of the options; "byte" by default. */
MUST_USE enum status data_options_tokenizer(const struct data_options *options, struct tokenizer **out);

/* Tokenizes text into PREFIX.bin and PREFIX.idx. BAD_USAGE or BAD_RECIPE for invalid arguments, other
 * errors for runtime failures. */
MUST_USE enum status data_prepare(const struct data_options *options);

/* Prints a description of a dataset on standard output. */
MUST_USE enum status data_inspect(const struct data_options *options);
