// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "tests/fixtures/bpe_fixture.h"
#include "tests/support/sanitized.h"
#include "trainer/tokenizer/bpe.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_unicode.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct files {
    char folder[32], vocab[48], merges[48];
};

static void write_file(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

static struct files files_make(const char *vocab, const char *merges)
{
    struct files f = {.folder = "/tmp/cuboid-bpe-XXXXXX"};
    cr_assert_not_null(mkdtemp(f.folder));
    snprintf(f.vocab, sizeof f.vocab, "%s/vocab.json", f.folder);
    snprintf(f.merges, sizeof f.merges, "%s/merges.txt", f.folder);
    write_file(f.vocab, vocab, strlen(vocab));
    write_file(f.merges, merges, strlen(merges));
    return f;
}

static void files_free(const struct files *f)
{
    unlink(f->vocab);
    unlink(f->merges);
    cr_assert_eq(rmdir(f->folder), 0);
}

static enum status load(const struct files *f, struct tokenizer **out)
{
    return tokenizer_create(
        &(struct tokenizer_config){.type = "gpt2", .vocab_file = f->vocab, .merge_file = f->merges}, out);
}

Test(bpe, ids_match_an_independent_implementation)
{
    struct files f = files_make(fixture_vocab, fixture_merges);
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    cr_assert_eq(load(&f, &t), OK, "%s", fail_text());
    cr_assert_eq(encoder_create(t, &e), OK);
    cr_assert_str_eq(tokenizer_name(t), "GPT2BPE");
    cr_assert_eq(tokenizer_end_of_document(t), tokenizer_vocab_size(t) - 1);
    for (size_t i = 0; i < sizeof fixture_cases / sizeof *fixture_cases; i++)
        for (int again = 0; again < 2; again++) { // from the cache, the second time
            const struct fixture_case *c = &fixture_cases[i];
            struct tokens ids = {0};
            struct text back = {0};
            cr_assert_eq(encoder_encode(e, c->bytes, c->length, &ids), OK);
            cr_assert_eq(ids.count, c->count, "case %zu: %d tokens, not %d", i, (int)ids.count, c->count);
            for (int k = 0; k < c->count; k++)
                cr_assert_eq(ids.ids[k], c->ids[k], "case %zu, token %d: %d, not %d", i, k, ids.ids[k],
                             c->ids[k]);
            cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
            cr_assert_eq(back.length, (size_t)c->length);
            cr_assert_eq(memcmp(text_chars(&back), c->bytes, back.length), 0);
            text_free(&back);
            tokens_free(&ids);
        }
    struct text end = {0};
    int32_t id = tokenizer_end_of_document(t);
    cr_assert_eq(tokenizer_decode(t, &id, 1, &end), OK);
    cr_assert_str_eq(end.chars, "<|endoftext|>");
    text_free(&end);
    encoder_destroy(e);
    tokenizer_destroy(t);
    files_free(&f);
}

/* More words than the cache holds, twice: evicted words are encoded again. */
Test(bpe, clearing_the_cache_does_not_change_ids)
{
    enum { WORDS = 150000 };
    struct files f = files_make(fixture_vocab, fixture_merges);
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    struct bpe *bpe = NULL;
    struct bpe_scratch *scratch = NULL;
    cr_assert_eq(load(&f, &t), OK, "%s", fail_text());
    cr_assert_eq(encoder_create(t, &e), OK);
    cr_assert_eq(bpe_load(f.vocab, f.merges, &bpe), OK);
    scratch = bpe_scratch_create();
    struct tokens got = {0}, expected = {0};
    for (int i = 0; i < 2 * WORDS; i++) {
        char word[16];
        int length = snprintf(word, sizeof word, " %d", i % WORDS * 7919 % WORDS);
        cr_assert_eq(encoder_encode(e, word, length, &got), OK);
        bpe_encode_word(bpe, scratch, word, length, &expected);
        cr_assert_eq(got.count, expected.count);
    }
    cr_assert_eq(memcmp(got.ids, expected.ids, (size_t)got.count * sizeof *got.ids), 0);
    tokens_free(&got);
    tokens_free(&expected);
    bpe_scratch_destroy(scratch);
    bpe_free(bpe);
    encoder_destroy(e);
    tokenizer_destroy(t);
    files_free(&f);
}

/* Random parts of text, with every kind of space, mark and invalid byte at their ends. */
Test(bpe, cutting_the_text_does_not_change_ids)
{
    static const char *const parts[] = {
        " ", " ", "  ",  "\n", "\n\n", "\t",       "\xC2\xA0",     "\xE3\x80\x80", "the",  "it's",
        "'", "s", "'ll", "12", "!?",   "\xC3\xA9", "\xE6\x9D\xB1", "\xE6\x9D",     "\xFF", "\xC2\x85"};
    struct files f = files_make(fixture_vocab, fixture_merges);
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    cr_assert_eq(load(&f, &t), OK, "%s", fail_text());
    cr_assert_eq(encoder_create(t, &e), OK);
    unsigned seed = 3;
    int cuts = 0;
    for (int trial = 0; trial < sampled(300); trial++) {
        struct text text = {0};
        struct tokens whole = {0}, cut = {0};
        for (int i = 0; i < 200; i++) {
            seed = seed * 1664525U + 1013904223U;
            text_add(&text, "%s", parts[(seed >> 10) % (sizeof parts / sizeof *parts)]);
        }
        cr_assert_eq(encoder_encode(e, text.chars, (int64_t)text.length, &whole), OK);
        for (int64_t at = 0, have = 0, length = (int64_t)text.length; at < length;) {
            seed = seed * 1664525U + 1013904223U;
            have += 1 + (seed >> 10) % 30;
            have = at + have < length ? have : length - at;
            int64_t now = at + have < length ? encoder_cut(e, text.chars + at, have) : have;
            cr_assert(now >= 0 && now <= have);
            cr_assert_eq(encoder_encode(e, text.chars + at, now, &cut), OK);
            cuts += now > 0;
            at += now;
            have -= now;
        }
        cr_assert_eq(cut.count, whole.count);
        cr_assert_eq(memcmp(cut.ids, whole.ids, (size_t)cut.count * sizeof *cut.ids), 0);
        tokens_free(&whole);
        tokens_free(&cut);
        text_free(&text);
    }
    cr_assert_gt(cuts, sampled(300) * 10);
    encoder_destroy(e);
    tokenizer_destroy(t);
    files_free(&f);
}

enum { PAIRS = 60, PART_BYTES = 16 };

/* Merges over a, b and c in any order, so that a merge may need the result of a later one, and two may
 * make the same token. */
struct random_merges {
    char left[PAIRS][PART_BYTES], right[PAIRS][PART_BYTES];
    int count;
};

static unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 9;
}

static void make_random_merges(struct random_merges *w, unsigned seed)
{
    char known[PAIRS + 3][PART_BYTES] = {"a", "b", "c"};
    w->count = 0;
    while (w->count < PAIRS) {
        const char *left = known[next_random(&seed) % (unsigned)(w->count + 3)];
        const char *right = known[next_random(&seed) % (unsigned)(w->count + 3)];
        bool usable = strlen(left) + strlen(right) < 9;
        for (int i = 0; i < w->count; i++)
            usable = usable && (strcmp(left, w->left[i]) != 0 || strcmp(right, w->right[i]) != 0);
        if (!usable)
            continue;
        memcpy(w->left[w->count], left, PART_BYTES);
        memcpy(w->right[w->count], right, PART_BYTES);
        memcpy(known[w->count + 3], left, strlen(left));
        memcpy(known[w->count + 3] + strlen(left), right, strlen(right));
        w->count++;
    }
    for (int i = PAIRS - 1; i > 0; i--) {
        int j = (int)(next_random(&seed) % (unsigned)(i + 1));
        char swap[2][PART_BYTES];
        memcpy(swap[0], w->left[i], PART_BYTES);
        memcpy(swap[1], w->right[i], PART_BYTES);
        memcpy(w->left[i], w->left[j], PART_BYTES);
        memcpy(w->right[i], w->right[j], PART_BYTES);
        memcpy(w->left[j], swap[0], PART_BYTES);
        memcpy(w->right[j], swap[1], PART_BYTES);
    }
}

/* The fixture's single bytes, then the results of the merges, then the end of text. */
static struct files files_of_random_merges(const struct random_merges *w)
{
    struct text vocab = {0}, merges = {0};
    const char *end = fixture_vocab;
    for (int i = 0; i < 256; i++) // to the comma after the 256th token
        end = strchr(strstr(end + 1, ": "), ',');
    text_add_bytes(&vocab, fixture_vocab, (size_t)(end - fixture_vocab));
    int id = 256;
    for (int i = 0; i < w->count; i++) {
        char token[2 * PART_BYTES + 8];
        snprintf(token, sizeof token, "\"%s%s\":", w->left[i], w->right[i]);
        if (strstr(vocab.chars, token) == NULL)
            text_add(&vocab, ", %s %d", token, id++);
        text_add(&merges, "%s %s\n", w->left[i], w->right[i]);
    }
    text_add(&vocab, ", \"<|endoftext|>\": %d}", id);
    struct files f = files_make(vocab.chars, merges.chars);
    text_free(&vocab);
    text_free(&merges);
    return f;
}

/* GPT-2's own algorithm on strings. The tokens are separated by "|". */
static void merge_strings(const struct random_merges *w, const char *word, struct text *out)
{
    int count = (int)strlen(word);
    char(*tokens)[PART_BYTES] = calloc((size_t)count + 1, PART_BYTES);
    for (int i = 0; i < count; i++)
        tokens[i][0] = word[i];
    for (;;) {
        int best = w->count;
        for (int i = 0; i + 1 < count; i++)
            for (int m = 0; m < best; m++)
                if (strcmp(tokens[i], w->left[m]) == 0 && strcmp(tokens[i + 1], w->right[m]) == 0)
                    best = m;
        if (best == w->count)
            break;
        int kept = 0;
        for (int i = 0; i < count; i++, kept++) {
            char joined[PART_BYTES];
            snprintf(joined, sizeof joined, "%s", tokens[i]);
            if (i + 1 < count && strcmp(tokens[i], w->left[best]) == 0 &&
                strcmp(tokens[i + 1], w->right[best]) == 0)
                snprintf(joined, sizeof joined, "%.7s%.8s", w->left[best], tokens[++i]);
            memcpy(tokens[kept], joined, PART_BYTES);
        }
        count = kept;
    }
    for (int i = 0; i < count; i++)
        text_add(out, "%s|", tokens[i]);
    free(tokens);
}

Test(bpe, merges_run_in_rounds_for_any_ranks)
{
    for (unsigned trial = 0; trial < 40; trial++) {
        struct random_merges w;
        make_random_merges(&w, trial);
        struct files f = files_of_random_merges(&w);
        struct bpe *bpe = NULL;
        struct bpe_scratch *scratch = NULL;
        cr_assert_eq(bpe_load(f.vocab, f.merges, &bpe), OK, "%s", fail_text());
        scratch = bpe_scratch_create();
        unsigned seed = trial + 1000;
        for (int length = 1; length < 400; length += length < 40 ? 1 : 29) { // short words and long ones
            char word[401] = {0};
            for (int i = 0; i < length; i++)
                word[i] = "aabbc"[next_random(&seed) % 5];
            struct text expected = {0}, got = {0};
            struct tokens ids = {0};
            merge_strings(&w, word, &expected);
            bpe_encode_word(bpe, scratch, word, length, &ids);
            for (int64_t i = 0; i < ids.count; i++) {
                int64_t begin = bpe->starts[ids.ids[i]], end = bpe->starts[ids.ids[i] + 1];
                text_add(&got, "%.*s|", (int)(end - begin), bpe->bytes + begin);
            }
            cr_assert_str_eq(text_chars(&got), text_chars(&expected), "trial %u, \"%s\"", trial, word);
            text_free(&expected);
            text_free(&got);
            tokens_free(&ids);
        }
        bpe_scratch_destroy(scratch);
        bpe_free(bpe);
        files_free(&f);
    }
}

Test(bpe, character_classes)
{
    const struct {
        const char *bytes;
        enum character kind;
        int used;
    } cases[] = {
        {"a", CHARACTER_LETTER, 1},
        {"\xC3\xA9", CHARACTER_LETTER, 2},
        {"\xE4\xB8\xAD", CHARACTER_LETTER, 3},
        {"7", CHARACTER_NUMBER, 1},
        {"\xC2\xBD", CHARACTER_NUMBER, 2},
        {"\xE2\x85\xA7", CHARACTER_NUMBER, 3},
        {" ", CHARACTER_SPACE, 1},
        {"\x0B", CHARACTER_SPACE, 1},
        {"\xC2\x85", CHARACTER_SPACE, 2},
        {"\xC2\xA0", CHARACTER_SPACE, 2},
        {"\xE3\x80\x80", CHARACTER_SPACE, 3},
        {"\xE2\x80\xA8", CHARACTER_SPACE, 3},
        {"\x1C", CHARACTER_OTHER, 1},
        {"_", CHARACTER_OTHER, 1},
        {"\xF0\x9F\x91\x8D", CHARACTER_OTHER, 4},
        {"\xE2\x80\x8B", CHARACTER_OTHER, 3},
        {"\xCC\x81", CHARACTER_OTHER, 2},
        {"\xFF", CHARACTER_OTHER, 1},
        {"\xC3", CHARACTER_OTHER, 1},
        {"\xE4\xB8", CHARACTER_OTHER, 1},
        {"\xED\xA0\x80", CHARACTER_OTHER, 1},
        {"\xC0\x80", CHARACTER_OTHER, 1},
        {"\xF4\x90\x80\x80", CHARACTER_OTHER, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t used = 0;
        cr_assert_eq(character_at(cases[i].bytes, (int64_t)strlen(cases[i].bytes), &used), cases[i].kind,
                     "case %zu", i);
        cr_assert_eq(used, cases[i].used, "case %zu", i);
    }
}

/* Replaces the first `from` of a text. */
static void swap_once(struct text *out, const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "no %s", from);
    text_free(out);
    text_add_bytes(out, text, (size_t)(at - text));
    text_add(out, "%s%s", to, at + strlen(from));
}

Test(bpe, malformed_files_are_named)
{
    struct files f = files_make(fixture_vocab, fixture_merges);
    const struct {
        bool in_vocab;
        const char *from, *to, *named;
    } bad[] = {
        {true, "{", "[", "vocab.json, line 1, column "},
        {true, "\"!\": 0", "\"!\": 0,", "vocab.json, line 1, column "},
        {true, "\"!\": 0", "\"!\": 1", "both have id 1"},
        {true, "\"!\": 0", "\"!\": -1", "token \"!\" has id -1"},
        {true, "\"!\": 0", "\"!\": 99999999999", "token \"!\" has id 99999999999"},
        {true, "\"!\": 0", "\"!\": 0.5", "token \"!\" has something that is no whole number"},
        {true, "\"!\": 0", "\"!\": \"0\"", "token \"!\" has something that is no whole number"},
        {true, "\"!\": 0", "\"!!!\": 0", "no token is the single byte 0x21"},
        {true, "\"!\": 0", "\"\": 0", "is empty"},
        {true, "\"!\": 0", "\"\\u4e2d\": 0", "represents no byte"},
        {true, "\"!\": 0", "\"\\u0200\": 0", "represents no byte"},
        {true, "<|endoftext|>", "<|end|>", "no token is \"<|endoftext|>\""},
        {false, "\n", "\nxyz\n", "merges.txt, line 2: \"xyz\" is not two tokens"},
        {false, "\n", "\na b c\n", "merges.txt, line 2: \"a b c\" is not two tokens"},
        {false, "\n", "\n a\n", "merges.txt, line 2: \" a\" is not two tokens"},
        {false, "\n", "\na \n", "merges.txt, line 2: \"a \" is not two tokens"},
        {false, "\n", "\nqq q\n", "merges.txt, line 2: \"qq q\": the first token is not in "},
        {false, "\n", "\nq qq\n", "merges.txt, line 2: \"q qq\": the second token is not in "},
        {false, "\n", "\nq z\n", "merges.txt, line 2: \"q z\": their concatenation is not in "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct text text = {0};
        struct tokenizer *t = NULL;
        swap_once(&text, bad[i].in_vocab ? fixture_vocab : fixture_merges, bad[i].from, bad[i].to);
        write_file(bad[i].in_vocab ? f.vocab : f.merges, text.chars, text.length);
        cr_assert_eq(load(&f, &t), BAD_DATA, "case %zu", i);
        cr_assert(strstr(fail_text(), bad[i].named) != NULL, "case %zu: %s", i, fail_text());
        write_file(f.vocab, fixture_vocab, strlen(fixture_vocab));
        write_file(f.merges, fixture_merges, strlen(fixture_merges));
        text_free(&text);
    }
    files_free(&f);
}

Test(bpe, wrong_kinds_of_files_are_named)
{
    struct files f = files_make(fixture_vocab, fixture_merges);
    struct tokenizer *t = NULL;
    const char *const wrong_vocab[] = {"", "{}", "[]", "5", "{\"a\": 0, \"a\": 0}", "{\"a\""};
    for (size_t i = 0; i < sizeof wrong_vocab / sizeof *wrong_vocab; i++) {
        write_file(f.vocab, wrong_vocab[i], strlen(wrong_vocab[i]));
        cr_assert_eq(load(&f, &t), BAD_DATA, "vocabulary %zu", i);
        cr_assert(strstr(fail_text(), "vocab.json") != NULL);
    }
    write_file(f.vocab, fixture_vocab, strlen(fixture_vocab));
    write_file(f.merges, "#version: 0.2\n", 14);
    cr_assert_eq(load(&f, &t), BAD_DATA);
    cr_assert(strstr(fail_text(), "merges.txt: contains no merges") != NULL, "%s", fail_text());
    write_file(f.merges, "#version: 0.2\r\nh e\r\n\r\n", 22); // written on Windows
    cr_assert_eq(load(&f, &t), OK, "%s", fail_text());
    tokenizer_destroy(t);
    struct text marked = {0}; // and by an editor that marks UTF-8
    text_add(&marked, "\xEF\xBB\xBF%s", fixture_vocab);
    write_file(f.vocab, marked.chars, marked.length);
    write_file(f.merges, "\xEF\xBB\xBF#version: 0.2\nh e\n", 21);
    cr_assert_eq(load(&f, &t), OK, "%s", fail_text());
    tokenizer_destroy(t);
    text_free(&marked);
    write_file(f.merges, "h e\nh e\n", 8);
    cr_assert_eq(load(&f, &t), BAD_DATA);
    cr_assert(strstr(fail_text(), "line 2: \"h e\" is a duplicate of an earlier line") != NULL, "%s",
              fail_text());
    unlink(f.merges);
    cr_assert_eq(load(&f, &t), IO_ERROR);
    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "GPT2BPE", .vocab_file = f.vocab}, &t),
                 BAD_RECIPE);
    cr_assert_str_eq(fail_text(),
                     "tokenizer.tokenizer_type GPT2BPE needs tokenizer.merge_file: its merges.txt");
    files_free(&f);
}

/* With any byte of either file changed, the file is rejected, or the tokenizer is still lossless. */
Test(bpe, changed_bytes_never_crash)
{
    struct files f = files_make(fixture_vocab, fixture_merges);
    const struct fixture_case *every_byte = &fixture_cases[sizeof fixture_cases / sizeof *fixture_cases - 1];
    unsigned seed = 11;
    int refused = 0;
    for (int trial = 0; trial < sampled(1500); trial++) {
        bool in_vocab = trial % 2 == 0;
        struct text text = {0};
        text_add(&text, "%s", in_vocab ? fixture_vocab : fixture_merges);
        size_t length = trial % 10 == 9 ? next_random(&seed) % text.length : text.length;
        text.chars[next_random(&seed) % text.length] = (char)next_random(&seed);
        write_file(in_vocab ? f.vocab : f.merges, text.chars, length);
        struct tokenizer *t = NULL;
        enum status status = load(&f, &t);
        cr_assert(status == OK || status == BAD_DATA);
        refused += status != OK;
        if (status == OK) {
            struct encoder *e = NULL;
            struct tokens ids = {0};
            struct text back = {0};
            cr_assert_eq(encoder_create(t, &e), OK);
            cr_assert_eq(encoder_encode(e, every_byte->bytes, every_byte->length, &ids), OK);
            cr_assert_eq(tokenizer_decode(t, ids.ids, ids.count, &back), OK);
            cr_assert(back.length == 256 && memcmp(back.chars, every_byte->bytes, 256) == 0);
            text_free(&back);
            tokens_free(&ids);
            encoder_destroy(e);
        }
        tokenizer_destroy(t);
        text_free(&text);
        write_file(in_vocab ? f.vocab : f.merges, in_vocab ? fixture_vocab : fixture_merges,
                   strlen(in_vocab ? fixture_vocab : fixture_merges));
    }
    cr_assert_gt(refused, sampled(500));
    files_free(&f);
}
