// SPDX-License-Identifier: Apache-2.0
/* Prints a stream of bytes as text, each character as soon as its bytes are complete.
 *
 *     "caf" C3 | A9 " " FF     ->     "caf", "é ", U+FFFD
 *
 * A token may end in the middle of a character: its bytes are kept until the rest arrives. Invalid UTF-8
 * becomes U+FFFD, and so do control characters other than tab and newline, since generated text must not
 * control the terminal. A raw printer is for files and pipes: it writes every byte unchanged and
 * at once. */
#pragma once

#include "base/text.h"

struct utf8_printer {
    FILE *to;
    bool raw;            // write bytes unchanged
    struct text pending; // bytes of an incomplete character
};

/* Prints all complete characters, and flushes. IO_ERROR. */
MUST_USE enum status utf8_print(struct utf8_printer *printer, const char *bytes, size_t length);
/* Prints the pending bytes; frees the printer's memory. */
MUST_USE enum status utf8_print_end(struct utf8_printer *printer);
