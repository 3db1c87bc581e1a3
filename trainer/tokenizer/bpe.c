// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/bpe.h"

#include "base/memory.h"
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CUT_REACH = 1 << 21 };

/* Length of a contraction ('s, 're, ...) at the beginning of the bytes, or 0. */
static int64_t ending_length(const char *bytes, int64_t length)
{
    if (bytes[0] != '\'' || length < 2)
        return 0;
    if (strchr("stmd", bytes[1]) != NULL && bytes[1] != 0)
        return 2;
    bool two = length >= 3 && (memcmp(bytes + 1, "re", 2) == 0 || memcmp(bytes + 1, "ve", 2) == 0 ||
                               memcmp(bytes + 1, "ll", 2) == 0);
    return two ? 3 : 0;
}

/* Spaces before other text leave the last space to the next word; a single space and the spaces at the end of
 * the text are kept whole. */
static int64_t spaces_length(const char *bytes, int64_t length)
{
    int64_t at = 0, before_last = 0;
    while (at < length) {
        int64_t used = 0;
        if (character_at(bytes + at, length - at, &used) != CHARACTER_SPACE)
            return before_last > 0 ? before_last : at;
        before_last = at;
        at += used;
    }
    return at;
}

int64_t bpe_word(const char *bytes, int64_t length)
{
    int64_t ending = ending_length(bytes, length);
    if (ending > 0)
        return ending;
    int64_t at = bytes[0] == ' ' && length > 1 ? 1 : 0, used = 0;
    enum character kind = character_at(bytes + at, length - at, &used);
    if (kind == CHARACTER_SPACE)
        return spaces_length(bytes, length);
    do
        at += used;
    while (at < length && character_at(bytes + at, length - at, &used) == kind);
    return at;
}

int64_t bpe_cut(const void *bpe, const char *bytes, int64_t length)
{
    (void)bpe;
    // Text further back was searched by an earlier call.
    int64_t reach = length > CUT_REACH ? length - CUT_REACH : 0;
    for (int64_t at = length - 1; at > reach; at--) {
        if (bytes[at] != ' ' && bytes[at] != '\n')
            continue;
        int64_t begin = at - 1, used = 0;
        while (begin > reach && at - begin < 4 && ((unsigned char)bytes[begin] & 0xC0) == 0x80)
            begin--;
        if (character_at(bytes + begin, at - begin, &used) != CHARACTER_SPACE && used == at - begin)
            return at;
    }
    return 0;
}

enum status bpe_make_merges(struct bpe *bpe, int64_t count)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)count)
        slots *= 2;
    bpe->merges = count <= INT32_MAX / 2 ? malloc(slots * sizeof *bpe->merges) : NULL;
    if (bpe->merges == NULL)
        return fail(NO_MEMORY, "no memory for %" PRId64 " merges of a tokenizer", count);
    for (uint64_t i = 0; i < slots; i++)
        bpe->merges[i].pair = BPE_NO_PAIR;
    bpe->merge_mask = slots - 1;
    return OK;
}

void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t key = (uint64_t)left << 32 | (uint64_t)right, at = bpe_mix(key);
    struct bpe_merge *slot;
    do
        slot = &bpe->merges[at++ & bpe->merge_mask];
    while (slot->pair != BPE_NO_PAIR && slot->pair != key);
    *slot = (struct bpe_merge){key, rank, id};
}

static uint64_t hash_bytes(const char *bytes, int64_t length)
{
    uint64_t hash = (uint64_t)length, part;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&part, bytes, 8);
        hash = bpe_mix(hash ^ part);
    }
    part = 0;
    memcpy(&part, bytes, (size_t)length);
    return bpe_mix(hash ^ part);
}

int32_t bpe_find_whole(const struct bpe *bpe, const char *word, int64_t length)
{
    for (uint64_t at = hash_bytes(word, length);; at++) {
        int32_t id = bpe->whole[at & bpe->whole_mask];
        if (id < 0)
            return -1;
        if (bpe->starts[id + 1] - bpe->starts[id] == length &&
            memcmp(bpe->bytes + bpe->starts[id], word, (size_t)length) == 0)
            return id;
    }
}

enum status bpe_make_whole(struct bpe *bpe)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)bpe->size)
        slots *= 2;
    bpe->whole = malloc(slots * sizeof *bpe->whole);
    if (bpe->whole == NULL)
        return fail(NO_MEMORY, "no memory for the words of a tokenizer");
    for (uint64_t i = 0; i < slots; i++)
        bpe->whole[i] = -1;
    bpe->whole_mask = slots - 1;
    for (int32_t id = 0; id < bpe->size; id++) {
        const char *bytes = bpe->bytes + bpe->starts[id];
        int64_t length = bpe->starts[id + 1] - bpe->starts[id];
        if (length == 0 || bpe_find_whole(bpe, bytes, length) >= 0)
            continue;
        uint64_t at = hash_bytes(bytes, length);
        while (bpe->whole[at & bpe->whole_mask] >= 0)
            at++;
        bpe->whole[at & bpe->whole_mask] = id;
    }
    return OK;
}

void bpe_release(struct bpe *bpe)
{
    free(bpe->bytes);
    free(bpe->starts);
    free(bpe->merges);
    free(bpe->whole);
}

void bpe_free(struct bpe *bpe)
{
    if (bpe == NULL)
        return;
    bpe_release(bpe);
    free(bpe);
}

struct encoder_state {
    struct bpe_scratch *scratch;
    struct word_cache cache;
};

static void state_destroy(void *pointer)
{
    struct encoder_state *state = pointer;
    if (state == NULL)
        return;
    bpe_scratch_destroy(state->scratch);
    word_cache_free(&state->cache);
    free(state);
}

static enum status state_create(const void *model, void **out)
{
    (void)model;
    struct encoder_state *state = memory_zeroed(1, sizeof *state, "an encoder");
    word_cache_create(&state->cache);
    state->scratch = bpe_scratch_create();
    *out = state;
    return OK;
}

static enum status encode(const void *model, void *pointer, const char *bytes, int64_t length,
                          struct tokens *out)
{
    const struct bpe *bpe = model;
    struct encoder_state *state = pointer;
    for (int64_t at = 0; at < length;) {
        int64_t word = bpe_word(bytes + at, length - at);
        bpe_encode_cached(bpe, state->scratch, &state->cache, bytes + at, word, out);
        at += word;
    }
    return OK;
}

static enum status create(const struct tokenizer_config *config, void **model, struct vocabulary *vocabulary)
{
    struct bpe *bpe = NULL;
    TRY(bpe_load(config->vocab_file, config->merge_file, &bpe));
    *model = bpe;
    *vocabulary = (struct vocabulary){
        .size = bpe->size, .end_of_document = bpe->end_of_document, .begin_of_text = bpe->end_of_document};
    return OK;
}

static void destroy(void *model)
{
    bpe_free(model);
}

void bpe_decode(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out)
{
    const struct bpe *bpe = model;
    (void)begins;
    for (int64_t i = 0; i < count; i++) {
        const int64_t *start = &bpe->starts[ids[i]];
        text_add_bytes(out, bpe->bytes + start[0], (size_t)(start[1] - start[0]));
    }
}

static int32_t special_id(const void *model, const char *content)
{
    return strcmp(content, "<|endoftext|>") == 0 ? ((const struct bpe *)model)->end_of_document : -1;
}

static bool is_special(const void *model, int32_t id)
{
    return id == ((const struct bpe *)model)->end_of_document;
}

const struct tokenizer_kind kind_bpe = {
    .name = "GPT2BPE",
    .other_name = "gpt2",
    .needs = TOKENIZER_VOCABULARY_AND_MERGES,
    .create = create,
    .destroy = destroy,
    .encoder_create = state_create,
    .encoder_destroy = state_destroy,
    .encode = encode,
    .special_id = special_id,
    .is_special = is_special,
    .cut = bpe_cut,
    .decode = bpe_decode,
};

/* ---- word cache ---- */

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
