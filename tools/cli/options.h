// SPDX-License-Identifier: Apache-2.0
/* A command's options as a table, used for parsing and for error messages.
 *
 *     const struct option options[] = {
 *         {"--tokens", OPTION_INTEGER, &tokens, 1, 1e6},
 *         {"--json", OPTION_FLAG, &json},
 *     };
 *
 * A second row with the same variable is another name of the option ("-o").
 *
 * "--tokens 5" and "--tokens=5" are the same. Each option may be given once, except OPTION_TEXTS. Arguments
 * without a leading dash are left for the command. An option's value may begin with a dash: "-1", or text. */
#pragma once

#include "base/text.h"

enum option_type {
    OPTION_FLAG,    // bool, set to true
    OPTION_CLEAR,   // bool, set to false
    OPTION_INTEGER, // int64_t
    OPTION_COUNT,   // the same, with an optional value: `low` if no integer follows
    OPTION_REAL,    // double
    OPTION_TEXT,    // const char *: points into argv
    OPTION_TEXTS,   // struct option_texts: one for each time that it is given
    OPTION_REST,    // "-": left for the command, like arguments without a dash
    OPTION_END      // "--": all following arguments are left for the command
};

enum { OPTION_MAX_TEXTS = 16 };
struct option_texts {
    const char *list[OPTION_MAX_TEXTS];
    int count;
};

struct option {
    const char *name; // including the dashes
    enum option_type type;
    void *value;      // unchanged if not given
    double low, high; // of numbers, inclusive
};

/* argv[0] is the command's name. rest: positional arguments, space for argc. BAD_USAGE with one line that
 * names the option and valid values. */
MUST_USE enum status options_parse(int argc, char **argv, const struct option *options, int count,
                                   const char **rest, int *rest_count);
