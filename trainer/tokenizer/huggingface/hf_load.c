// SPDX-License-Identifier: Apache-2.0
/* Reads tokenizer.json: the file, its model section, and the order of the others. */
#include "base/memory.h"
#include "trainer/files/json_read.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/huggingface/huggingface.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_ID = (1 << 24) - 1 };

int64_t hf_id_of(const struct hf_loader *l, const char *token)
{
    for (int64_t i = 0; i < l->hf->added_count; i++)
        if (strcmp(l->hf->added[i].content, token) == 0)
            return l->hf->added[i].id;
    const json_t *id = json_object_get(l->vocabulary, token);
    return id != NULL ? json_integer_value(id) : -1;
}

const char *hf_string(const json_t *object, const char *key)
{
    const char *string = json_string_value(json_object_get(object, key));
    return string != NULL ? string : "";
}

bool hf_is_null(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static enum status read_root(struct hf_loader *l)
{
    AUTO(text) file = {0};
    enum status status = file_read(l->file, &file);
    if (status == OK) {
        json_error_t why;
        l->root = json_read(text_chars(&file), file.length, JSON_REJECT_DUPLICATES, &why);
        if (l->root == NULL)
            status = fail(BAD_DATA, "%s, line %d, column %d: %s", l->file, why.line, why.column, why.text);
        else if (!json_is_object(l->root) || !json_is_object(json_object_get(l->root, "model")))
            status =
                fail(BAD_DATA, "%s: no model section; is this a tokenizer.json of Hugging Face?", l->file);
    }
    return status;
}

/* ---- types ---- */

enum json_kind { KIND_BOOL, KIND_STRING, KIND_STRING_OR_NULL, KIND_NUMBER_OR_NULL, KIND_LIST };

static const struct known_key {
    const char *name;
    enum json_kind kind;
} known_keys[] = {
    {"type", KIND_STRING},
    {"unk_token", KIND_STRING_OR_NULL},
    {"continuing_subword_prefix", KIND_STRING_OR_NULL},
    {"end_of_word_suffix", KIND_STRING_OR_NULL},
    {"dropout", KIND_NUMBER_OR_NULL},
    {"normalizers", KIND_LIST},
    {"pretokenizers", KIND_LIST},
    {"decoders", KIND_LIST},
    {"processors", KIND_LIST},
    {"byte_fallback", KIND_BOOL},
    {"fuse_unk", KIND_BOOL},
    {"ignore_merges", KIND_BOOL},
    {"add_prefix_space", KIND_BOOL},
    {"trim_offsets", KIND_BOOL},
    {"use_regex", KIND_BOOL},
    {"invert", KIND_BOOL},
    {"individual_digits", KIND_BOOL},
    {"single_word", KIND_BOOL},
    {"lstrip", KIND_BOOL},
    {"rstrip", KIND_BOOL},
    {"normalized", KIND_BOOL},
    {"special", KIND_BOOL},
};

/* What a value of the kind looks like, if `value` is none; else NULL. */
static const char *expected_instead(enum json_kind kind, const json_t *value)
{
    switch (kind) {
    case KIND_BOOL:
        return json_is_boolean(value) ? NULL : "true or false";
    case KIND_STRING:
        return json_is_string(value) ? NULL : "a string";
    case KIND_STRING_OR_NULL:
        return json_is_string(value) || json_is_null(value) ? NULL : "a string or null";
    case KIND_NUMBER_OR_NULL:
        return json_is_number(value) || json_is_null(value) ? NULL : "a number or null";
    case KIND_LIST:
        return json_is_array(value) ? NULL : "a list";
    }
    return NULL;
}

static bool has_free_names(const char *key)
{
    return strcmp(key, "vocab") == 0 || strcmp(key, "special_tokens") == 0;
}

/* Checks the types of known keys in a section, wherever they are. */
static enum status check_types(const struct hf_loader *l, const char *section, const json_t *value)
{
    const char *key;
    json_t *inner;
    size_t index;
    json_array_foreach((json_t *)(uintptr_t)value, index, inner) TRY(check_types(l, section, inner));
    json_object_foreach((json_t *)(uintptr_t)value, key, inner)
    {
        for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++) {
            const char *expected =
                strcmp(key, known_keys[i].name) == 0 ? expected_instead(known_keys[i].kind, inner) : NULL;
            if (expected != NULL)
                return fail(BAD_DATA, "%s: %s: \"%s\" is not %s", l->file, section, key, expected);
        }
        if (!has_free_names(key) && (json_is_object(inner) || json_is_array(inner)))
            TRY(check_types(l, section, inner));
    }
    return OK;
}

static enum status check_sections(const struct hf_loader *l)
{
    static const char *const sections[] = {"model",          "normalizer", "pre_tokenizer",
                                           "post_processor", "decoder",    "added_tokens"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        TRY(check_types(l, sections[i], json_object_get(l->root, sections[i])));
    return OK;
}

/* ---- model ---- */

static enum status check_model(const struct hf_loader *l, const json_t *model)
{
    const char *type = hf_string(model, "type");
    bool old = *type == 0 && json_object_get(model, "merges") != NULL; // early files have no type
    if (strcmp(type, "BPE") != 0 && !old)
        return fail(BAD_DATA, "%s: model.type \"%s\" is not supported, only BPE%s", l->file, type,
                    strcmp(type, "Unigram") == 0
                        ? "; use the model's SentencePiece file with GPTSentencePieceTokenizer"
                        : "");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++)
        if (*hf_string(model, affixes[i]) != 0)
            return fail(BAD_DATA, "%s: model.%s \"%s\" is not supported; only byte-level BPE is", l->file,
                        affixes[i], hf_string(model, affixes[i]));
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return fail(BAD_DATA,
                    "%s: model.byte_fallback true is not supported; use the model's SentencePiece file with "
                    "GPTSentencePieceTokenizer or Llama2Tokenizer",
                    l->file);
    const json_t *dropout = json_object_get(model, "dropout");
    if (!hf_is_null(dropout) && json_number_value(dropout) != 0.0)
        return fail(BAD_DATA, "%s: model.dropout %g is not supported; set it to null", l->file,
                    json_number_value(dropout));
    return OK;
}

/* Checks the ids of the vocabulary and of the added tokens; the size is the largest id + 1. Ids may be
 * unused, but an array of this size must not take much more memory than the file. */
static enum status find_size(struct hf_loader *l)
{
    enum { MAX_UNUSED = 1 << 16 };
    const int64_t count = (int64_t)json_object_size(l->vocabulary) + l->hf->added_count;
    const char *token;
    json_t *value;
    int64_t largest = -1;
    json_object_foreach((json_t *)(uintptr_t)l->vocabulary, token, value)
    {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id > MAX_ID)
            return fail(BAD_DATA, "%s: model.vocab: token \"%.80s\" has %s%" PRId64 "; ids are 0 to %d",
                        l->file, token, json_is_integer(value) ? "id " : "no integer id but ",
                        json_is_integer(value) ? (int64_t)json_integer_value(value) : 0, MAX_ID);
        largest = id > largest ? id : largest;
    }
    for (int64_t i = 0; i < l->hf->added_count; i++)
        largest = l->hf->added[i].id > largest ? l->hf->added[i].id : largest;
    if (largest < 0)
        return fail(BAD_DATA, "%s: model.vocab has no tokens", l->file);
    if (largest >= 2 * count + MAX_UNUSED)
        return fail(BAD_DATA,
                    "%s: model.vocab: the largest id is %" PRId64 ", but there are only %" PRId64 " tokens",
                    l->file, largest, count);
    l->hf->bpe.size = (int32_t)largest + 1;
    return OK;
}

/* Assigns the texts of all tokens to their ids: tokens[id] is owned by the JSON object, NULL for an unused
 * id. */
static enum status number_tokens(const struct hf_loader *l, const char **tokens)
{
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)l->vocabulary, token, value)
    {
        int64_t id = json_integer_value(value);
        if (tokens[id] != NULL)
            return fail(BAD_DATA, "%s: model.vocab: tokens \"%.80s\" and \"%.80s\" both have id %" PRId64,
                        l->file, tokens[id], token, id);
        tokens[id] = token;
    }
    for (int64_t i = 0; i < l->hf->added_count; i++) {
        const struct added_token *added = &l->hf->added[i];
        const char **slot = &tokens[added->id];
        if (*slot != NULL && strcmp(*slot, added->content) != 0)
            return fail(BAD_DATA,
                        "%s: added_tokens[%" PRId64 "] \"%.80s\" has id %d, which is \"%.80s\" in the "
                        "vocabulary",
                        l->file, i, added->content, added->id, *slot);
        *slot = added->content;
    }
    return OK;
}

/* Whether the byte occurs in UTF-8. */
static bool is_utf8_byte(int byte)
{
    return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

/* Writes the bytes of a token to `out`: of an added token its text, of others what the alphabet gives. */
static int64_t spell(const struct hf_loader *l, const char *token, bool added, char *out)
{
    int64_t count = added ? -1 : byte_alphabet_decode(l->byte_of, token, out);
    if (count >= 0)
        return count;
    size_t length = strlen(token);
    memcpy(out, token, length);
    return (int64_t)length;
}

static enum status spell_tokens(struct hf_loader *l, const char *const *tokens)
{
    struct bpe *bpe = &l->hf->bpe;
    size_t all = 1;
    for (int32_t id = 0; id < bpe->size; id++)
        all += tokens[id] != NULL ? strlen(tokens[id]) : 0;
    AUTO_FREE bool *added = calloc((size_t)bpe->size, sizeof *added); // the file dictates the sizes
    bpe->bytes = malloc(all);
    bpe->starts = calloc((size_t)bpe->size + 1, sizeof *bpe->starts);
    if (bpe->bytes == NULL || bpe->starts == NULL || added == NULL)
        return fail(NO_MEMORY, "%s: no memory for %d tokens", l->file, bpe->size);
    for (int64_t i = 0; i < l->hf->added_count; i++)
        added[l->hf->added[i].id] = true;
    for (int i = 0; i < 256; i++)
        bpe->byte_ids[i] = -1;
    for (int32_t id = 0; id < bpe->size; id++) {
        char *bytes = bpe->bytes + bpe->starts[id];
        int64_t count = tokens[id] != NULL ? spell(l, tokens[id], added[id], bytes) : 0;
        if (count == 1 && !added[id])
            bpe->byte_ids[(unsigned char)bytes[0]] = id;
        bpe->starts[id + 1] = bpe->starts[id] + count;
    }
    for (int i = 0; i < 256; i++) {
        l->hf->lacks_bytes = l->hf->lacks_bytes || bpe->byte_ids[i] < 0;
        if (bpe->byte_ids[i] < 0 && is_utf8_byte(i))
            return fail(BAD_DATA,
                        "%s: model.vocab: no token is the single byte 0x%02X, so not every text could be "
                        "encoded; is this a byte-level BPE?",
                        l->file, i);
    }
    return OK;
}

static enum status load_tokens(struct hf_loader *l)
{
    TRY(find_size(l));
    AUTO_FREE const char **tokens = calloc((size_t)l->hf->bpe.size, sizeof *tokens);
    if (tokens == NULL)
        return fail(NO_MEMORY, "%s: no memory for %d tokens", l->file, l->hf->bpe.size);
    TRY(number_tokens(l, tokens));
    return spell_tokens(l, tokens);
}

/* The id of a vocabulary token, or -1. */
static int64_t vocabulary_id(const struct hf_loader *l, const char *token)
{
    const json_t *id = json_object_get(l->vocabulary, token);
    return id != NULL ? json_integer_value(id) : -1;
}

/* Splits a merge, "LEFT RIGHT" or ["LEFT", "RIGHT"], into its tokens. */
static bool split_merge(const json_t *merge, struct text *left, struct text *right)
{
    left->length = right->length = 0;
    const char *a = json_string_value(json_array_get(merge, 0)),
               *b = json_string_value(json_array_get(merge, 1));
    const char *line = json_string_value(merge), *space = line != NULL ? strchr(line, ' ') : NULL;
    if (space != NULL && strchr(space + 1, ' ') == NULL) {
        text_add_bytes(left, line, (size_t)(space - line));
        text_add(right, "%s", space + 1);
    } else if (json_array_size(merge) == 2 && a != NULL && b != NULL) {
        text_add(left, "%s", a);
        text_add(right, "%s", b);
    }
    return left->length > 0 && right->length > 0;
}

static enum status add_merge(struct hf_loader *l, size_t index, struct text *left, const struct text *right)
{
    int64_t left_id = vocabulary_id(l, left->chars), right_id = vocabulary_id(l, right->chars), both = -1;
    size_t length = left->length;
    text_add_bytes(left, right->chars, right->length);
    both = vocabulary_id(l, left->chars);
    if (left_id < 0 || right_id < 0 || both < 0)
        return fail(BAD_DATA, "%s: model.merges[%zu]: \"%.*s\" and \"%.80s\": %s is not in model.vocab",
                    l->file, index, length < 80 ? (int)length : 80, left->chars, right->chars,
                    left_id < 0    ? "the first token"
                    : right_id < 0 ? "the second token"
                                   : "their concatenation");
    bpe_add_merge(&l->hf->bpe, (int32_t)left_id, (int32_t)right_id, (int32_t)index, (int32_t)both);
    return OK;
}

static enum status load_merges(struct hf_loader *l, const json_t *merges)
{
    size_t count = json_array_size(merges), index;
    if (!json_is_array(merges) || count > INT32_MAX / 4)
        return fail(BAD_DATA, "%s: model.merges is not a list of pairs of tokens", l->file);
    TRY(bpe_make_merges(&l->hf->bpe, (int64_t)count));
    AUTO(text) left = {0}, right = {0};
    enum status status = OK;
    const json_t *merge;
    json_array_foreach((json_t *)(uintptr_t)merges, index, merge)
    {
        if (!split_merge(merge, &left, &right))
            status = fail(BAD_DATA,
                          "%s: model.merges[%zu] is not two tokens, \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]",
                          l->file, index);
        else
            status = add_merge(l, index, &left, &right);
        if (status != OK)
            break;
    }
    return status;
}

static enum status load_model(struct hf_loader *l)
{
    const json_t *model = json_object_get(l->root, "model");
    TRY(check_sections(l));
    TRY(check_model(l, model));
    l->vocabulary = json_object_get(model, "vocab");
    if (!json_is_object(l->vocabulary))
        return fail(BAD_DATA, "%s: model.vocab is not an object of tokens and their ids, {\"!\": 0, ...}",
                    l->file);
    TRY(hf_load_added(l));
    TRY(load_tokens(l));
    TRY(hf_load_special(l));
    TRY(load_merges(l, json_object_get(model, "merges")));
    l->hf->bpe.order = BPE_ONE_BY_ONE;
    return json_is_true(json_object_get(model, "ignore_merges")) ? bpe_make_whole(&l->hf->bpe) : OK;
}

/* ---- the tokenizer ---- */

static enum status load(struct hf_loader *l)
{
    TRY(read_root(l));
    TRY(load_model(l));
    TRY(hf_load_steps(l));
    TRY(hf_load_post_processor(l));
    return hf_load_ends(l);
}

/* The path of tokenizer.json, if `path` is its folder. */
static void find_file(const char *path, struct text *out)
{
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    text_add(out, "%s%s", path, folder ? "/tokenizer.json" : "");
}

enum status hf_load(const char *path, struct huggingface **out)
{
    AUTO(text) file = {0};
    find_file(path, &file);
    struct hf_loader l = {.file = text_chars(&file), .hf = memory_zeroed(1, sizeof *l.hf, "a tokenizer")};
    byte_alphabet_make(l.byte_of);
    const enum status status = load(&l);
    json_decref(l.root);
    if (status == OK)
        *out = l.hf;
    else
        hf_free(l.hf);
    return status;
}

void hf_free(struct huggingface *hf)
{
    if (hf == NULL)
        return;
    for (int64_t i = 0; i < hf->added_count; i++)
        free(hf->added[i].content);
    free(hf->added);
    free(hf->is_special);
    added_tokens_free(&hf->raw);
    added_tokens_free(&hf->normalized);
    for (int i = 0; i < hf->split_count; i++)
        split_free(&hf->splits[i]);
    tokens_free(&hf->prefix);
    tokens_free(&hf->suffix);
    bpe_release(&hf->bpe);
    free(hf);
}
