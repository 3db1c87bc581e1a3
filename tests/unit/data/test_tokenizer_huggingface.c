// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "tests/unit/data/tokenizer_cases.h"
#include "trainer/tokenizer/huggingface/regex.h"
#include "trainer/tokenizer/huggingface/split.h"
#include "trainer/tokenizer/tokenizer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURES SOURCE_ROOT "/tests/fixtures/tokenizers/"

static enum status load(const char *path, struct tokenizer **out)
{
    return tokenizer_create(&(struct tokenizer_config){.type = "hf", .tokenizer_model = path}, out);
}

static struct tokenizer *fixture(const char *name)
{
    char path[512];
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, FIXTURES "%s.json", name);
    cr_assert_eq(load(path, &t), OK, "%s", fail_text());
    return t;
}

static void encode(struct encoder *e, const char *bytes, int64_t length, struct tokens *out)
{
    cr_assert_eq(encoder_encode(e, bytes, length, out), OK, "%s", fail_text());
}

/* Compares prefix + ids with the case. */
static void check_ids(const struct tokenizer *t, const struct tokens *ids, const struct tokenizer_case *c)
{
    struct tokens all = {0};
    const struct tokens *prefix = tokenizer_prefix(t);
    tokens_append(&all, prefix->ids, prefix->count);
    tokens_append(&all, ids->ids, ids->count);
    tokenizer_case_check(c, &all);
    tokens_free(&all);
}

static void check_case(const struct tokenizer *t, struct encoder *e, const struct tokenizer_case *c)
{
    struct tokens ids = {0};
    const int64_t all = (int64_t)c->bytes.length;
    for (int again = 0; again < 2; again++) { // from the cache, the second time
        ids.count = 0;
        encode(e, c->bytes.chars, all, &ids);
        check_ids(t, &ids, c);
    }
    for (int64_t length = 1; length < all; length++) {
        int64_t cut = encoder_cut(e, c->bytes.chars, length);
        cr_assert(cut >= 0 && cut <= length);
        if (cut == 0)
            continue;
        ids.count = 0;
        encode(e, c->bytes.chars, cut, &ids);
        encode(e, c->bytes.chars + cut, all - cut, &ids);
        check_ids(t, &ids, c);
    }
    tokens_free(&ids);
}

Test(huggingface, ids_match_the_library)
{
    static const char *const names[] = {"gpt2", "llama3", "qwen", "gpt4o", "deepseek", "merged"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct tokenizer *t = fixture(names[n]);
        struct encoder *e = NULL;
        struct tokenizer_cases cases = tokenizer_cases_read(names[n]);
        cr_assert_eq(encoder_create(t, &e), OK);
        while (tokenizer_cases_next(&cases))
            check_case(t, e, &cases.now);
        cr_assert_gt(cases.count, 40);
        tokenizer_cases_free(&cases);
        encoder_destroy(e);
        tokenizer_destroy(t);
    }
}

Test(huggingface, end_of_document_and_size)
{
    struct tokenizer *t = fixture("llama3");
    cr_assert_str_eq(tokenizer_name(t), "HuggingFaceTokenizer");
    cr_assert_eq(tokenizer_vocab_size(t), 461);
    cr_assert_eq(tokenizer_end_of_document(t), 1);
    cr_assert_eq(tokenizer_prefix(t)->count, 1);
    cr_assert_eq(tokenizer_suffix(t)->count, 0);
    tokenizer_destroy(t);
}

/* Text with words, spaces, numbers, characters of all lengths and, if `valid` is false, any bytes. */
static int64_t random_text(uint64_t *seed, bool valid, char *out, int64_t capacity)
{
    static const char *const parts[] = {"a",      "Zq",
                                        " ",      "  ",
                                        "\n",     "\r\n",
                                        "\t",     "'s",
                                        "'LL",    "\xC5\xBF",
                                        "1",      "234",
                                        "!",      "_",
                                        "\"",     "é",
                                        "東",     "한",
                                        "\u00a0", "\u180e",
                                        "½",      "👍",
                                        "\u0301", "\u2028",
                                        "'",      "<|end_of_text|>",
                                        "ß",      "\u0660"};
    int64_t length = 0;
    while (length + 32 < capacity) {
        *seed = *seed * 6364136223846793005U + 1442695040888963407U;
        uint64_t draw = *seed >> 33;
        if (!valid && draw % 16 == 0) {
            out[length++] = (char)(draw >> 8);
            continue;
        }
        const char *part = parts[draw % (sizeof parts / sizeof *parts)];
        memcpy(out + length, part, strlen(part));
        length += (int64_t)strlen(part);
    }
    return length;
}

/* What remains of a text in a tokenizer like DeepSeek's: bytes that never occur in UTF-8 become U+FFFD. */
static void without_unused_bytes(const char *bytes, int64_t length, struct text *out)
{
    out->length = 0;
    for (int64_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        if (byte == 0xC0 || byte == 0xC1 || byte >= 0xF5)
            text_add(out, "\uFFFD");
        else
            text_add_bytes(out, bytes + i, 1);
    }
}

Test(huggingface, decoding_is_lossless_for_any_bytes)
{
    static const char *const names[] = {"llama3", "gpt4o", "deepseek"};
    char text[1024];
    uint64_t seed = 1;
    for (int n = 0; n < 3; n++) {
        struct tokenizer *t = fixture(names[n]);
        struct encoder *e = NULL;
        struct tokens ids = {0};
        struct text back = {0}, expected = {0};
        cr_assert_eq(encoder_create(t, &e), OK);
        for (int i = 0; i < 200; i++) {
            int64_t length = random_text(&seed, false, text, 64 + i * 4);
            ids.count = 0;
            back.length = 0;
            encode(e, text, length, &ids);
            cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
            expected.length = 0;
            if (strcmp(names[n], "deepseek") == 0)
                without_unused_bytes(text, length, &expected);
            else
                text_add_bytes(&expected, text, (size_t)length);
            cr_assert_eq(back.length, expected.length);
            cr_assert_eq(memcmp(text_chars(&back), text_chars(&expected), back.length), 0);
        }
        text_free(&back);
        text_free(&expected);
        tokens_free(&ids);
        encoder_destroy(e);
        tokenizer_destroy(t);
    }
}

Test(huggingface, a_run_of_invalid_bytes_is_a_word_between_texts)
{
    struct tokenizer *t = fixture("llama3");
    struct encoder *e = NULL;
    struct tokens whole = {0}, parts = {0};
    cr_assert_eq(encoder_create(t, &e), OK);
    encode(e, "the dog  \xff\xfe  the", 16, &whole);
    encode(e, "the dog  ", 9, &parts);
    encode(e, "\xff\xfe", 2, &parts);
    encode(e, "  the", 5, &parts);
    cr_assert_eq(whole.count, parts.count);
    cr_assert_eq(memcmp(whole.ids, parts.ids, (size_t)whole.count * sizeof *whole.ids), 0);
    tokens_free(&whole);
    tokens_free(&parts);
    encoder_destroy(e);
    tokenizer_destroy(t);
}

/* A built-in pattern and the same one through PCRE2 give the same words. */
Test(huggingface, built_in_patterns_match_pcre2)
{
    static const char *const contractions = "'s|'t|'re|'ve|'m|'ll|'d";
    static const char *const formats[] = {
        "%s| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:%s)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
        "\\s+(?!\\S)|\\s+",
        "(?i:%s)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
        "\\s+(?!\\S)|\\s+"};
    struct split_scratch *scratch = NULL;
    scratch = split_scratch_create();
    for (int f = 0; f < 3; f++) {
        char pattern[256];
        struct split split = {.behavior = SPLIT_ISOLATED};
        struct pcre2_real_code_8 *regex = NULL;
        snprintf(pattern, sizeof pattern, formats[f], contractions);
        cr_assert_eq(split_compile(pattern, strlen(pattern), false, &split), OK);
        cr_assert(split_is_words(&split));
        if (regex_compile(pattern, strlen(pattern), false, &regex) == NOT_SUPPORTED)
            break;
        uint64_t seed = (uint64_t)f;
        for (int i = 0; i < 500; i++) {
            char text[512];
            int64_t length = random_text(&seed, true, text, 64 + i % 448), begin = 0, end = 0;
            split_scratch_begin(scratch, length);
            for (int64_t at = 0; at < length; at = end) {
                cr_assert_eq(regex_find(regex, scratch, text, length, at, &begin, &end), OK);
                cr_assert_eq(begin, at);
                cr_assert_eq(end - at, split_word(&split, text + at, length - at), "%.*s", (int)length, text);
            }
        }
        regex_free(regex);
        split_free(&split);
    }
    split_scratch_destroy(scratch);
}

/* ---- files ---- */

struct folder {
    char path[32], file[64], config[64];
};

static struct folder folder_make_temporary(void)
{
    struct folder f = {.path = "/tmp/cuboid-hf-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/tokenizer.json", f.path);
    snprintf(f.config, sizeof f.config, "%s/tokenizer_config.json", f.path);
    return f;
}

static void folder_remove_temporary(const struct folder *f)
{
    unlink(f->file);
    unlink(f->config);
    cr_assert_eq(rmdir(f->path), 0);
}

static void write_file(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

/* Writes the fixture with the first `from` replaced by `to`. */
static void write_changed(const struct folder *f, const char *name, const char *from, const char *to)
{
    char path[512];
    struct text text = {0}, changed = {0};
    snprintf(path, sizeof path, FIXTURES "%s.json", name);
    cr_assert_eq(file_read(path, &text), OK);
    const char *at = strstr(text.chars, from);
    cr_assert_not_null(at, "%s", from);
    text_add_bytes(&changed, text.chars, (size_t)(at - text.chars));
    text_add(&changed, "%s%s", to, at + strlen(from));
    write_file(f->file, changed.chars, changed.length);
    text_free(&text);
    text_free(&changed);
}

Test(huggingface, bad_files_are_refused_with_file_place_and_value)
{
    static const struct {
        const char *name, *from, *to, *message;
    } bad[] = {
        {"llama3", "\"BPE\"", "\"WordPiece\"", "model.type \"WordPiece\" is not supported"},
        {"llama3", "\"BPE\"", "\"Unigram\"", "GPTSentencePieceTokenizer"},
        {"llama3", "\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback true"},
        {"llama3", "\"dropout\":null", "\"dropout\":0.1", "model.dropout 0.1"},
        {"llama3", "\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
         "pre_tokenizer.type \"Metaspace\" is not supported"},
        {"llama3", "\"type\":\"Split\"", "\"type\":\"Whitespace\"",
         "pre_tokenizer.pretokenizers[0].type \"Whitespace\" is not supported"},
        {"llama3", "\"Isolated\"", "\"Joined\"", "pre_tokenizer.pretokenizers[0].behavior \"Joined\""},
        {"llama3", "{\"Regex\":\"(?i:", "{\"Regex\":\"(?i:(", "pattern \"(?i:("},
        {"llama3", "{\"Regex\":\"", "{\"Regex\":\"x*|", "matches the empty string"},
        {"llama3", "{\"Regex\":\"", "{\"Regex\":\"[a&&b]|", "has && inside a character class"},
        {"llama3", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Fuse\"",
         "decoder.type \"Fuse\""},
        {"llama3", "\"TemplateProcessing\"", "\"RobertaProcessing\"",
         "post_processor.type \"RobertaProcessing\""},
        {"llama3", "\"ids\":[0]", "\"ids\":[99999]", "has id 99999, which is outside the vocabulary of 461"},
        {"qwen", "\"normalizer\":{\"type\":\"NFC\"", "\"normalizer\":{\"type\":\"Lowercase\"",
         "normalizer.type \"Lowercase\""},
        {"llama3", "\"!\":2", "\"!\":3", "both have id 3"},
        {"llama3", "\"!\":2", "\"!\":99999999999", "token \"!\" has id 99999999999; ids are 0 to"},
        {"llama3", "\"!\":2", "\"!\":9999999", "the largest id is 9999999, but there are only "},
        {"llama3", "\"!\":2", "\"!\":-1", "token \"!\" has id -1"},
        {"llama3", "\"!\":2", "\"!\":\"2\"", "token \"!\" has no integer id"},
        {"llama3", "\"!\":2", "\"\\u6771\":2", "no token is the single byte 0x21"},
        {"llama3", "\"id\":1,", "\"id\":0,", "are duplicates"},
        {"llama3", "\"id\":1,", "\"id\":7,", "but id 1 in model.vocab"},
        {"llama3", "\"id\":1,", "\"id\":4294967297,", "has id 4294967297"},
        {"llama3", "\"merges\":[[\"", "\"merges\":[[\"\u6771", "model.merges[0]"},
        {"gpt2", "\"merges\":[\"", "\"merges\":[\"a b c\",\"", "model.merges[0] is not two tokens"},
        {"gpt2", "\"merges\":[\"", "\"merges\":[\"a Zq\",\"", "the second token is not in model.vocab"},
        {"gpt2", "\"merges\":[", "\"merges\":7,\"unused\":[", "model.merges is not a list"},
        {"llama3", "\"byte_fallback\":false", "\"byte_fallback\":5",
         "model: \"byte_fallback\" is not true or false"},
        {"llama3", "\"dropout\":null", "\"dropout\":\"x\"", "model: \"dropout\" is not a number or null"},
        {"llama3", "\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":7",
         "pre_tokenizer: \"type\" is not a string"},
        {"llama3", "\"special\":true", "\"special\":\"x\"", "added_tokens: \"special\" is not true or false"},
        {"llama3", "\"use_regex\":false", "\"use_regex\":null",
         "pre_tokenizer: \"use_regex\" is not true or false"},
        {"gpt2", "\"model\":", "\"modle\":", "no model section"},
        {"gpt2", "{", "{{", "line 1, column"},
    };
    struct folder f = folder_make_temporary();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tokenizer *t = NULL;
        write_changed(&f, bad[i].name, bad[i].from, bad[i].to);
        cr_assert_eq(load(f.file, &t), BAD_DATA, "%s: %s", bad[i].to, fail_text());
        cr_assert(strstr(fail_text(), bad[i].message) != NULL, "\"%s\" is not in: %s", bad[i].message,
                  fail_text());
        cr_assert(strstr(fail_text(), f.file) != NULL, "%s", fail_text());
    }
    folder_remove_temporary(&f);
}

/* The configuration's, or else the one that the post-processor adds. */
Test(huggingface, the_beginning_of_a_text)
{
    static const struct {
        const char *config;
        int32_t begin;
    } cases[] = {{NULL, 0},
                 {"{}", 0},
                 {"{\"bos_token\": null}", 0},
                 {"{\"bos_token\": \"!\"}", 2},
                 {"{\"bos_token\": {\"content\": \"<|end_of_text|>\"}}", 1},
                 {"{\"bos_token\": \"<|none|>\"}", 0}};
    struct folder f = folder_make_temporary();
    struct tokenizer *t = NULL;
    write_changed(&f, "llama3", "{", "{");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].config != NULL)
            write_file(f.config, cases[i].config, strlen(cases[i].config));
        cr_assert_eq(load(f.file, &t), OK, "%s", fail_text());
        cr_assert_eq(tokenizer_begin_of_text(t), cases[i].begin, "%s", cases[i].config);
        cr_assert_eq(tokenizer_end_of_document(t), 1);
        tokenizer_destroy(t);
    }
    folder_remove_temporary(&f);
    t = fixture("qwen");
    cr_assert_eq(tokenizer_begin_of_text(t), -1);
    tokenizer_destroy(t);
}

Test(huggingface, the_end_of_a_document_is_that_of_the_configuration)
{
    struct folder f = folder_make_temporary();
    struct tokenizer *t = NULL;
    write_changed(&f, "llama3", "{", "{");
    // As transformers writes it, with a length that is no 64-bit integer.
    const char *named = "{\"eos_token\": \"<|begin_of_text|>\", "
                        "\"model_max_length\": 1000000000000000019884624838656}",
               *object = "{\"eos_token\": {\"content\": \"!\"}}", *unknown = "{\"eos_token\": \"<|stop|>\"}";
    write_file(f.config, named, strlen(named));
    cr_assert_eq(load(f.path, &t), OK, "%s", fail_text()); // the folder
    cr_assert_eq(tokenizer_end_of_document(t), 0);
    tokenizer_destroy(t);
    write_file(f.config, object, strlen(object));
    cr_assert_eq(load(f.file, &t), OK, "%s", fail_text());
    cr_assert_eq(tokenizer_end_of_document(t), 2);
    tokenizer_destroy(t);
    write_file(f.config, unknown, strlen(unknown));
    cr_assert_eq(load(f.file, &t), BAD_DATA);
    cr_assert(strstr(fail_text(), "eos_token \"<|stop|>\" is not a token") != NULL, "%s", fail_text());
    static const char *const wrong[] = {"{\"eos_token\": 5}", "{\"eos_token\": \"\"}",
                                        "{\"eos_token\": {\"content\": 5}}", "[]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_file(f.config, wrong[i], strlen(wrong[i]));
        cr_assert_eq(load(f.file, &t), BAD_DATA, "%s", wrong[i]);
        cr_assert(strstr(fail_text(), f.config) != NULL, "%s", fail_text());
    }
    folder_remove_temporary(&f);
    cr_assert_eq(load("/nonexistent/tokenizer.json", &t), IO_ERROR);
    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "hf"}, &t), BAD_RECIPE);
    cr_assert(strstr(fail_text(), "tokenizer.tokenizer_model") != NULL, "%s", fail_text());
}

/* A merge that needs a token of a later one: "Zq Z" is possible as soon as the first "Z q" is merged. */
Test(huggingface, pairs_are_merged_one_by_one)
{
    struct folder f = folder_make_temporary();
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct tokens ids = {0};
    struct text text = {0}, changed = {0};
    write_changed(&f, "gpt2", "\"vocab\":{", "\"vocab\":{\"Zq\":470,\"ZqZ\":471,");
    cr_assert_eq(file_read(f.file, &text), OK);
    const char *merges = "\"merges\":[", *at = strstr(text.chars, merges);
    cr_assert_not_null(at);
    text_add_bytes(&changed, text.chars, (size_t)(at - text.chars));
    text_add(&changed, "%s\"Zq Z\",\"Z q\",%s", merges, at + strlen(merges));
    write_file(f.file, changed.chars, changed.length);
    cr_assert_eq(load(f.file, &t), OK, "%s", fail_text());
    cr_assert_eq(encoder_create(t, &e), OK);
    encode(e, "ZqZq", 4, &ids);
    cr_assert_eq(ids.count, 2);
    cr_assert_eq(ids.ids[0], 471);

    char many[400]; // long words have an algorithm of their own
    for (int i = 0; i < 400; i++)
        many[i] = "ZqZq"[i % 4];
    ids.count = 0;
    encode(e, many, 400, &ids);
    cr_assert_eq(ids.ids[0], 471);
    text_free(&text);
    text_free(&changed);
    tokens_free(&ids);
    encoder_destroy(e);
    tokenizer_destroy(t);
    folder_remove_temporary(&f);
}

/* Encodes a text with a step with this pattern before the one of GPT-4o. */
static enum status encode_with(const char *pattern, const char *text, int64_t length, struct tokens *out)
{
    struct folder f = folder_make_temporary();
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    char replacement[256];
    snprintf(replacement, sizeof replacement,
             "{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"},"
             "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"",
             pattern);
    write_changed(&f, "gpt4o", "{\"Regex\":\"", replacement);
    enum status status = load(f.file, &t);
    if (status == OK) {
        cr_assert_eq(encoder_create(t, &e), OK);
        status = encoder_encode(e, text, length, out);
    }
    encoder_destroy(e);
    tokenizer_destroy(t);
    folder_remove_temporary(&f);
    return status;
}

/* One match that takes exponential time; many that take quadratic time together, each below PCRE2's limit:
 * 15 s of computing where 1.5 s are allowed. */
Test(huggingface, an_expensive_pattern_ends_with_an_error)
{
    enum { MANY = 100000 };
    static const struct {
        const char *pattern;
        int64_t length;
        bool fails;
    } cases[] = {{"(?:(?:a|aa)+)+[bc]", 64, true},
                 {"(?:(?:a|aa)+)+[bc]", 12, false},
                 {"a(?R)?b|c", MANY, true},
                 {"a(?R)?b|c", 2000, false}};
    char *text = malloc(MANY);
    memset(text, 'a', MANY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokens ids = {0};
        const enum status status = encode_with(cases[i].pattern, text, cases[i].length, &ids);
        if (status != NOT_SUPPORTED)
            cr_assert_eq(status, cases[i].fails ? BAD_DATA : OK, "%s of %d: %s", cases[i].pattern,
                         (int)cases[i].length, fail_text());
        if (status == BAD_DATA)
            cr_assert(strstr(fail_text(), "pretokenizers[0].pattern") != NULL &&
                          strstr(fail_text(), "limit") != NULL,
                      "%s", fail_text());
        tokens_free(&ids);
    }
    free(text);
}

Test(huggingface, damaged_files_are_read_or_refused)
{
    static const char *const names[] = {"gpt2", "llama3", "merged"};
    struct folder f = folder_make_temporary();
    int refused = 0;
    uint64_t seed = 7;
    for (int i = 0; i < 300; i++) {
        char path[512], sample[300];
        struct text text = {0};
        snprintf(path, sizeof path, FIXTURES "%s.json", names[i % 3]);
        cr_assert_eq(file_read(path, &text), OK);
        for (int change = 0; change < 3; change++) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            size_t at = (size_t)(seed >> 33) % text.length;
            text.chars[at] = "0129\"{}[],:abĠ\\-e"[(seed >> 20) % 16];
        }
        write_file(f.file, text.chars, i % 10 == 0 ? text.length / 2 : text.length);
        struct tokenizer *t = NULL;
        enum status status = load(f.file, &t);
        cr_assert(status == OK || status == BAD_DATA || status == NOT_SUPPORTED, "%s", fail_text());
        refused += status != OK;
        if (status == OK) {
            struct encoder *e = NULL;
            struct tokens ids = {0};
            struct text back = {0};
            cr_assert_eq(encoder_create(t, &e), OK);
            int64_t length = random_text(&seed, false, sample, sizeof sample);
            encode(e, sample, length, &ids);
            cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
            text_free(&back);
            tokens_free(&ids);
            encoder_destroy(e);
        }
        tokenizer_destroy(t);
        text_free(&text);
    }
    cr_assert_gt(refused, 50);
    folder_remove_temporary(&f);
}
