// SPDX-License-Identifier: Apache-2.0
/* What the parts of `cuboid data` share: the command line, read but not yet believed. */
#pragma once

#include "base/status.h"
#include "trainer/tokenizer/tokenizer.h"

/* The command line as it was typed; NULL: not given. */
struct data_options {
    const char *output, *tokenizer, *vocab_file, *merge_file;
    const char *documents, *split_lines, *json_key, *format;
    bool append_eod, overwrite, help;
    const char **inputs; // what is not an option, in order; room for argc
    int input_count;
};

/* The tokenizer that the options name; "byte" when they name none. */
MUST_USE enum status data_options_tokenizer(const struct data_options *options, struct tokenizer **out);

/* Text to PREFIX.bin and PREFIX.idx. BAD_USAGE or BAD_RECIPE for what was asked, others for what happened. */
MUST_USE enum status data_prepare(const struct data_options *options);

/* A description of a dataset on standard output. */
MUST_USE enum status data_inspect(const struct data_options *options);
