// SPDX-License-Identifier: Apache-2.0
/* A command line from a text, split at spaces. */
#pragma once

#include <stdio.h>
#include <string.h>

enum { WORDS = 24 };

struct line {
    char copy[256], *words[WORDS];
    int count;
};

static inline void split_line(const char *text, struct line *line)
{
    *line = (struct line){.count = 0};
    snprintf(line->copy, sizeof line->copy, "%s", text);
    char *rest = line->copy;
    for (char *word = strsep(&rest, " "); word != NULL && line->count < WORDS; word = strsep(&rest, " "))
        line->words[line->count++] = word;
}
