// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/data/tokenizer_cases.h"
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static enum status load(const char *type, const char *path, struct tokenizer **out)
{
    return tokenizer_create(&(struct tokenizer_config){.type = type, .tokenizer_model = path}, out);
}

/* False if the library is not built in, which the error must say. */
static bool built_in(const char *type, const char *name, struct tokenizer **out)
{
    char path[512];
    snprintf(path, sizeof path, TOKENIZER_FIXTURES "%s.model", name);
    enum status status = load(type, path, out);
    if (status == NOT_SUPPORTED)
        cr_assert(strstr(fail_text(), "libsentencepiece-dev") != NULL, "%s", fail_text());
    else
        cr_assert_eq(status, OK, "%s", fail_text());
    return status == OK;
}

Test(sentencepiece, ids_match_the_library)
{
    static const char *const names[] = {"bpe", "unigram"};
    for (int n = 0; n < 2; n++) {
        struct tokenizer *t = NULL;
        struct encoder *e = NULL;
        struct tokens ids = {0};
        struct text back = {0};
        if (!built_in("GPTSentencePieceTokenizer", names[n], &t))
            return;
        struct tokenizer_cases cases = tokenizer_cases_read(names[n]);
        cr_assert_eq(encoder_create(t, &e), OK);
        while (tokenizer_cases_next(&cases)) {
            const struct text *bytes = &cases.now.bytes;
            ids.count = 0;
            back.length = 0;
            cr_assert_eq(encoder_encode(e, bytes->chars, (int64_t)bytes->length, &ids), OK, "%s",
                         fail_text());
            tokenizer_case_check(&cases.now, &ids);
            // Bytes are tokens of this model, so it is lossless, except for its mark of a space.
            cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
            if (n == 0 && strstr(bytes->chars, "\xE2\x96\x81") == NULL)
                cr_assert(back.length == bytes->length &&
                              memcmp(text_chars(&back), bytes->chars, back.length) == 0,
                          "\"%s\" is decoded as \"%s\"", bytes->chars, text_chars(&back));
        }
        cr_assert_gt(cases.count, 35);
        tokenizer_cases_free(&cases);
        text_free(&back);
        tokens_free(&ids);
        encoder_destroy(e);
        tokenizer_destroy(t);
    }
}

Test(sentencepiece, llama2_begins_a_text_with_its_token)
{
    struct tokenizer *plain = NULL, *llama = NULL;
    struct text back = {0};
    if (!built_in("sentencepiece", "bpe", &plain))
        return;
    cr_assert(built_in("Llama2Tokenizer", "bpe", &llama));
    cr_assert_eq(tokenizer_prefix(plain)->count, 0);
    cr_assert(tokenizer_prefix(llama)->count == 1 && tokenizer_prefix(llama)->ids[0] == 1);
    cr_assert_eq(tokenizer_end_of_document(llama), 2);
    cr_assert_str_eq(tokenizer_name(llama), "Llama2Tokenizer");

    // The space before a text is removed, also after <s>, and not from ids that continue one.
    struct encoder *e = NULL;
    struct tokens ids = {0};
    cr_assert_eq(encoder_create(llama, &e), OK);
    tokens_append(&ids, tokenizer_prefix(llama)->ids, 1);
    cr_assert_eq(encoder_encode(e, "the dog", 7, &ids), OK);
    cr_assert_eq(tokenizer_decode(llama, ids.ids, ids.count, &back), OK);
    cr_assert_str_eq(back.chars, "the dog");
    cr_assert_eq(tokenizer_decode_more(llama, ids.ids, ids.count, &back), OK);
    cr_assert_str_eq(back.chars, "the dog the dog");
    tokens_free(&ids);
    text_free(&back);
    encoder_destroy(e);
    tokenizer_destroy(plain);
    tokenizer_destroy(llama);
}

Test(sentencepiece, bytes_that_are_not_utf8_become_replacement_characters)
{
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct tokens ids = {0};
    struct text back = {0};
    if (!built_in("sentencepiece", "bpe", &t))
        return;
    cr_assert_eq(encoder_create(t, &e), OK);
    cr_assert_eq(encoder_encode(e, "a\xff\0b", 4, &ids), OK, "%s", fail_text());
    cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
    cr_assert(back.length == 6 && memcmp(back.chars, "a\xEF\xBF\xBD\0b", 6) == 0);
    tokens_free(&ids);
    text_free(&back);
    encoder_destroy(e);
    tokenizer_destroy(t);
}

Test(sentencepiece, bad_models_are_refused)
{
    struct tokenizer *t = NULL;
    if (!built_in("sentencepiece", "bpe", &t))
        return;
    tokenizer_destroy(t);
    cr_assert_eq(load("sentencepiece", TOKENIZER_FIXTURES "gpt2.json", &t), BAD_DATA);
    cr_assert(strstr(fail_text(), "not a SentencePiece model") != NULL, "%s", fail_text());
    cr_assert_eq(load("llama2", "/nonexistent.model", &t), IO_ERROR);
    cr_assert_eq(load("llama2", NULL, &t), BAD_RECIPE);
    cr_assert(strstr(fail_text(), "tokenizer.tokenizer_model: its tokenizer.model") != NULL, "%s",
              fail_text());
}

Test(sentencepiece, damaged_models_are_read_or_refused)
{
    char path[] = "/tmp/cuboid-sp-XXXXXX";
    struct tokenizer *t = NULL;
    struct text model = {0};
    if (!built_in("sentencepiece", "bpe", &t))
        return;
    tokenizer_destroy(t);
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(file_read(TOKENIZER_FIXTURES "bpe.model", &model), OK);
    uint64_t seed = 3;
    for (int i = 0; i < 100; i++) {
        struct text changed = {0};
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        text_add_bytes(&changed, model.chars,
                       i % 4 == 0 ? (size_t)(seed >> 33) % model.length : model.length);
        if (changed.length > 0)
            changed.chars[(seed >> 33) % changed.length] = (char)(seed >> 25);
        cr_assert_eq(ftruncate(fd, 0), 0);
        cr_assert_eq(pwrite(fd, text_chars(&changed), changed.length, 0), (ssize_t)changed.length);
        enum status status = load("sentencepiece", path, &t);
        cr_assert(status == OK || status == BAD_DATA, "%s", fail_text());
        if (status == OK)
            tokenizer_destroy(t);
        text_free(&changed);
    }
    close(fd);
    unlink(path);
    text_free(&model);
}
