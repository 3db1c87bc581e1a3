// SPDX-License-Identifier: Apache-2.0
/* GPT-2's byte-level byte pair encoding (Radford et al. 2019; Sennrich et al. 2016).
 *
 *     text   "Hello  there's"
 *     words  "Hello" " " " there" "'s"                     bpe_word(): GPT-2's pattern
 *     bytes  H e l l o                                     each is a token
 *     merges H el l o -> H ell o -> Hell o -> Hello        the pair that merges.txt lists first, everywhere
 *                                                          in the word, until no pair is listed
 *
 * vocab.json maps tokens to ids and merges.txt lists the pairs. Both write a byte as a character
 * (byte_alphabet.h). */
#pragma once

#include "trainer/tokenizer/tokenizer_kind.h"

#include <string.h>

struct bpe_merge {
    uint64_t pair; // left << 32 | right; BPE_NO_PAIR in an empty slot
    int32_t rank;  // index in merges.txt: lower ranks are merged first
    int32_t id;    // of the merged token
};

#define BPE_NO_PAIR UINT64_MAX
#define BPE_NO_RANK INT32_MAX

enum bpe_order {
    BPE_IN_ROUNDS, // GPT-2's program: every occurrence of the pair of lowest rank, then the next pair
    BPE_ONE_BY_ONE // Hugging Face's tokenizers: the leftmost pair of lowest rank, among all that then exist
};

struct bpe {
    int32_t size;
    int32_t end_of_document;
    enum bpe_order order; // the results differ only if a merge needs a token of higher rank
    int32_t byte_ids[256];
    char *bytes;              // of all tokens, concatenated
    int64_t *starts;          // [size + 1] offset of each token
    struct bpe_merge *merges; // a hash table with linear probing, at most half full
    uint64_t merge_mask;
    int32_t *whole; // a hash table of tokens by their bytes, -1 in an empty slot; NULL: words are merged
    uint64_t whole_mask;
};

/* Loads both files. BAD_DATA or IO_ERROR names the file, the line or the token, and the problem. */
MUST_USE enum status bpe_load(const char *vocab_file, const char *merge_file, struct bpe **out);
void bpe_free(struct bpe *bpe);    // accepts NULL, and a partially loaded one
void bpe_release(struct bpe *bpe); // frees what *bpe owns; accepts a partially loaded one

/* Hash function. */
static inline uint64_t bpe_mix(uint64_t key)
{
    key *= 0x9E3779B97F4A7C15U;
    return key ^ key >> 32;
}

/* The merge of two tokens, or NULL. */
static inline const struct bpe_merge *bpe_find(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint64_t)right;
    for (uint64_t at = bpe_mix(pair);; at++) {
        const struct bpe_merge *slot = &bpe->merges[at & bpe->merge_mask];
        if (slot->pair == pair)
            return slot;
        if (slot->pair == BPE_NO_PAIR)
            return NULL;
    }
}

/* Allocates the hash table for `count` merges, at most half full. NO_MEMORY. */
MUST_USE enum status bpe_make_merges(struct bpe *bpe, int64_t count);

/* Adds a merge; of two merges of the same pair, the last one is found. */
void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Makes a word that is a token this token, whatever its merges give (ignore_merges of tokenizer.json). Call
 * it when all tokens are loaded. NO_MEMORY. */
MUST_USE enum status bpe_make_whole(struct bpe *bpe);
/* The token of these bytes, or -1; only after bpe_make_whole(). */
int32_t bpe_find_whole(const struct bpe *bpe, const char *word, int64_t length);

/* Length of the first word of bytes[0..length), length at least 1: the first match of
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
int64_t bpe_word(const char *bytes, int64_t length);

/* Implements encoder_cut(): cuts before a space or a line end that does not follow another space. No word
 * of the pattern has a space after anything else, and no word before such a position depends on what
 * follows it. */
int64_t bpe_cut(const void *bpe, const char *bytes, int64_t length);

/* Scratch memory of one encoder. */
struct bpe_scratch;
struct bpe_scratch *bpe_scratch_create(void);
void bpe_scratch_destroy(struct bpe_scratch *scratch); // accepts NULL

/* Appends the ids of one word to `out`. */
void bpe_encode_word(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, int64_t length,
                     struct tokens *out);

/* ---- word cache ---- */

/* Cache of the ids of words: text repeats words so often that few are merged twice. A word is in one of two
 * adjacent entries, each a cache line; a new word replaces the older of the two. One per encoder. */
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

/* bpe_encode_word(), through the cache of an encoder. */
static inline void bpe_encode_cached(const struct bpe *bpe, struct bpe_scratch *scratch,
                                     struct word_cache *cache, const char *word, int64_t length,
                                     struct tokens *out)
{
    if (length > CACHED_BYTES) {
        bpe_encode_word(bpe, scratch, word, length, out);
        return;
    }
    struct cached_word *pair = word_cache_pair(cache, word, length);
    const struct cached_word *found = word_cache_find(pair, word, length);
    if (found != NULL) {
        tokens_reserve(out, CACHED_IDS);
        memcpy(out->ids + out->count, found->ids, sizeof found->ids); // a fixed size is faster
        out->count += found->count;
        return;
    }
    int64_t before = out->count;
    bpe_encode_word(bpe, scratch, word, length, out);
    word_cache_add(pair, word, length, out->ids + before, out->count - before);
}

/* Implements the decode() of a tokenizer_kind whose model begins with, or is, a struct bpe. */
void bpe_decode(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out);

extern const struct tokenizer_kind kind_bpe;
