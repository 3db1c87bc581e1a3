// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/bpe.h"

#include "base/memory.h"
#include "trainer/files/json_read.h"
#include "trainer/tokenizer/byte_alphabet.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"

struct loader {
    const char *vocab_file, *merge_file;
    json_t *vocabulary;             // token text to id
    int16_t byte_of[BYTE_ALPHABET]; // byte represented by a code point, or -1
    struct bpe *bpe;
};

/* Length of the byte order mark that some editors write before UTF-8. */
static size_t mark_length(const struct text *file)
{
    return file->length >= 3 && memcmp(file->chars, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

static enum status read_vocabulary_file(struct loader *l)
{
    AUTO(text) file = {0};
    enum status status = file_read(l->vocab_file, &file);
    if (status == OK) {
        json_error_t why;
        size_t mark = mark_length(&file);
        l->vocabulary = json_read(text_chars(&file) + mark, file.length - mark, JSON_REJECT_DUPLICATES, &why);
        if (l->vocabulary == NULL)
            status =
                fail(BAD_DATA, "%s, line %d, column %d: %s", l->vocab_file, why.line, why.column, why.text);
        else if (!json_is_object(l->vocabulary) || json_object_size(l->vocabulary) == 0)
            status = fail(BAD_DATA, "%s: not a JSON object of tokens and their ids, {\"!\": 0, ...}",
                          l->vocab_file);
        else if (json_object_size(l->vocabulary) > INT32_MAX / 2)
            status =
                fail(BAD_DATA, "%s: %zu tokens are too many", l->vocab_file, json_object_size(l->vocabulary));
    }
    return status;
}

/* Checks that every id from 0 to size - 1 has exactly one token: tokens[id] is its text, owned by the JSON
 * object. */
static enum status number_tokens(struct loader *l, const char **tokens, int64_t size)
{
    const char *token;
    json_t *value;
    json_object_foreach(l->vocabulary, token, value)
    {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= size)
            return fail(BAD_DATA,
                        "%s: token \"%s\" has %s%" PRId64 "; %" PRId64 " tokens have the ids 0 to %" PRId64,
                        l->vocab_file, token,
                        json_is_integer(value) ? "id " : "something that is no whole number, not ",
                        json_is_integer(value) ? id : 0, size, size - 1);
        if (tokens[id] != NULL)
            return fail(BAD_DATA, "%s: tokens \"%s\" and \"%s\" both have id %" PRId64, l->vocab_file,
                        tokens[id], token, id);
        tokens[id] = token;
    }
    return OK;
}

/* Decodes the bytes of every token, and finds the token of each single byte. */
static enum status spell_tokens(struct loader *l, const char *const *tokens, int64_t size)
{
    struct bpe *bpe = l->bpe;
    size_t all = 1;
    for (int64_t id = 0; id < size; id++)
        all += strlen(tokens[id]);
    bpe->bytes = memory_zeroed(all, 1, "the tokens of a tokenizer");
    bpe->starts = memory_zeroed((size_t)size + 1, sizeof *bpe->starts, "the tokens of a tokenizer");
    for (int i = 0; i < 256; i++)
        bpe->byte_ids[i] = -1;
    for (int64_t id = 0; id < size; id++) {
        char *bytes = bpe->bytes + bpe->starts[id];
        int64_t count = byte_alphabet_decode(l->byte_of, tokens[id], bytes);
        if (count < 1)
            return fail(BAD_DATA, "%s: token \"%s\", id %" PRId64 ", %s", l->vocab_file, tokens[id], id,
                        count == 0 ? "is empty" : "has a character that represents no byte");
        if (count == 1)
            bpe->byte_ids[(unsigned char)bytes[0]] = (int32_t)id;
        bpe->starts[id + 1] = bpe->starts[id] + count;
    }
    bpe->size = (int32_t)size;
    for (int i = 0; i < 256; i++)
        if (bpe->byte_ids[i] < 0)
            return fail(BAD_DATA,
                        "%s: no token is the single byte 0x%02X, so not every text could be encoded",
                        l->vocab_file, i);
    return OK;
}

static enum status load_vocabulary(struct loader *l)
{
    TRY(read_vocabulary_file(l));
    int64_t size = (int64_t)json_object_size(l->vocabulary);
    AUTO_FREE const char **tokens = memory_zeroed((size_t)size, sizeof *tokens, "the tokens of a tokenizer");
    TRY(number_tokens(l, tokens, size));
    TRY(spell_tokens(l, tokens, size));
    const json_t *end = json_object_get(l->vocabulary, END_OF_TEXT);
    if (end == NULL)
        return fail(BAD_DATA, "%s: no token is \"" END_OF_TEXT "\", which ends a document", l->vocab_file);
    l->bpe->end_of_document = (int32_t)json_integer_value(end);
    return OK;
}

/* The id of a token's text, or -1. */
static int32_t id_of(const struct loader *l, const char *token)
{
    const json_t *id = json_object_get(l->vocabulary, token);
    return id != NULL ? (int32_t)json_integer_value(id) : -1;
}

/* Adds the merge of two tokens in line `number`; `pair` is the line, for messages. */
static enum status add_merge(struct loader *l, const char *pair, const char *left, const char *right,
                             int64_t number, int32_t rank)
{
    AUTO(text) joined = {0};
    text_add(&joined, "%s%s", left, right);
    int32_t left_id = id_of(l, left), right_id = id_of(l, right), both = id_of(l, joined.chars);
    if (left_id < 0 || right_id < 0 || both < 0)
        return fail(BAD_DATA, "%s, line %" PRId64 ": \"%.80s\": %s is not in %s", l->merge_file, number, pair,
                    left_id < 0    ? "the first token"
                    : right_id < 0 ? "the second token"
                                   : "their concatenation",
                    l->vocab_file);
    if (bpe_find(l->bpe, left_id, right_id) != NULL)
        return fail(BAD_DATA, "%s, line %" PRId64 ": \"%.80s\" is a duplicate of an earlier line",
                    l->merge_file, number, pair);
    bpe_add_merge(l->bpe, left_id, right_id, rank, both);
    return OK;
}

/* Parses "LEFT RIGHT" in line[0..length). */
static enum status parse_merge(struct loader *l, const char *line, size_t length, int64_t number,
                               int32_t rank)
{
    AUTO(text) pair = {0}, left = {0};
    text_add_bytes(&pair, line, length);
    const char *space = strchr(pair.chars, ' ');
    bool good = space != NULL && space > pair.chars && space[1] != 0 && strchr(space + 1, ' ') == NULL &&
                strlen(pair.chars) == length;
    enum status status = OK;
    if (good) {
        text_add_bytes(&left, pair.chars, (size_t)(space - pair.chars));
        status = add_merge(l, pair.chars, left.chars, space + 1, number, rank);
    } else {
        status = fail(BAD_DATA, "%s, line %" PRId64 ": \"%.80s\" is not two tokens with a space between them",
                      l->merge_file, number, pair.chars);
    }
    return status;
}

/* Allocates a table for as many merges as the file has lines. */
static enum status make_table(struct loader *l, const struct text *file)
{
    int64_t lines = 1;
    for (size_t i = 0; i < file->length; i++)
        lines += file->chars[i] == '\n';
    return bpe_make_merges(l->bpe, lines);
}

static enum status parse_merges(struct loader *l, const struct text *file)
{
    TRY(make_table(l, file));
    const char *line = text_chars(file) + mark_length(file), *end = text_chars(file) + file->length;
    int32_t rank = 0;
    for (int64_t number = 1; line < end; number++) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        const char *next = line_end != NULL ? line_end + 1 : end;
        size_t length = (size_t)((line_end != NULL ? line_end : end) - line);
        if (length > 0 && line[length - 1] == '\r')
            length--;
        // Only the first line can be a comment: "# #" is a merge.
        bool comment = number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0;
        if (length > 0 && !comment)
            TRY(parse_merge(l, line, length, number, rank++));
        line = next;
    }
    return rank > 0 ? OK : fail(BAD_DATA, "%s: contains no merges", l->merge_file);
}

static enum status load_merges(struct loader *l)
{
    AUTO(text) file = {0};
    TRY(file_read(l->merge_file, &file));
    return parse_merges(l, &file);
}

enum status bpe_load(const char *vocab_file, const char *merge_file, struct bpe **out)
{
    struct loader l = {.vocab_file = vocab_file,
                       .merge_file = merge_file,
                       .bpe = memory_zeroed(1, sizeof *l.bpe, "a tokenizer")};
    byte_alphabet_make(l.byte_of);
    enum status status = load_vocabulary(&l);
    if (status == OK)
        status = load_merges(&l);
    json_decref(l.vocabulary);
    if (status == OK)
        *out = l.bpe;
    else
        bpe_free(l.bpe);
    return status;
}
