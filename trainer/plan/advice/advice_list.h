// SPDX-License-Identifier: Apache-2.0
/* The changes that advice considers. */
#pragma once

#include "trainer/plan/advice/advice.h"

enum { ADVICE_CANDIDATES = 64 };

struct advice_list {
    char changes[ADVICE_CANDIDATES][ADVICE_CHARS]; // overrides, separated by spaces
    bool saves_memory[ADVICE_CANDIDATES];          // worth combining if no single change fits
    int count;
};

/* Appends changes of one key, or of two degrees with the same product, most promising first. They need not be
 * valid. */
void advice_list_make(const struct recipe *recipe, struct advice_list *out);
