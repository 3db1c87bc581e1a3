// SPDX-License-Identifier: Apache-2.0
/* Decoded tokens for a terminal: any bytes at all, and nothing that a terminal would obey. */
#pragma once

#include "base/text.h"

/* Printable characters as they are, the rest as \n, \\ or \xNN: one line, from which the bytes can be read
 * back. */
void tokenizer_print(FILE *to, const struct text *bytes);
