// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/tokenizer.h"

#include "base/memory.h"
#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/huggingface/huggingface.h"
#include "trainer/tokenizer/sentencepiece/sp_tokenizer.h"
#include "trainer/tokenizer/tokenizer_kind.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BYTE_END = 256 };

/* Bytes are their own ids: there is no model. */
static enum status byte_create(const struct tokenizer_config *config, void **model,
                               struct vocabulary *vocabulary)
{
    (void)config;
    *model = NULL;
    *vocabulary = (struct vocabulary){.size = 257, .end_of_document = BYTE_END, .begin_of_text = -1};
    return OK;
}

static void byte_destroy(void *model)
{
    (void)model;
}

static enum status byte_encoder_create(const void *model, void **state)
{
    (void)model;
    *state = NULL;
    return OK;
}

static enum status byte_encode(const void *model, void *state, const char *bytes, int64_t length,
                               struct tokens *out)
{
    (void)model;
    (void)state;
    tokens_reserve(out, length);
    for (int64_t i = 0; i < length; i++) // ids is NULL while there are no tokens
        out->ids[out->count++] = (unsigned char)bytes[i];
    return OK;
}

static int64_t byte_cut(const void *model, const char *bytes, int64_t length)
{
    (void)model;
    (void)bytes;
    return length;
}

static void byte_decode(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out)
{
    (void)model;
    (void)begins;
    for (int64_t i = 0; i < count; i++) {
        char byte = (char)ids[i];
        if (ids[i] != BYTE_END)
            text_add_bytes(out, &byte, 1);
    }
}

static int32_t byte_special_id(const void *model, const char *content)
{
    (void)model;
    (void)content;
    return -1;
}

static bool byte_is_special(const void *model, int32_t id)
{
    (void)model;
    return id == BYTE_END;
}

static const struct tokenizer_kind kind_byte = {
    .name = "byte",
    .other_name = "bytes",
    .needs = TOKENIZER_NO_FILES,
    .create = byte_create,
    .destroy = byte_destroy,
    .encoder_create = byte_encoder_create,
    .encoder_destroy = byte_destroy,
    .encode = byte_encode,
    .special_id = byte_special_id,
    .is_special = byte_is_special,
    .cut = byte_cut,
    .decode = byte_decode,
};

static const struct tokenizer_kind *const kinds[] = {&kind_byte, &kind_bpe, &kind_huggingface,
                                                     &kind_sentencepiece, &kind_llama2};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

struct tokenizer {
    const struct tokenizer_kind *kind;
    void *model;
    struct vocabulary vocabulary;
};

struct encoder {
    const struct tokenizer *tokenizer;
    void *state;
};

void tokens_reserve(struct tokens *tokens, int64_t more)
{
    if (more <= tokens->capacity - tokens->count)
        return;
    int64_t capacity = tokens->capacity < 1024 ? 1024 : tokens->capacity;
    while (capacity - tokens->count < more)
        capacity *= 2;
    tokens->ids = memory_resized(tokens->ids, (size_t)capacity, sizeof *tokens->ids, "the tokens of a text");
    tokens->capacity = capacity;
}

void tokens_append(struct tokens *tokens, const int32_t *ids, int64_t count)
{
    tokens_reserve(tokens, count);
    for (int64_t i = 0; i < count; i++)
        tokens->ids[tokens->count++] = ids[i];
}

void tokens_free(struct tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct tokens){0};
}

static enum status find_kind(const char *type, const struct tokenizer_kind **out)
{
    const char *names[KIND_COUNT];
    struct text known = {0};
    for (int i = 0; i < KIND_COUNT; i++) {
        names[i] = kinds[i]->name;
        text_add(&known, "%s%s", i > 0 ? ", " : "", names[i]);
        if (strcasecmp(type, kinds[i]->name) == 0 || strcasecmp(type, kinds[i]->other_name) == 0) {
            *out = kinds[i];
            text_free(&known);
            return OK;
        }
    }
    const char *nearest = nearest_name(type, names, KIND_COUNT);
    enum status status = fail(BAD_RECIPE, "tokenizer_type: \"%s\" is unknown%s%s%s; there are %s", type,
                              nearest != NULL ? ", did you mean \"" : "", nearest != NULL ? nearest : "",
                              nearest != NULL ? "\"" : "", known.chars);
    text_free(&known);
    return status;
}

static enum status check_files(const struct tokenizer_kind *kind, const struct tokenizer_config *config)
{
    switch (kind->needs) {
    case TOKENIZER_NO_FILES:
        break;
    case TOKENIZER_VOCABULARY_AND_MERGES:
        if (config->vocab_file == NULL || config->merge_file == NULL)
            return fail(BAD_RECIPE, "tokenizer.tokenizer_type %s needs tokenizer.%s: its %s", kind->name,
                        config->vocab_file == NULL ? "vocab_file" : "merge_file",
                        config->vocab_file == NULL ? "vocab.json" : "merges.txt");
        break;
    case TOKENIZER_MODEL:
        if (config->tokenizer_model == NULL)
            return fail(BAD_RECIPE, "tokenizer.tokenizer_type %s needs tokenizer.tokenizer_model: its %s",
                        kind->name, kind->model_file);
    }
    return OK;
}

enum status tokenizer_create(const struct tokenizer_config *config, struct tokenizer **out)
{
    const struct tokenizer_kind *kind = NULL;
    TRY(find_kind(config->type, &kind));
    TRY(check_files(kind, config));
    struct tokenizer *t = memory_zeroed(1, sizeof *t, "a tokenizer");
    t->kind = kind;
    enum status status = kind->create(config, &t->model, &t->vocabulary);
    if (status == OK)
        *out = t;
    else
        free(t);
    return status;
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    tokenizer->kind->destroy(tokenizer->model);
    free(tokenizer);
}

const char *tokenizer_name(const struct tokenizer *tokenizer)
{
    return tokenizer->kind->name;
}

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.size;
}

int32_t tokenizer_end_of_document(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.end_of_document;
}

int32_t tokenizer_begin_of_text(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.begin_of_text;
}

const struct tokens *tokenizer_prefix(const struct tokenizer *tokenizer)
{
    return &tokenizer->vocabulary.prefix;
}

const struct tokens *tokenizer_suffix(const struct tokenizer *tokenizer)
{
    return &tokenizer->vocabulary.suffix;
}

int32_t tokenizer_special_token(const struct tokenizer *tokenizer, const char *content)
{
    return tokenizer->kind->special_id(tokenizer->model, content);
}

bool tokenizer_adds_space(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.adds_space;
}

enum status encoder_create(const struct tokenizer *tokenizer, struct encoder **out)
{
    struct encoder *e = memory_zeroed(1, sizeof *e, "an encoder");
    e->tokenizer = tokenizer;
    enum status status = tokenizer->kind->encoder_create(tokenizer->model, &e->state);
    if (status == OK)
        *out = e;
    else
        free(e);
    return status;
}

void encoder_destroy(struct encoder *encoder)
{
    if (encoder == NULL)
        return;
    encoder->tokenizer->kind->encoder_destroy(encoder->state);
    free(encoder);
}

enum status encoder_encode(struct encoder *encoder, const char *bytes, int64_t length, struct tokens *out)
{
    return encoder->tokenizer->kind->encode(encoder->tokenizer->model, encoder->state, bytes, length, out);
}

enum status encoder_encode_plain(struct encoder *encoder, const char *bytes, int64_t length,
                                 struct tokens *out)
{
    const struct tokenizer_kind *kind = encoder->tokenizer->kind;
    const void *model = encoder->tokenizer->model;
    const int64_t before = out->count;
    TRY((kind->encode_plain != NULL ? kind->encode_plain : kind->encode)(model, encoder->state, bytes, length,
                                                                         out));
    for (int64_t i = before; i < out->count; i++)
        if (kind->is_special(model, out->ids[i]))
            return fail(BAD_DATA, "a word of the text is the special token %d of the tokenizer; remove it",
                        out->ids[i]);
    return OK;
}

int64_t encoder_cut(const struct encoder *encoder, const char *bytes, int64_t length)
{
    return encoder->tokenizer->kind->cut(encoder->tokenizer->model, bytes, length);
}

static enum status decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count, bool begins,
                          struct text *out)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer->vocabulary.size)
            return fail(BAD_DATA, "token %" PRId64 ": id %d is outside the vocabulary of %d", i, ids[i],
                        tokenizer->vocabulary.size);
    tokenizer->kind->decode(tokenizer->model, ids, count, begins, out);
    return OK;
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                             struct text *out)
{
    return decode(tokenizer, ids, count, true, out);
}

enum status tokenizer_decode_more(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                  struct text *out)
{
    return decode(tokenizer, ids, count, false, out);
}
