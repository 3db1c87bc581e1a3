// SPDX-License-Identifier: Apache-2.0
/* Collects all problems of an input file, instead of stopping at the first one. */
#pragma once

#include "base/status.h"

#include <stdio.h>

enum { PROBLEMS_MAX = 1000 };

/* The problems of an input file: a growing list of lines, each naming file and line (or the command line),
 * key, value and the fix. Of errors and of warnings at most PROBLEMS_MAX each are listed; the others are
 * only counted. {0} is empty. */
struct problem {
    char *text;
    bool warning; // the file is still usable
};

struct problems {
    struct problem *list;
    size_t count; // of the list
    size_t errors, warnings;
};

void problems_add(struct problems *problems, const char *format, ...) PRINTF_LIKE(2, 3);
void problems_warn(struct problems *problems, const char *format, ...) PRINTF_LIKE(2, 3);
/* Fails with `status` and "SUBJECT: 2 problems": the number of errors since there were `before`. */
enum status problems_fail(const struct problems *problems, size_t before, enum status status,
                          const char *subject);
/* One line each: "error: ..." or "warning: ...". */
void problems_print(const struct problems *problems, FILE *to);
/* Prints warnings, and all problems if there are several errors. A single error becomes the failure itself,
 * so that it is reported once. Frees them; returns `status`. */
enum status problems_report(struct problems *problems, enum status status);
void problems_free(struct problems *problems);
