// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/bpe.h"

#include "trainer/tokenizer/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_SLOTS = 1 << 17, CACHE_WORDS = CACHE_SLOTS / 2, CACHED_BYTES = 48, CUT_REACH = 1 << 21 };

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

int64_t bpe_cut(const char *bytes, int64_t length)
{
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

/* Cache of the ids of words: text repeats words so often that few are merged twice. When either the slots or
 * the arenas are full, the cache is cleared. */
struct cached {
    uint64_t hash; // 0: empty
    uint32_t bytes_at, ids_at;
    uint16_t length, count;
};

struct encoder_state {
    struct bpe_scratch *scratch;
    struct cached *slots;
    char *bytes;  // [CACHE_WORDS * CACHED_BYTES]
    int32_t *ids; // [CACHE_WORDS * CACHED_BYTES] since a word has no more tokens than bytes
    uint32_t byte_count, id_count, words;
};

static void state_destroy(void *pointer)
{
    struct encoder_state *state = pointer;
    if (state == NULL)
        return;
    bpe_scratch_destroy(state->scratch);
    free(state->slots);
    free(state->bytes);
    free(state->ids);
    free(state);
}

static enum status state_create(const void *model, void **out)
{
    (void)model;
    struct encoder_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        return fail(NO_MEMORY, "no memory for an encoder");
    const size_t arena = (size_t)CACHE_WORDS * CACHED_BYTES;
    state->slots = calloc(CACHE_SLOTS, sizeof *state->slots);
    state->bytes = malloc(arena);
    state->ids = malloc(arena * sizeof *state->ids);
    bool good = state->slots != NULL && state->bytes != NULL && state->ids != NULL;
    enum status status =
        good ? bpe_scratch_create(&state->scratch) : fail(NO_MEMORY, "no memory for an encoder");
    if (status == OK)
        *out = state;
    else
        state_destroy(state);
    return status;
}

static uint64_t hash_word(const char *word, int64_t length)
{
    uint64_t hash = (uint64_t)length, part;
    for (; length >= 8; word += 8, length -= 8) {
        memcpy(&part, word, 8);
        hash = bpe_mix(hash ^ part);
    }
    part = 0;
    memcpy(&part, word, (size_t)length);
    return bpe_mix(hash ^ part) | 1; // 0 marks an empty slot
}

/* The slot of the word, or the empty slot for it. */
static struct cached *find_cached(struct encoder_state *state, uint64_t hash, const char *word,
                                  int64_t length)
{
    for (uint64_t at = hash >> 1;; at++) {
        struct cached *slot = &state->slots[at % CACHE_SLOTS];
        if (slot->hash == 0)
            return slot;
        if (slot->hash == hash && slot->length == length &&
            memcmp(state->bytes + slot->bytes_at, word, (size_t)length) == 0)
            return slot;
    }
}

static void remember(struct encoder_state *state, struct cached *slot, uint64_t hash, const char *word,
                     int64_t length, const int32_t *ids, int64_t count)
{
    if (state->words == CACHE_WORDS) {
        memset(state->slots, 0, CACHE_SLOTS * sizeof *state->slots);
        state->words = state->byte_count = state->id_count = 0;
        slot = find_cached(state, hash, word, length);
    }
    *slot = (struct cached){
        .hash = hash,
        .bytes_at = state->byte_count,
        .ids_at = state->id_count,
        .length = (uint16_t)length,
        .count = (uint16_t)count,
    };
    memcpy(state->bytes + state->byte_count, word, (size_t)length);
    memcpy(state->ids + state->id_count, ids, (size_t)count * sizeof *ids);
    state->byte_count += (uint32_t)length;
    state->id_count += (uint32_t)count;
    state->words++;
}

static enum status encode_cached(const struct bpe *bpe, struct encoder_state *state, const char *word,
                                 int64_t length, struct tokens *out)
{
    uint64_t hash = hash_word(word, length);
    struct cached *slot = find_cached(state, hash, word, length);
    if (slot->hash != 0) {
        TRY(tokens_reserve(out, slot->count));
        memcpy(out->ids + out->count, state->ids + slot->ids_at, slot->count * sizeof *out->ids);
        out->count += slot->count;
        return OK;
    }
    int64_t before = out->count;
    TRY(bpe_encode_word(bpe, state->scratch, word, length, out));
    remember(state, slot, hash, word, length, out->ids + before, out->count - before);
    return OK;
}

static enum status encode(const void *model, void *state, const char *bytes, int64_t length,
                          struct tokens *out)
{
    const struct bpe *bpe = model;
    for (int64_t at = 0; at < length;) {
        int64_t word = bpe_word(bytes + at, length - at);
        if (word <= CACHED_BYTES)
            TRY(encode_cached(bpe, state, bytes + at, word, out));
        else
            TRY(bpe_encode_word(bpe, ((struct encoder_state *)state)->scratch, bytes + at, word, out));
        at += word;
    }
    return OK;
}

static enum status create(const struct tokenizer_config *config, void **model, struct vocabulary *vocabulary)
{
    struct bpe *bpe = NULL;
    TRY(bpe_load(config->vocab_file, config->merge_file, &bpe));
    *model = bpe;
    *vocabulary = (struct vocabulary){.size = bpe->size, .end_of_document = bpe->end_of_document};
    return OK;
}

static void destroy(void *model)
{
    bpe_free(model);
}

static void decode(const void *model, int32_t id, struct text *out)
{
    const struct bpe *bpe = model;
    text_add_bytes(out, bpe->bytes + bpe->starts[id], (size_t)(bpe->starts[id + 1] - bpe->starts[id]));
}

const struct tokenizer_kind kind_bpe = {
    .name = "GPT2BPE",
    .other_name = "gpt2",
    .needs_files = true,
    .create = create,
    .destroy = destroy,
    .encoder_create = state_create,
    .encoder_destroy = state_destroy,
    .encode = encode,
    .cut = bpe_cut,
    .decode = decode,
};
