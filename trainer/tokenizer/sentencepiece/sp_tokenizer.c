// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/sentencepiece/sp_tokenizer.h"

#include "base/memory.h"
#include "trainer/tokenizer/sentencepiece/sp_library.h"

#include <stdlib.h>
#include <string.h>

#define SPACE "\xE2\x96\x81" // U+2581

#ifdef HAVE_SENTENCEPIECE
struct sentencepiece {
    struct sp_model *model;
    bool adds_space; // before every text
    int32_t bos;
};

static void destroy(void *pointer)
{
    struct sentencepiece *sp = pointer;
    if (sp != NULL)
        sp_free(sp->model);
    free(sp);
}

static void append(struct tokens *out, const int *ids, size_t count)
{
    tokens_append(out, ids, (int64_t)count);
}

static enum status encode(const void *model, void *state, const char *bytes, int64_t length,
                          struct tokens *out)
{
    const struct sentencepiece *sp = model;
    char why[SP_WHY] = "";
    (void)state;
    enum sp_result result = sp_encode(sp->model, bytes, (size_t)length, append, out, why);
    if (result == SP_BAD)
        return fail(BAD_DATA, "SentencePiece cannot encode %lld bytes of text: %s", (long long)length, why);
    return result == SP_OK ? OK
                           : fail(NO_MEMORY,
                                  "no memory to encode a document of %lld bytes; split the text into smaller "
                                  "documents",
                                  (long long)length);
}

/* Checks the file itself first: the library's message for a missing file names its own source. */
static enum status read_model(const char *path, struct sentencepiece *sp)
{
    char why[SP_WHY] = "";
    AUTO(text) file = {0};
    TRY(file_read(path, &file));
    enum sp_result result = sp_load(path, &sp->model, why);
    if (result == SP_NO_MEMORY)
        return fail(NO_MEMORY, "%s: no memory for a tokenizer", path);
    if (result != SP_OK)
        return fail(BAD_DATA,
                    "%s: not a SentencePiece model (%s); a tokenizer.json needs HuggingFaceTokenizer", path,
                    why);
    return OK;
}

/* Whether the model adds a space before a text. */
static enum status probe_space(struct sentencepiece *sp)
{
    AUTO(tokens) ids = {0};
    enum status status = encode(sp, NULL, "a", 1, &ids);
    if (status == OK && ids.count > 0) {
        size_t length = 0;
        enum sp_kind kind;
        const char *piece = sp_piece(sp->model, ids.ids[0], &length, &kind);
        sp->adds_space = length >= 3 && memcmp(piece, SPACE, 3) == 0;
    }
    return status;
}

static enum status load(const char *path, bool bos, struct sentencepiece *sp, struct vocabulary *vocabulary)
{
    TRY(read_model(path, sp));
    TRY(probe_space(sp));
    sp->bos = sp_bos(sp->model);
    *vocabulary = (struct vocabulary){.size = sp_size(sp->model),
                                      .end_of_document = sp_eos(sp->model),
                                      .begin_of_text = sp->bos,
                                      .adds_space = sp->adds_space};
    if (vocabulary->end_of_document < 0)
        return fail(BAD_DATA, "%s: the model has no end-of-sentence piece (eos_id), which ends a document",
                    path);
    if (bos && sp->bos < 0)
        return fail(BAD_DATA,
                    "%s: the model has no piece for the beginning of a text (bos_id); use "
                    "GPTSentencePieceTokenizer, which adds none",
                    path);
    if (bos)
        vocabulary->prefix = (struct tokens){.ids = &sp->bos, .count = 1};
    return OK;
}

static enum status create(const struct tokenizer_config *config, bool bos, void **model,
                          struct vocabulary *vocabulary)
{
    struct sentencepiece *sp = memory_zeroed(1, sizeof *sp, "a tokenizer");
    enum status status = load(config->tokenizer_model, bos, sp, vocabulary);
    if (status == OK)
        *model = sp;
    else
        destroy(sp);
    return status;
}

static void decode_piece(const char *piece, size_t length, enum sp_kind kind, bool first, struct text *out)
{
    unsigned int byte = 0;
    if (kind == SP_CONTROL)
        return;
    if (kind == SP_UNKNOWN) {
        text_add(out, " \xE2\x81\x87 "); // like the library
        return;
    }
    if (kind == SP_BYTE && sscanf(piece, "<0x%2x>", &byte) == 1) {
        char value = (char)byte;
        text_add_bytes(out, &value, 1);
        return;
    }
    size_t at = first && length >= 3 && memcmp(piece, SPACE, 3) == 0 ? 3 : 0;
    while (at < length) {
        bool space = length - at >= 3 && memcmp(piece + at, SPACE, 3) == 0;
        text_add_bytes(out, space ? " " : piece + at, 1);
        at += space ? 3 : 1;
    }
}

static void decode(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out)
{
    const struct sentencepiece *sp = model;
    bool first = begins && sp->adds_space;
    for (int64_t i = 0; i < count; i++) {
        size_t length = 0;
        enum sp_kind kind;
        const char *piece = sp_piece(sp->model, ids[i], &length, &kind);
        decode_piece(piece, length, kind, first, out);
        first = first && kind == SP_CONTROL;
    }
}

static bool is_special(const void *model, int32_t id)
{
    size_t length = 0;
    enum sp_kind kind;
    sp_piece(((const struct sentencepiece *)model)->model, id, &length, &kind);
    return kind == SP_CONTROL;
}

static int32_t special_id(const void *model, const char *content)
{
    const struct sentencepiece *sp = model;
    for (int32_t id = 0; id < sp_size(sp->model); id++) {
        size_t length = 0;
        enum sp_kind kind;
        const char *piece = sp_piece(sp->model, id, &length, &kind);
        if (kind == SP_CONTROL && length == strlen(content) && memcmp(piece, content, length) == 0)
            return id;
    }
    return -1;
}

#else
static enum status create(const struct tokenizer_config *config, bool bos, void **model,
                          struct vocabulary *vocabulary)
{
    (void)bos, (void)model, (void)vocabulary;
    return fail(NOT_SUPPORTED,
                "%s: a SentencePiece model needs the SentencePiece library, which this build lacks; install "
                "libsentencepiece-dev and build again with -Dsentencepiece=enabled",
                config->tokenizer_model);
}

static void destroy(void *model)
{
    (void)model;
}

static enum status encode(const void *model, void *state, const char *bytes, int64_t length,
                          struct tokens *out)
{
    (void)model, (void)state, (void)bytes, (void)length, (void)out;
    return fail(NOT_SUPPORTED, "built without SentencePiece");
}

static void decode(const void *model, const int32_t *ids, int64_t count, bool begins, struct text *out)
{
    (void)model, (void)ids, (void)count, (void)begins, (void)out;
}

static bool is_special(const void *model, int32_t id)
{
    (void)model, (void)id;
    return false;
}

static int32_t special_id(const void *model, const char *content)
{
    (void)model, (void)content;
    return -1;
}
#endif

static enum status create_plain(const struct tokenizer_config *config, void **model,
                                struct vocabulary *vocabulary)
{
    return create(config, false, model, vocabulary);
}

static enum status create_llama2(const struct tokenizer_config *config, void **model,
                                 struct vocabulary *vocabulary)
{
    return create(config, true, model, vocabulary);
}

/* The library's encoder has no state. */
static enum status encoder_create_none(const void *model, void **state)
{
    (void)model;
    *state = NULL;
    return OK;
}

static void encoder_destroy_none(void *state)
{
    (void)state;
}

static int64_t cut(const void *model, const char *bytes, int64_t length)
{
    (void)model, (void)bytes, (void)length;
    return 0;
}

const struct tokenizer_kind kind_sentencepiece = {
    .name = "GPTSentencePieceTokenizer",
    .other_name = "sentencepiece",
    .needs = TOKENIZER_MODEL,
    .model_file = "tokenizer.model",
    .create = create_plain,
    .destroy = destroy,
    .encoder_create = encoder_create_none,
    .encoder_destroy = encoder_destroy_none,
    .encode = encode,
    .special_id = special_id,
    .is_special = is_special,
    .cut = cut,
    .decode = decode,
};

const struct tokenizer_kind kind_llama2 = {
    .name = "Llama2Tokenizer",
    .other_name = "llama2",
    .needs = TOKENIZER_MODEL,
    .model_file = "tokenizer.model",
    .create = create_llama2,
    .destroy = destroy,
    .encoder_create = encoder_create_none,
    .encoder_destroy = encoder_destroy_none,
    .encode = encode,
    .special_id = special_id,
    .is_special = is_special,
    .cut = cut,
    .decode = decode,
};
