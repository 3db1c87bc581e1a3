// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/huggingface/huggingface.h"

#include "base/memory.h"
#include "trainer/tokenizer/huggingface/llama_word.h"
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct hf_encoder {
    const struct huggingface *hf;
    struct bpe_scratch *scratch;
    struct split_scratch *matches;
    struct word_cache cache;
    struct text prefixed; // scratch: a word with a space before it
    struct text replaced; // scratch: a word in which bytes are replaced
    bool plain;           // special tokens are text
};

static void state_destroy(void *state)
{
    struct hf_encoder *e = state;
    if (e == NULL)
        return;
    bpe_scratch_destroy(e->scratch);
    split_scratch_destroy(e->matches);
    word_cache_free(&e->cache);
    text_free(&e->prefixed);
    text_free(&e->replaced);
    free(e);
}

static enum status state_create(const void *model, void **state)
{
    struct hf_encoder *e = memory_zeroed(1, sizeof *e, "an encoder");
    e->hf = model;
    word_cache_create(&e->cache);
    e->scratch = bpe_scratch_create();
    e->matches = split_scratch_create();
    *state = e;
    return OK;
}

static enum status encode_word(struct hf_encoder *e, const char *word, int64_t length, struct tokens *out)
{
    bpe_encode_cached(&e->hf->bpe, e->scratch, &e->cache, word, length, out);
    return OK;
}

static enum status encode_words(struct hf_encoder *e, const struct split *split, const char *text,
                                int64_t length, struct tokens *out)
{
    for (int64_t at = 0; at < length;) {
        int64_t word = split_word(split, text + at, length - at);
        TRY(encode_word(e, text + at, word, out));
        at += word;
    }
    return OK;
}

/* Encodes a piece of the text: the splits from `step` on, then the merges. */
static enum status encode_piece(struct hf_encoder *e, int step, const char *text, int64_t length,
                                struct tokens *out)
{
    const struct huggingface *hf = e->hf;
    // ByteLevel is the last step: its space comes before its own words.
    bool own_words = hf->split_count > 0 && hf->splits[hf->split_count - 1].place[0] == 0 &&
                     hf->splits[hf->split_count - 1].pattern == SPLIT_GPT2_WORDS;
    if (hf->prefix_space && step == hf->split_count - own_words && length > 0 && text[0] != ' ') {
        struct text prefixed = e->prefixed;
        e->prefixed = (struct text){0};
        prefixed.length = 0;
        text_add(&prefixed, " ");
        text_add_bytes(&prefixed, text, (size_t)length);
        enum status status = encode_piece(e, step, prefixed.chars, (int64_t)prefixed.length, out);
        text_free(&e->prefixed);
        e->prefixed = prefixed;
        return status;
    }
    if (step == hf->split_count)
        return length > 0 ? encode_word(e, text, length, out) : OK;
    const struct split *split = &hf->splits[step];
    if (split_is_words(split) && step + 1 == hf->split_count && !hf->prefix_space)
        return encode_words(e, split, text, length, out);
    struct split_search search;
    split_begin(split, e->matches, text, length, &search);
    for (int64_t begin = 0, end = 0;;) {
        TRY(split_next(&search, &begin, &end));
        if (begin == end)
            return OK;
        TRY(encode_piece(e, step + 1, text + begin, end - begin, out));
    }
}

/* Encodes normalized text. */
static enum status encode_normalized(struct hf_encoder *e, const char *text, int64_t length,
                                     struct tokens *out)
{
    struct added_search search = {.text = text, .length = length, .plain = e->plain};
    struct added_match match;
    int64_t at = 0;
    for (; added_tokens_next(&e->hf->normalized, &search, &match); at = match.end) {
        TRY(encode_piece(e, 0, text + at, match.begin - at, out));
        tokens_append(out, &match.id, 1);
    }
    return encode_piece(e, 0, text + at, length - at, out);
}

/* Whether no character of the text can change in NFC: characters below U+0300, and CJK ideographs. */
static bool is_composed(const char *text, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte >= 0xCC && (byte < 0xE4 || byte > 0xE9))
            return false;
    }
    return true;
}

static bool is_ascii(const char *text, int64_t length)
{
    for (int64_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

static enum status encode_text(struct hf_encoder *e, const char *text, int64_t length, struct tokens *out)
{
    const struct huggingface *hf = e->hf;
    bool same = !hf->normalizes || is_ascii(text, length) ||
                (hf->normal_form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE) && is_composed(text, length));
    if (same)
        return encode_normalized(e, text, length, out);
    utf8proc_uint8_t *changed = NULL;
    utf8proc_ssize_t count =
        utf8proc_map((const utf8proc_uint8_t *)text, length, &changed, (utf8proc_option_t)hf->normal_form);
    if (count < 0)
        return fail(NO_MEMORY, "cannot normalize %lld bytes of text: %s", (long long)length,
                    utf8proc_errmsg(count));
    enum status status = encode_normalized(e, (const char *)changed, count, out);
    free(changed);
    return status;
}

static enum status encode_valid(struct hf_encoder *e, const char *text, int64_t length, struct tokens *out)
{
    struct added_search search = {.text = text, .length = length, .plain = e->plain};
    struct added_match match;
    int64_t at = 0;
    for (; added_tokens_next(&e->hf->raw, &search, &match); at = match.end) {
        TRY(encode_text(e, text + at, match.begin - at, out));
        tokens_append(out, &match.id, 1);
    }
    return encode_text(e, text + at, length - at, out);
}

/* Length of the longest prefix of bytes[0..length) in which no character is valid UTF-8. */
static int64_t invalid_prefix(const char *bytes, int64_t length)
{
    int64_t at = 0;
    while (at < length && utf8_prefix(bytes + at, length - at < 4 ? length - at : 4) == 0)
        at++;
    return at;
}

/* Encodes bytes that are not UTF-8 as one word. */
static enum status encode_invalid(struct hf_encoder *e, const char *bytes, int64_t length, struct tokens *out)
{
    if (!e->hf->lacks_bytes)
        return encode_word(e, bytes, length, out);
    e->replaced.length = 0;
    for (int64_t i = 0; i < length; i++)
        if (e->hf->bpe.byte_ids[(unsigned char)bytes[i]] >= 0)
            text_add_bytes(&e->replaced, bytes + i, 1);
        else
            text_add(&e->replaced, "\uFFFD");
    return encode_word(e, e->replaced.chars, (int64_t)e->replaced.length, out);
}

static enum status hf_encode(const void *model, void *state, const char *bytes, int64_t length,
                             struct tokens *out)
{
    (void)model;
    struct hf_encoder *e = state;
    split_scratch_begin(e->matches, length);
    for (int64_t at = 0; at < length;) {
        int64_t valid = utf8_prefix(bytes + at, length - at);
        TRY(encode_valid(e, bytes + at, valid, out));
        at += valid;
        int64_t invalid = invalid_prefix(bytes + at, length - at);
        if (invalid > 0)
            TRY(encode_invalid(e, bytes + at, invalid, out));
        at += invalid;
    }
    return OK;
}

static enum status encode_plain(const void *model, void *state, const char *bytes, int64_t length,
                                struct tokens *out)
{
    struct hf_encoder *e = state;
    e->plain = true;
    enum status status = hf_encode(model, state, bytes, length, out);
    e->plain = false;
    return status;
}

static int32_t special_id(const void *model, const char *content)
{
    const struct huggingface *hf = model;
    for (int64_t i = 0; i < hf->added_count; i++)
        if (hf->added[i].special && strcmp(hf->added[i].content, content) == 0)
            return hf->added[i].id;
    return -1;
}

static bool is_special(const void *model, int32_t id)
{
    return ((const struct huggingface *)model)->is_special[id] != 0;
}

static int64_t hf_cut(const void *model, const char *bytes, int64_t length)
{
    const struct huggingface *hf = model;
    if (!hf->cuts)
        return 0;
    return hf->splits[0].pattern == SPLIT_GPT2_WORDS ? bpe_cut(model, bytes, length)
                                                     : llama_cut(bytes, length);
}

/* ---- the row of tokenizer.c ---- */

static enum status create(const struct tokenizer_config *config, void **model, struct vocabulary *vocabulary)
{
    struct huggingface *hf = NULL;
    TRY(hf_load(config->tokenizer_model, &hf));
    *model = hf;
    *vocabulary = (struct vocabulary){
        .size = hf->bpe.size,
        .end_of_document = hf->bpe.end_of_document,
        .begin_of_text = hf->begin_of_text,
        .prefix = hf->prefix,
        .suffix = hf->suffix,
    };
    return OK;
}

static void destroy(void *model)
{
    hf_free(model);
}

const struct tokenizer_kind kind_huggingface = {
    .name = "HuggingFaceTokenizer",
    .other_name = "hf",
    .needs = TOKENIZER_MODEL,
    .model_file = "tokenizer.json, or its folder",
    .create = create,
    .destroy = destroy,
    .encoder_create = state_create,
    .encoder_destroy = state_destroy,
    .encode = hf_encode,
    .encode_plain = encode_plain,
    .special_id = special_id,
    .is_special = is_special,
    .cut = hf_cut,
    .decode = bpe_decode,
};
