// SPDX-License-Identifier: Apache-2.0
/* Reads the special tokens of tokenizer.json: added_tokens, post_processor, and the end of a document. */
#include "base/memory.h"
#include "trainer/files/json_read.h"
#include "trainer/tokenizer/huggingface/huggingface.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ID = (1 << 24) - 1, MAX_PROCESSORS = 8 };

static enum status load_one(struct hf_loader *l, int64_t index, const json_t *value)
{
    const char *content = json_string_value(json_object_get(value, "content"));
    const json_t *id = json_object_get(value, "id");
    if (content == NULL || *content == 0)
        return fail(BAD_DATA, "%s: added_tokens[%" PRId64 "] has no content", l->file, index);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > MAX_ID)
        return fail(BAD_DATA, "%s: added_tokens[%" PRId64 "] \"%.80s\" has id %lld; ids are 0 to %d", l->file,
                    index, content, json_is_integer(id) ? (long long)json_integer_value(id) : -1, MAX_ID);
    for (int64_t i = 0; i < index; i++)
        if (l->hf->added[i].id == json_integer_value(id) || strcmp(l->hf->added[i].content, content) == 0)
            return fail(BAD_DATA,
                        "%s: added_tokens[%" PRId64 "] \"%.80s\", id %d, and added_tokens[%" PRId64
                        "] \"%.80s\", id %lld, are duplicates; remove one",
                        l->file, i, l->hf->added[i].content, l->hf->added[i].id, index, content,
                        (long long)json_integer_value(id));
    const json_t *known = json_object_get(l->vocabulary, content);
    if (known != NULL && json_integer_value(known) != json_integer_value(id))
        return fail(
            BAD_DATA,
            "%s: added_tokens[%" PRId64 "] \"%.80s\" has id %lld, but id %lld in model.vocab; make them "
            "equal",
            l->file, index, content, (long long)json_integer_value(id), (long long)json_integer_value(known));
    l->hf->added[index] = (struct added_token){
        .content = text_copy(content),
        .length = (int64_t)strlen(content),
        .id = (int32_t)json_integer_value(id),
        .single_word = json_is_true(json_object_get(value, "single_word")),
        .lstrip = json_is_true(json_object_get(value, "lstrip")),
        .rstrip = json_is_true(json_object_get(value, "rstrip")),
        .normalized = json_is_true(json_object_get(value, "normalized")),
        .special = json_is_true(json_object_get(value, "special")),
    };
    l->hf->added_count = index + 1;
    return OK;
}

enum status hf_load_added(struct hf_loader *l)
{
    const json_t *list = json_object_get(l->root, "added_tokens");
    size_t count = json_array_size(list);
    if (!hf_is_null(list) && !json_is_array(list))
        return fail(BAD_DATA, "%s: added_tokens is not a list", l->file);
    if (count > 65536)
        return fail(BAD_DATA, "%s: %zu added_tokens; at most 65536 are supported", l->file, count);
    l->hf->added = memory_zeroed(count + 1, sizeof *l->hf->added, "the added tokens of a tokenizer");
    for (size_t i = 0; i < count; i++)
        TRY(load_one(l, (int64_t)i, json_array_get(list, i)));
    TRY(added_tokens_create(l->hf->added, (int64_t)count, false, &l->hf->raw));
    return added_tokens_create(l->hf->added, (int64_t)count, true, &l->hf->normalized);
}

enum status hf_load_special(struct hf_loader *l)
{
    struct huggingface *hf = l->hf;
    hf->is_special = calloc((size_t)hf->bpe.size, sizeof *hf->is_special);
    if (hf->is_special == NULL)
        return fail(NO_MEMORY, "%s: no memory for %d tokens", l->file, hf->bpe.size);
    for (int64_t i = 0; i < hf->added_count; i++)
        hf->is_special[hf->added[i].id] = hf->added[i].special;
    return OK;
}

/* ---- post_processor ---- */

/* Appends the ids of special_tokens.NAME of a TemplateProcessing. */
static enum status add_special(const struct hf_loader *l, const json_t *processor, const char *name,
                               struct tokens *out)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(processor, "special_tokens"), name), "ids");
    if (json_array_size(ids) == 0)
        return fail(BAD_DATA, "%s: post_processor: special_tokens has no ids for \"%.80s\"", l->file, name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= l->hf->bpe.size)
            return fail(BAD_DATA,
                        "%s: post_processor: special_tokens.\"%.80s\" has id %" PRId64
                        ", which is outside the vocabulary of %d",
                        l->file, name, value, l->hf->bpe.size);
        tokens_append(out, &(int32_t){(int32_t)value}, 1);
    }
    return OK;
}

static enum status load_template(const struct hf_loader *l, const json_t *processor)
{
    struct tokens *out = &l->hf->prefix;
    const json_t *single = json_object_get(processor, "single");
    if (!json_is_array(single))
        return fail(BAD_DATA, "%s: post_processor: TemplateProcessing has no list \"single\"", l->file);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i), *special = json_object_get(part, "SpecialToken");
        if (special != NULL)
            TRY(add_special(l, processor, hf_string(special, "id"), out));
        else if (json_object_get(part, "Sequence") != NULL && out == &l->hf->prefix)
            out = &l->hf->suffix;
        else
            return fail(BAD_DATA,
                        "%s: post_processor: single[%zu] is neither a SpecialToken nor the only Sequence",
                        l->file, i);
    }
    return OK;
}

static enum status load_processor(const struct hf_loader *l, const json_t *processor, int *budget)
{
    const char *type = hf_string(processor, "type");
    if (--*budget < 0)
        return fail(BAD_DATA, "%s: post_processor has more than %d steps", l->file, MAX_PROCESSORS);
    if (hf_is_null(processor) || strcmp(type, "ByteLevel") == 0) // its offsets are not used here
        return OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(l, processor);
    if (strcmp(type, "Sequence") != 0)
        return fail(
            BAD_DATA,
            "%s: post_processor.type \"%.80s\" is not supported; there are TemplateProcessing, ByteLevel "
            "and Sequence",
            l->file, type);
    const json_t *list = json_object_get(processor, "processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(load_processor(l, json_array_get(list, i), budget));
    return OK;
}

enum status hf_load_post_processor(struct hf_loader *l)
{
    int budget = MAX_PROCESSORS;
    return load_processor(l, json_object_get(l->root, "post_processor"), &budget);
}

/* ---- the beginning and the end of a document ---- */

/* Finds the id of a key of tokenizer_config.json, "..." or {"content": "..."}; -1 if it is absent or null. */
static enum status read_token(const struct hf_loader *l, const char *path, const json_t *config,
                              const char *key, int64_t *out)
{
    const json_t *value = json_object_get(config, key);
    const char *content = json_is_object(value) ? hf_string(value, "content") : hf_string(config, key);
    *out = -1;
    if (hf_is_null(value))
        return OK;
    if (*content == 0)
        return fail(BAD_DATA, "%s: %s is neither \"...\" nor {\"content\": \"...\"}", path, key);
    *out = hf_id_of(l, content);
    return *out >= 0 ? OK
                     : fail(BAD_DATA, "%s: %s \"%.80s\" is not a token of %s", path, key, content, l->file);
}

/* Reads tokenizer_config.json. A bos_token that is no token is none, since training does not need it. */
static enum status read_config(const struct hf_loader *l, const char *path, int64_t *begin, int64_t *end)
{
    AUTO(text) file = {0};
    TRY(file_read(path, &file));
    json_error_t why;
    // transformers writes an unlimited model_max_length as 10^30, more than an integer of jansson.
    json_t *config = json_read(text_chars(&file), file.length, JSON_DECODE_INT_AS_REAL, &why);
    if (config == NULL)
        return fail(BAD_DATA, "%s, line %d, column %d: %s", path, why.line, why.column, why.text);
    enum status status = json_is_object(config)
                             ? read_token(l, path, config, "eos_token", end)
                             : fail(BAD_DATA, "%s: not an object; use {\"eos_token\": \"...\"}", path);
    if (status == OK && read_token(l, path, config, "bos_token", begin) != OK)
        *begin = -1;
    json_decref(config);
    return status;
}

static enum status find_usual_end(struct hf_loader *l)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        "<｜end▁of▁sentence｜>"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        int64_t id = hf_id_of(l, usual[i]);
        if (id >= 0) {
            l->hf->bpe.end_of_document = (int32_t)id;
            return OK;
        }
    }
    return fail(
        BAD_DATA,
        "%s: no token is known to end a document; name it as \"eos_token\" in a tokenizer_config.json in "
        "the same folder",
        l->file);
}

enum status hf_load_ends(struct hf_loader *l)
{
    const struct tokens *prefix = &l->hf->prefix;
    AUTO(text) path = {0};
    int64_t begin = -1, end = -1;
    const char *slash = strrchr(l->file, '/');
    text_add_bytes(&path, l->file, slash != NULL ? (size_t)(slash + 1 - l->file) : 0);
    text_add(&path, "tokenizer_config.json");
    enum status status = access(path.chars, F_OK) == 0 ? read_config(l, path.chars, &begin, &end) : OK;
    TRY(status);
    l->hf->begin_of_text = begin >= 0          ? (int32_t)begin
                           : prefix->count > 0 ? prefix->ids[prefix->count - 1]
                                               : -1;
    l->hf->bpe.end_of_document = (int32_t)end;
    return end >= 0 ? OK : find_usual_end(l);
}
