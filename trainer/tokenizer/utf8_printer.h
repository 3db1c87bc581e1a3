// SPDX-License-Identifier: Apache-2.0
/* Bytes that come a few at a time, printed as text as soon as they are characters.
 *
 *     "caf" C3 | A9 " " FF     ->     "caf", "é ", U+FFFD
 *
 * A token may end in the middle of a character: its bytes wait for the rest. What is no UTF-8 becomes U+FFFD,
 * and so do control characters other than tab, newline and return: a model may say anything, and a terminal
 * obeys some of it. A raw printer is for files and pipes: it writes every byte unchanged and at once. */
#pragma once

#include "base/text.h"

struct utf8_printer {
    FILE *to;
    bool raw;            // writes the bytes as they are
    struct text pending; // bytes that may begin a character
};

/* Prints what is complete, and flushes. IO_ERROR. */
MUST_USE enum status utf8_print(struct utf8_printer *printer, const char *bytes, size_t length);
/* Prints what is left, as it is; frees the printer's memory. */
MUST_USE enum status utf8_print_end(struct utf8_printer *printer);
