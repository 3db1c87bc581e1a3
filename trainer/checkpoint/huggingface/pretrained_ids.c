// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_ids.h"

#include "trainer/files/json_read.h"

#include <jansson.h>
#include <stdlib.h>

static enum status read_id(const json_t *value, const char *key, enum model_file file, int32_t *out)
{
    char text[JSON_SHOWN_CHARS];
    if (value == NULL || json_is_null(value))
        return OK;
    if (!json_is_integer(value) || json_integer_value(value) < -1 || json_integer_value(value) > INT32_MAX)
        return fail(BAD_CHECKPOINT, "%s: %s %s is not valid; expected the id of a token",
                    model_file_name(file), key, json_shown(value, text));
    *out = (int32_t)json_integer_value(value);
    return OK;
}

void pretrained_ids_add_end(struct pretrained_ids *ids, int32_t id, bool first)
{
    for (int i = 0; i < ids->end_count; i++)
        if (ids->ends[i] == id)
            return;
    if (id < 0 || ids->end_count == PRETRAINED_MAX_ENDS)
        return;
    for (int i = ids->end_count; first && i > 0; i--)
        ids->ends[i] = ids->ends[i - 1];
    ids->ends[first ? 0 : ids->end_count] = id;
    ids->end_count++;
}

static enum status read_ends(const json_t *value, enum model_file file, struct pretrained_ids *out)
{
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > PRETRAINED_MAX_ENDS)
        return fail(BAD_CHECKPOINT, "%s: eos_token_id has %zu ids; Cuboid supports at most %d",
                    model_file_name(file), count, PRETRAINED_MAX_ENDS);
    for (size_t i = 0; i < count; i++) {
        int32_t id = -1;
        TRY(read_id(json_is_array(value) ? json_array_get(value, i) : value, "eos_token_id", file, &id));
        pretrained_ids_add_end(out, id, false);
    }
    return OK;
}

static json_t *parse(const struct model_files *files, enum model_file file)
{
    const struct text *bytes = model_files_get(files, file);
    return bytes != NULL ? json_read(text_chars(bytes), bytes->length, 0, NULL) : NULL;
}

enum status pretrained_ids_read(const struct model_files *files, struct pretrained_ids *out)
{
    static const enum model_file order[] = {MODEL_CONFIG, MODEL_GENERATION_CONFIG};
    enum status status = OK;
    *out = (struct pretrained_ids){.bos = -1, .pad = -1};
    for (int i = 0; i < 2 && status == OK; i++) {
        json_t *root = parse(files, order[i]), *other = parse(files, order[1 - i]);
        if (out->bos < 0)
            status = read_id(json_object_get(root, "bos_token_id"), "bos_token_id", order[i], &out->bos);
        if (out->pad < 0 && status == OK)
            status = read_id(json_object_get(root, "pad_token_id"), "pad_token_id", order[i], &out->pad);
        if (out->end_count == 0 && status == OK) // of the other file
            status = read_ends(json_object_get(other, "eos_token_id"), order[1 - i], out);
        json_decref(root);
        json_decref(other);
    }
    return status;
}

void pretrained_ids_ends_text(const struct pretrained_ids *ids, struct text *out)
{
    if (ids->end_count == 0)
        text_add(out, "null");
    for (int i = 0; i < ids->end_count; i++)
        text_add(out, "%s%d", i > 0 ? ", " : ids->end_count > 1 ? "[" : "", ids->ends[i]);
    if (ids->end_count > 1)
        text_add(out, "]");
}

static json_t *ends_value(const struct pretrained_ids *ids)
{
    json_t *list = json_array();
    for (int i = 0; i < ids->end_count; i++)
        json_array_append_new(list, json_integer(ids->ends[i]));
    if (ids->end_count != 1)
        return list;
    json_decref(list);
    return json_integer(ids->ends[0]);
}

/* Sets a key unless it has no value. */
static void set_id(json_t *root, const char *key, int32_t id)
{
    if (id >= 0)
        json_object_set_new(root, key, json_integer(id));
}

enum status pretrained_ids_generation_config(const struct model_files *files,
                                             const struct pretrained_ids *ids, struct text *out)
{
    const struct text *own = model_files_get(files, MODEL_GENERATION_CONFIG);
    struct pretrained_ids has = {.end_count = 0};
    json_t *root = parse(files, MODEL_GENERATION_CONFIG);
    if (own == NULL && ids->end_count == 0 && ids->bos < 0 && ids->pad < 0)
        return OK;
    if (root == NULL)
        root = json_object();
    enum status status = read_ends(json_object_get(root, "eos_token_id"), MODEL_GENERATION_CONFIG, &has);
    bool same = own != NULL && has.end_count == ids->end_count;
    for (int i = 0; same && i < has.end_count; i++)
        same = has.ends[i] == ids->ends[i];
    if (!same) {
        set_id(root, "bos_token_id", ids->bos);
        set_id(root, "pad_token_id", ids->pad);
        if (ids->end_count > 0)
            json_object_set_new(root, "eos_token_id", ends_value(ids));
    }
    char *written = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    CHECK(written != NULL);
    if (same)
        text_add_bytes(out, text_chars(own), own->length);
    else
        text_add(out, "%s\n", written);
    free(written);
    return status;
}
