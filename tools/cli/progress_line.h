// SPDX-License-Identifier: Apache-2.0
/* A progress line on standard error, overwritten in place. Nothing is printed if it is not a terminal, or for
 * work that ends soon. */
#pragma once

#include "base/status.h"

struct progress_line {
    double begun, shown; // times of the start and of the last update; shown 0: none yet
    bool on;             // standard error is a terminal
};

struct progress_line progress_line_begin(void);
/* Replaces the line, at most ten times a second. */
void progress_line_show(struct progress_line *progress, const char *format, ...) PRINTF_LIKE(2, 3);
void progress_line_clear(const struct progress_line *progress);
