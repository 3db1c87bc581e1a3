// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/huggingface/pretrained_config.h"

#include "base/memory.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *path;
    const json_t *root;
    struct problems *warnings;
    struct pretrained_config *out;
};

/* ---- values ---- */

static enum status refuse(const struct reader *r, const char *key, const json_t *value, const char *expected)
{
    char text[JSON_SHOWN_CHARS];
    return fail(BAD_CHECKPOINT, "%s: %s %s cannot be expressed; Cuboid supports %s", r->path, key,
                json_shown(value, text), expected);
}

static enum status not_valid(const struct reader *r, const char *key, const json_t *value,
                             const char *expected)
{
    char text[JSON_SHOWN_CHARS];
    return fail(BAD_CHECKPOINT, "%s: %s %s is not valid; expected %s", r->path, key, json_shown(value, text),
                expected);
}

/* Sets a model key. A second key of config.json with the same model key must have the same value. */
static enum status set(const struct reader *r, const char *from, const char *model_key, const char *value)
{
    struct pretrained_config *out = r->out;
    for (int i = 0; i < out->count; i++)
        if (strcmp(out->values[i].key, model_key) == 0 && strcmp(out->values[i].value, value) != 0)
            return fail(BAD_CHECKPOINT,
                        "%s: %s %s, but %s %s cannot be expressed: both are model.%s; use the same value for "
                        "both",
                        r->path, from, value, out->values[i].from, out->values[i].value, model_key);
        else if (strcmp(out->values[i].key, model_key) == 0)
            return OK;
    CHECK(out->count < PRETRAINED_MAX_VALUES);
    struct pretrained_value *next = &out->values[out->count++];
    snprintf(next->key, sizeof next->key, "%s", model_key);
    snprintf(next->value, sizeof next->value, "%s", value);
    next->from = from;
    return OK;
}

static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- kinds of keys ---- */

enum { MAX_COUNT = 1000000000 };

static enum status read_count(const struct reader *r, const char *key, const json_t *value, char *out)
{
    json_int_t count = json_integer_value(value);
    if (!json_is_integer(value) || count < 1 || count > MAX_COUNT)
        return not_valid(r, key, value, "an integer from 1 to 1000000000");
    snprintf(out, PRETRAINED_VALUE_CHARS, "%lld", (long long)count);
    return OK;
}

static enum status read_real(const struct reader *r, const char *key, const json_t *value, char *out)
{
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return not_valid(r, key, value, "a number");
    number_text(json_number_value(value), out);
    return OK;
}

static enum status read_activation(const struct reader *r, const char *key, const char *name, char *out)
{
    AUTO(text) known = {0};
    const struct pretrained_pair *pair = r->out->architecture->activations;
    for (; pair->from != NULL && strcmp(pair->from, name) != 0; pair++)
        text_add(&known, "%s%s", known.length > 0 ? ", " : "", pair->from);
    enum status status = OK;
    if (pair->from != NULL)
        snprintf(out, PRETRAINED_VALUE_CHARS, "%s", pair->to);
    else
        status = fail(BAD_CHECKPOINT, "%s: %s \"%s\" of %s cannot be expressed; Cuboid supports %s", r->path,
                      key, name, r->out->architecture->name, text_chars(&known));
    return status;
}

static enum status read_fixed(const struct reader *r, const struct pretrained_key *key, const json_t *value)
{
    double expected;
    bool equal =
        json_is_number(value) && number_parse(key->absent, &expected) && json_number_value(value) == expected;
    equal =
        equal || (json_is_boolean(value) && strcmp(key->absent, json_is_true(value) ? "true" : "false") == 0);
    if (equal)
        return OK;
    return refuse(r, key->name, value, key->absent[0] != 0 ? key->absent : "null");
}

/* ---- sliding windows ---- */

/* Qwen has a switch for the window, and may have full attention in some layers. */
static bool has_window_switch(const struct reader *r)
{
    return pretrained_key_find(r->out->architecture, "use_sliding_window") != NULL;
}

static bool has_window(const struct reader *r)
{
    return !has_window_switch(r) || json_is_true(get(r->root, "use_sliding_window"));
}

static enum status read_layer_types(const struct reader *r, const char *key, const json_t *value)
{
    const bool windows = has_window_switch(r) && has_window(r);
    size_t i;
    const json_t *type;
    if (!json_is_array(value))
        return not_valid(r, key, value, "a list of \"full_attention\"");
    json_array_foreach(value, i, type)
    {
        const char *name = json_string_value(type);
        const bool full = name != NULL && strcmp(name, "full_attention") == 0,
                   window = name != NULL && strcmp(name, "sliding_attention") == 0;
        if (!full && !(window && windows))
            return refuse(r, key, type,
                          has_window_switch(r)
                              ? "full_attention, and with use_sliding_window true sliding_attention"
                              : "full_attention in every layer");
    }
    if (windows &&
        (json_int_t)json_array_size(value) != json_integer_value(get(r->root, "num_hidden_layers")))
        return fail(BAD_CHECKPOINT, "%s: %s has %zu entries, but num_hidden_layers is another number",
                    r->path, key, json_array_size(value));
    return OK;
}

/* Whether a layer has the window; `first` is the first one without layer_types. */
static bool is_window_layer(const json_t *types, json_int_t first, json_int_t layer)
{
    if (types == NULL)
        return layer >= first;
    const char *name = json_string_value(json_array_get(types, (size_t)layer));
    return name != NULL && strcmp(name, "sliding_attention") == 0;
}

/* Sets the layers with the window; *none: no layer has it. */
static enum status read_window_layers(const struct reader *r, bool *none)
{
    enum { MAX_LAYERS = PRETRAINED_LIST_CHARS / 2 - 2, DEFAULT_FIRST = 28 };
    char list[PRETRAINED_LIST_CHARS] = "[", every[PRETRAINED_VALUE_CHARS];
    const json_t *types = get(r->root, "layer_types"), *first_value = get(r->root, "max_window_layers");
    const json_int_t layers = json_integer_value(get(r->root, "num_hidden_layers"));
    if (first_value != NULL && (!json_is_integer(first_value) || json_integer_value(first_value) < 0))
        return not_valid(r, "max_window_layers", first_value, "an integer of at least 0");
    if (layers > MAX_LAYERS)
        return fail(BAD_CHECKPOINT, "%s: a sliding window in some of %lld layers; Cuboid supports at most %d",
                    r->path, (long long)layers, (int)MAX_LAYERS);
    const json_int_t first = first_value != NULL ? json_integer_value(first_value) : DEFAULT_FIRST;
    json_int_t windows = 0, full = 0; // full: the number of the first layer without the window, from 1
    for (json_int_t i = 0; i < layers; i++) {
        const bool window = is_window_layer(types, first, i);
        windows += window;
        full = !window && full == 0 ? i + 1 : full;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", i > 0 ? ", " : "", window);
    }
    *none = windows == 0;
    if (windows == 0 || windows == layers)
        return OK;
    snprintf(list + strlen(list), sizeof list - strlen(list), "]");
    bool regular = full > 1;
    for (json_int_t i = 0; regular && i < layers; i++)
        regular = is_window_layer(types, first, i) == ((i + 1) % full != 0);
    snprintf(every, sizeof every, "%lld", (long long)full);
    return set(r, types != NULL ? "layer_types" : "max_window_layers", "window_attn_skip_freq",
               regular ? every : list);
}

static enum status read_window(const struct reader *r, const struct pretrained_key *key)
{
    char text[PRETRAINED_VALUE_CHARS];
    const json_t *value = json_object_get(r->root, key->name);
    bool none = false;
    if (json_is_null(value) || !has_window(r))
        return OK;
    snprintf(text, sizeof text, "%s", key->absent);
    if (value != NULL)
        TRY(read_count(r, key->name, value, text));
    if (has_window_switch(r))
        TRY(read_window_layers(r, &none));
    return none ? OK : set(r, key->name, "window_size", text);
}

/* ---- RoPE ---- */

/* Keys of the scaling object, by its type. */
struct scaling_key {
    const char *name, *model_key, *absent; // absent "": max_position_embeddings
};
static const struct rope_type {
    const char *type;
    struct scaling_key keys[6];
} scalings[] = {
    {"default", {{0}}},
    {"linear", {{"factor", "rope_scaling_factor", NULL}, {0}}},
    {"llama3",
     {{"factor", "rope_scaling_factor", NULL},
      {"low_freq_factor", "rope_low_freq_factor", NULL},
      {"high_freq_factor", "rope_high_freq_factor", NULL},
      {"original_max_position_embeddings", "rope_original_max_position_embeddings", ""},
      {0}}},
    {"yarn",
     {{"factor", "rope_scaling_factor", NULL},
      {"beta_fast", "rope_beta_fast", "32"},
      {"beta_slow", "rope_beta_slow", "1"},
      {"original_max_position_embeddings", "rope_original_max_position_embeddings", ""},
      {0}}},
};

static const struct rope_type *scaling_named(const char *type)
{
    for (size_t i = 0; type != NULL && i < sizeof scalings / sizeof *scalings; i++)
        if (strcmp(scalings[i].type, type) == 0)
            return &scalings[i];
    return NULL;
}

static const char *scaling_type(const json_t *object)
{
    const json_t *type = get(object, "rope_type") != NULL ? get(object, "rope_type") : get(object, "type");
    return type == NULL ? "default" : json_string_value(type);
}

/* transformers reads the two keys of yarn only if neither is zero. */
static bool is_idle_mscale(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return (strcmp(name, "mscale") == 0 || strcmp(name, "mscale_all_dim") == 0) && json_is_number(value) &&
           (json_number_value(get(object, "mscale")) == 0.0 ||
            json_number_value(get(object, "mscale_all_dim")) == 0.0);
}

/* Keys of the scaling object that are not in the table: read elsewhere, or of one value only. */
static enum status check_scaling_key(const struct reader *r, const struct rope_type *scaling,
                                     const json_t *object, const char *name, const json_t *value)
{
    static const char *const read_elsewhere[] = {"type", "rope_type", "rope_theta"};
    for (const struct scaling_key *key = scaling->keys; key->name != NULL; key++)
        if (strcmp(key->name, name) == 0)
            return OK;
    for (size_t i = 0; i < sizeof read_elsewhere / sizeof *read_elsewhere; i++)
        if (strcmp(read_elsewhere[i], name) == 0)
            return OK;
    const bool neutral = (strcmp(name, "partial_rotary_factor") == 0 && json_number_value(value) == 1.0) ||
                         (strcmp(name, "truncate") == 0 && json_is_true(value)) ||
                         (strcmp(scaling->type, "yarn") == 0 && is_idle_mscale(object, name));
    const double factor = json_number_value(get(object, "factor"));
    const double published = 0.1 * log(factor > 1.0 ? factor : 1.0) + 1.0;
    if (neutral || json_is_null(value) ||
        (strcmp(name, "attention_factor") == 0 && fabs(json_number_value(value) - published) < 1e-6))
        return OK;
    char text[JSON_SHOWN_CHARS];
    return fail(BAD_CHECKPOINT,
                "%s: %s %s of rope_type \"%s\" cannot be expressed; Cuboid computes RoPE without it", r->path,
                name, json_shown(value, text), scaling->type);
}

static enum status read_scaling_key(const struct reader *r, const json_t *object,
                                    const struct scaling_key *key)
{
    char value[PRETRAINED_VALUE_CHARS];
    const json_t *number = get(object, key->name);
    const bool is_count = strcmp(key->name, "original_max_position_embeddings") == 0;
    if (number == NULL && key->absent == NULL)
        return fail(BAD_CHECKPOINT, "%s: %s of RoPE is missing", r->path, key->name);
    if (number == NULL && key->absent[0] == 0)
        number = get(r->root, "max_position_embeddings");
    if (number == NULL)
        return set(r, key->name, key->model_key, key->absent);
    // Some files have 8192.0 for a count.
    if (is_count && json_is_real(number) && json_real_value(number) >= 1.0 &&
        json_real_value(number) <= MAX_COUNT && floor(json_real_value(number)) == json_real_value(number))
        snprintf(value, sizeof value, "%.0f", json_real_value(number));
    else
        TRY(is_count ? read_count(r, key->name, number, value) : read_real(r, key->name, number, value));
    return set(r, key->name, key->model_key, value);
}

/* `absent`: the default of rope_theta. */
static enum status read_rope(const struct reader *r, const struct pretrained_key *key)
{
    const json_t *object = get(r->root, "rope_scaling"), *value;
    const char *from = object != NULL ? "rope_scaling" : "rope_parameters", *name;
    char theta[PRETRAINED_VALUE_CHARS];
    if (object == NULL)
        object = get(r->root, "rope_parameters");
    if (object != NULL && !json_is_object(object))
        return not_valid(r, from, object, "an object with rope_type");
    const struct rope_type *scaling = scaling_named(scaling_type(object));
    if (scaling == NULL)
        return refuse(r, from, object, "rope_type default, linear, llama3 and yarn");
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        TRY(check_scaling_key(r, scaling, object, name, value));
    }
    const json_t *base = get(object, key->name) != NULL ? get(object, key->name) : get(r->root, key->name);
    snprintf(theta, sizeof theta, "%s", key->absent);
    if (base != NULL)
        TRY(read_real(r, key->name, base, theta));
    TRY(set(r, key->name, "rotary_base", theta));
    const bool scales = strcmp(scaling->type, "default") != 0;
    TRY(set(r, from, "use_rope_scaling", scales ? "true" : "false"));
    if (scales)
        TRY(set(r, from, "rope_scaling_type", scaling->type));
    for (const struct scaling_key *k = scaling->keys; k->name != NULL; k++)
        TRY(read_scaling_key(r, object, k));
    return OK;
}

/* ---- all keys ---- */

static enum status read_absent(const struct reader *r, const struct pretrained_key *key)
{
    char value[PRETRAINED_VALUE_CHARS];
    if (key->absent == NULL)
        return fail(BAD_CHECKPOINT, "%s: %s is missing, which %s needs", r->path, key->name,
                    r->out->architecture->name);
    if (key->absent[0] == 0 || key->model_key == NULL)
        return OK;
    snprintf(value, sizeof value, "%s", key->absent);
    if (key->kind == PRETRAINED_ACTIVATION)
        TRY(read_activation(r, key->name, key->absent, value));
    return set(r, key->name, key->model_key, value);
}

static enum status read_key(const struct reader *r, const struct pretrained_key *key)
{
    char text[PRETRAINED_VALUE_CHARS] = "";
    const json_t *value = get(r->root, key->name);
    if (key->kind == PRETRAINED_ROPE)
        return read_rope(r, key);
    if (key->kind == PRETRAINED_WINDOW)
        return read_window(r, key);
    if (value == NULL)
        return read_absent(r, key);
    switch (key->kind) {
    case PRETRAINED_COUNT:
        TRY(read_count(r, key->name, value, text));
        break;
    case PRETRAINED_REAL:
        TRY(read_real(r, key->name, value, text));
        break;
    case PRETRAINED_BOOL:
        if (!json_is_boolean(value))
            return not_valid(r, key->name, value, "true or false");
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
        break;
    case PRETRAINED_ACTIVATION:
        if (!json_is_string(value))
            return not_valid(r, key->name, value, "a name");
        TRY(read_activation(r, key->name, json_string_value(value), text));
        break;
    case PRETRAINED_LAYER_TYPES:
        return read_layer_types(r, key->name, value);
    case PRETRAINED_WINDOW_SWITCH:
        return json_is_boolean(value) ? OK : not_valid(r, key->name, value, "true or false");
    case PRETRAINED_FIXED:
        return read_fixed(r, key, value);
    case PRETRAINED_ROPE:
    case PRETRAINED_WINDOW:
    case PRETRAINED_IGNORED:
        return OK;
    }
    return set(r, key->name, key->model_key, text);
}

static void warn_of_unknown_keys(const struct reader *r)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)r->root, name, value)
    {
        char text[JSON_SHOWN_CHARS];
        if (!json_is_null(value) && pretrained_key_find(r->out->architecture, name) == NULL)
            problems_warn(
                r->warnings,
                "%s: %s %s is unknown and ignored; if it changes what the model computes, the result "
                "differs",
                r->path, name, json_shown(value, text));
    }
}

static enum status unknown_architecture(const struct reader *r, const char *key, const json_t *value)
{
    char text[JSON_SHOWN_CHARS];
    AUTO(text) known = {0};
    for (int i = 0; pretrained_architecture(i) != NULL; i++)
        text_add(&known, "%s%s", i > 0 ? ", " : "", pretrained_architecture(i)->name);
    return fail(BAD_CHECKPOINT, "%s: %s %s is not supported; supported are %s", r->path, key,
                json_shown(value, text), text_chars(&known));
}

/* By the name in "architectures", or else by "model_type"; where both are given they must agree. */
static enum status find_architecture(struct reader *r)
{
    const json_t *list = get(r->root, "architectures"), *type = get(r->root, "model_type");
    const char *name = json_string_value(json_array_get(list, 0)), *type_name = json_string_value(type);
    const struct pretrained_architecture **out = &r->out->architecture;
    if (list == NULL && type == NULL)
        return fail(BAD_CHECKPOINT, "%s: has neither architectures nor model_type: not the file of a model",
                    r->path);
    if (list != NULL)
        *out = name != NULL && json_array_size(list) == 1 ? pretrained_architecture_find(name) : NULL;
    else
        *out = type_name != NULL ? pretrained_architecture_of_type(type_name) : NULL;
    if (*out == NULL)
        return unknown_architecture(r, list != NULL ? "architectures" : "model_type",
                                    list != NULL ? list : type);
    if (type != NULL && (type_name == NULL || strcmp(type_name, (*out)->model_type) != 0)) {
        char text[JSON_SHOWN_CHARS];
        return fail(BAD_CHECKPOINT, "%s: model_type %s, but the architecture is %s, of the type \"%s\"",
                    r->path, json_shown(type, text), (*out)->name, (*out)->model_type);
    }
    return OK;
}

static enum status read_all(struct reader *r)
{
    TRY(find_architecture(r));
    const struct pretrained_architecture *architecture = r->out->architecture;
    for (const struct pretrained_pair *pair = architecture->implied; pair->from != NULL; pair++)
        TRY(set(r, architecture->name, pair->from, pair->to));
    for (const struct pretrained_key *key = architecture->keys; key->name != NULL; key++)
        TRY(read_key(r, key));
    warn_of_unknown_keys(r);
    return OK;
}

enum status pretrained_config_parse(const char *path, const struct text *json, struct problems *warnings,
                                    struct pretrained_config *out)
{
    json_error_t error;
    *out = (struct pretrained_config){.count = 0};
    json_t *root = json_read(text_chars(json), json->length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return fail(BAD_CHECKPOINT, "%s:%d:%d: not valid JSON: %s", path, error.line, error.column,
                    error.text);
    struct reader reader = {.path = path, .root = root, .warnings = warnings, .out = out};
    enum status status =
        json_is_object(root) ? read_all(&reader) : fail(BAD_CHECKPOINT, "%s: is not a JSON object", path);
    json_decref(root);
    return status;
}
