// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/word_cache.h"

#include <stdlib.h>

_Static_assert(sizeof(struct cached_word) == 64, "an entry is a cache line");

void word_cache_create(struct word_cache *out)
{
    const size_t bytes = CACHE_ENTRIES * sizeof *out->entries;
    out->entries = aligned_alloc(128, bytes); // both entries of a word in one pair of cache lines
    if (out->entries == NULL)
        die_of(NO_MEMORY, "out of memory for the word cache of an encoder");
    memset(out->entries, 0, bytes);
}

void word_cache_free(struct word_cache *cache)
{
    free(cache->entries);
    cache->entries = NULL;
}

void word_cache_add(struct cached_word *pair, const char *word, int64_t length, const int32_t *ids,
                    int64_t count)
{
    if (count > CACHED_IDS)
        return;
    pair[1] = pair[0];
    pair[0].length = (uint8_t)length;
    pair[0].count = (uint8_t)count;
    memcpy(pair[0].bytes, word, (size_t)length);
    memcpy(pair[0].ids, ids, (size_t)count * sizeof *ids);
}
