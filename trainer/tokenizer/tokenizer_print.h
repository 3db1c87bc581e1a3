// SPDX-License-Identifier: Apache-2.0
/* Prints decoded tokens on a terminal: arbitrary bytes, without terminal control sequences. */
#pragma once

#include "base/text.h"

/* Prints printable characters unchanged and all others as \n, \\ or \xNN: one line, reversible. */
void tokenizer_print(FILE *to, const struct text *bytes);
