// SPDX-License-Identifier: Apache-2.0
/* Cache of the ids of words: text repeats words so often that few are merged twice. A word is in one of two
 * adjacent entries, each a cache line; a new word replaces the older of the two. One per encoder. */
#pragma once

#include "trainer/tokenizer/tokenizer.h"

#include <string.h>

enum { CACHED_BYTES = 30, CACHED_IDS = 8, CACHE_ENTRIES = 1 << 16 };

struct cached_word {
    uint8_t length, count; // length 0: empty
    char bytes[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

struct word_cache {
    struct cached_word *entries; // [CACHE_ENTRIES]
};

void word_cache_create(struct word_cache *out);
void word_cache_free(struct word_cache *cache); // accepts {0}

/* The entries that may hold word[0..length), length from 1 to CACHED_BYTES. */
static inline struct cached_word *word_cache_pair(const struct word_cache *cache, const char *word,
                                                  int64_t length)
{
    uint64_t hash = (uint64_t)length, part;
    for (const char *end = word + length; end - word >= 8; word += 8) {
        memcpy(&part, word, 8);
        hash = (hash ^ part) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 32;
    }
    part = 0;
    memcpy(&part, word, (size_t)(length & 7));
    hash = (hash ^ part) * 0x9E3779B97F4A7C15U;
    return &cache->entries[hash >> 48 & (CACHE_ENTRIES - 2)];
}

/* The entry of the word, or NULL. */
static inline const struct cached_word *word_cache_find(const struct cached_word *pair, const char *word,
                                                        int64_t length)
{
    for (int i = 0; i < 2; i++)
        if (pair[i].length == length && memcmp(pair[i].bytes, word, (size_t)length) == 0)
            return &pair[i];
    return NULL;
}

/* Adds a word that is not cached; does nothing if it has more than CACHED_IDS ids. */
void word_cache_add(struct cached_word *pair, const char *word, int64_t length, const int32_t *ids,
                    int64_t count);
