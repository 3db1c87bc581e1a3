// SPDX-License-Identifier: Apache-2.0
/* Files that a command writes because of an option. All errors in their names are reported before any work.
 * Caution: two names may denote one file, which would be overwritten. */
#pragma once

#include "base/text.h"

struct output {
    const char *command; // "schedule"
    const char *option;  // "--svg"
    const char *path;    // NULL: not requested; "-": standard output
};

/* A file that a command reads. */
struct input {
    const char *what; // "schedule"
    const char *path; // NULL: none
};

/* BAD_USAGE if a file cannot be written, is standard output although `printing` (the option that uses it;
 * or NULL) does too, or is the same file as another one or as an input. */
MUST_USE enum status outputs_check(const struct output *outputs, int count, const struct input *inputs,
                                   int input_count, const char *printing);
/* BAD_USAGE if the file exists. */
MUST_USE enum status output_refuse_existing(const struct output *output);
/* Returns true if one of them is standard output. */
bool outputs_print(const struct output *outputs, int count);
/* `report`: reports the written files on standard output. */
MUST_USE enum status output_write(const struct output *output, const struct text *content, bool report);
