// SPDX-License-Identifier: Apache-2.0
/* Texts of multiple-choice items as lm-evaluation-harness makes them from its data
 * (tasks/hellaswag/utils.py), which uses methods of Python's str. Letters whose lower or title case is
 * more than one character stay as they are in Unicode's simple case mapping. */
#pragma once

#include "base/text.h"

/* preprocess(): strips white space, replaces " [title]" by ". ", removes [...] within a line, then
 * replaces each pair of spaces by one. */
void choice_text_clean(const char *text, struct text *out);
/* str.capitalize(): the first character in title case, the rest in lower case. */
void choice_text_capitalize(const char *text, struct text *out);
/* len(): characters. */
int64_t choice_text_characters(const char *text);
/* Length of the text without white space at its end. */
int64_t choice_text_stripped(const char *text);
