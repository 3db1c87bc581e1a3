// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/stop_text.h"

#include <string.h>

int64_t stop_text_find(const struct stop_texts *stops, const struct text *text, size_t seen)
{
    int64_t first = -1;
    for (int i = 0; i < stops->count; i++) {
        const size_t length = strlen(stops->list[i]), from = seen + 1 > length ? seen + 1 - length : 0;
        const char *found = from < text->length
                                ? memmem(text->chars + from, text->length - from, stops->list[i], length)
                                : NULL;
        if (found != NULL && (first < 0 || found - text->chars < first))
            first = found - text->chars;
    }
    return first;
}

size_t stop_text_held(const struct stop_texts *stops, const struct text *text)
{
    size_t most = 0;
    for (int i = 0; i < stops->count; i++) {
        const size_t limit = strlen(stops->list[i]) - 1;
        for (size_t held = limit < text->length ? limit : text->length; held > most; held--)
            if (memcmp(text->chars + text->length - held, stops->list[i], held) == 0)
                most = held; // ends the loop
    }
    return most;
}
