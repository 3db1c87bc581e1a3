// SPDX-License-Identifier: Apache-2.0
/* A line on a terminal that is written over while work is done. Nothing is printed where standard error is no
 * terminal, or for work that ends soon. */
#pragma once

#include "base/status.h"

struct progress_line {
    double begun, shown; // when; shown 0: never
    bool on;             // standard error is a terminal
};

struct progress_line progress_line_begin(void);
/* Replaces the line, at most ten times a second. */
void progress_line_show(struct progress_line *progress, const char *format, ...) PRINTF_LIKE(2, 3);
void progress_line_clear(const struct progress_line *progress);
