// SPDX-License-Identifier: Apache-2.0
/* A model of config.json as a recipe, and the other way round. Whether an architecture expresses a recipe is
 * decided by writing its config.json and reading that back: the two recipes must have the same model. */
#include "trainer/checkpoint/huggingface/pretrained_recipe.h"

#include "base/memory.h"
#include "trainer/files/problems.h"
#include "trainer/files/yaml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- config.json to recipe ---- */

void pretrained_config_yaml(const struct pretrained_config *config, struct text *out)
{
    text_add(out, "model:\n");
    for (int i = 0; i < config->count; i++)
        text_add(out, "  %s: %s\n", config->values[i].key, config->values[i].value);
}

/* On one line, since messages count the lines of this text. */
static void add_model(const struct pretrained_config *config, struct text *out)
{
    text_add(out, "model: {");
    for (int i = 0; i < config->count; i++)
        text_add(out, "%s%s: %s", i > 0 ? ", " : "", config->values[i].key, config->values[i].value);
    text_add(out, "}\n");
}

static const char *first_error(const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        if (!problems->list[i].warning)
            return problems->list[i].text;
    return "the model is not valid";
}

/* The key of config.json with the value of a model key; NULL: none. */
static const char *their_key(const struct pretrained_config *config, const char *ours, size_t length)
{
    const struct pretrained_architecture *architecture = config->architecture;
    for (int i = 0; i < config->count; i++)
        if (strlen(config->values[i].key) == length && strncmp(config->values[i].key, ours, length) == 0 &&
            config->values[i].from != architecture->name)
            return config->values[i].from;
    for (const struct pretrained_key *key = architecture->keys; key->name != NULL; key++)
        if (key->model_key != NULL && strlen(key->model_key) == length &&
            strncmp(key->model_key, ours, length) == 0)
            return key->name;
    return NULL;
}

void pretrained_config_explain(const struct pretrained_config *config, const char *path, const char *message,
                               struct text *out)
{
    static const char section[] = "model.", letters[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    const size_t where = strlen(path);
    if (strncmp(message, path, where) == 0 && strncmp(message + where, ":1: ", 4) == 0) {
        text_add(out, "%s: ", path);
        message += where + 4;
    }
    for (const char *key; (key = strstr(message, section)) != NULL;) {
        const char *name = key + strlen(section);
        const size_t length = strspn(name, letters);
        const char *theirs = their_key(config, name, length);
        text_add_bytes(out, message, (size_t)((theirs != NULL ? key : name) - message));
        text_add(out, "%s", theirs != NULL ? theirs : "");
        message = theirs != NULL ? name + length : name;
    }
    text_add(out, "%s", message);
}

void pretrained_tokenizer_yaml(const char *type, const char *path, struct text *out)
{
    text_add(out, "tokenizer:\n  tokenizer_type: %s\n", type != NULL ? type : "none");
    if (type == NULL)
        return;
    text_add(out, "  tokenizer_model: ");
    yaml_add_string(out, path, NULL);
    text_add(out, "\n");
}

enum status pretrained_recipe(const struct pretrained_config *config, const char *path, const char *name,
                              const char *type, const char *tokenizer, struct recipe **out)
{
    AUTO(text) text = {0};
    struct problems problems = {0};
    add_model(config, &text);
    text_add(&text, "name: ");
    yaml_add_string(&text, name, "auto");
    text_add(&text, "\ntrain: {global_batch_size: 1, train_iters: 0}\noptimizer: {lr: 1.0e-5}\n"
                    "data: {mock_data: true}\n");
    pretrained_tokenizer_yaml(type, tokenizer, &text);
    enum status status =
        recipe_load(&(struct recipe_input){.path = path, .text = text_chars(&text)}, out, &problems);
    if (status != OK)
        status = fail(BAD_CHECKPOINT, "%s", first_error(&problems));
    problems_free(&problems);
    return status;
}

/* ---- recipe to config.json ---- */

static void add_key(struct text *out, const char *name)
{
    text_add(out, "%s\n  ", out->length > 1 ? "," : "");
    text_add_json(out, name);
    text_add(out, ": ");
}

/* With a point or an exponent, so that it is read as a float. */
static void add_real(struct text *out, double value)
{
    char number[NUMBER_CHARS];
    number_text(value, number);
    text_add(out, "%s%s", number, strpbrk(number, ".e") != NULL ? "" : ".0");
}

static const char *their_activation(const struct pretrained_architecture *architecture, const char *ours)
{
    for (const struct pretrained_pair *pair = architecture->activations; pair->from != NULL; pair++)
        if (strcmp(pair->to, ours) == 0)
            return pair->from;
    return architecture->activations[0].from; // read back as another one
}

/* NTK-aware scaling is another base. */
static double base_of(const struct model_config *m)
{
    const double rotated = (double)model_rotated_channels(m);
    return m->use_rope_scaling && m->rope_scaling_type == ROPE_NTK && rotated > 2.0
               ? m->rotary_base * pow(m->rope_scaling_factor, rotated / (rotated - 2.0))
               : m->rotary_base;
}

static void add_rope(const struct model_config *m, struct text *out)
{
    add_key(out, "rope_theta");
    add_real(out, base_of(m));
    add_key(out, "rope_scaling");
    if (!m->use_rope_scaling || m->rope_scaling_type == ROPE_NTK) {
        text_add(out, "null");
        return;
    }
    const char *const types[] = {[ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn"};
    text_add(out, "{\"rope_type\": \"%s\", \"factor\": ", types[m->rope_scaling_type]);
    add_real(out, m->rope_scaling_factor);
    if (m->rope_scaling_type == ROPE_LLAMA3) {
        text_add(out, ", \"low_freq_factor\": ");
        add_real(out, m->rope_low_freq_factor);
        text_add(out, ", \"high_freq_factor\": ");
        add_real(out, m->rope_high_freq_factor);
    }
    if (m->rope_scaling_type == ROPE_YARN) {
        text_add(out, ", \"beta_fast\": ");
        add_real(out, m->rope_beta_fast);
        text_add(out, ", \"beta_slow\": ");
        add_real(out, m->rope_beta_slow);
    }
    if (m->rope_scaling_type != ROPE_LINEAR)
        text_add(out, ", \"original_max_position_embeddings\": %lld",
                 (long long)m->rope_original_max_position_embeddings);
    text_add(out, "}");
}

/* Qwen's switch; the layers with the window as a list, and where possible as the first of them. */
static void add_window_layers(const struct model_config *m, struct text *out)
{
    int64_t windows = 0, first = -1;
    text_add(out, "%s", m->window_size > 0 ? "true" : "false");
    if (m->window_size == 0)
        return;
    add_key(out, "layer_types");
    text_add(out, "[");
    for (int64_t i = 0; i < m->num_layers; i++) {
        const bool window = model_window(m, i) > 0;
        first = window && first < 0 ? i : first;
        windows += window;
        text_add(out, "%s\"%s\"", i > 0 ? ", " : "", window ? "sliding_attention" : "full_attention");
    }
    text_add(out, "]");
    if (first < 0 || windows == m->num_layers - first) {
        add_key(out, "max_window_layers");
        text_add(out, "%lld", (long long)(first < 0 ? m->num_layers : first));
    }
}

/* Appends the value of model.seq_length. */
static void add_context(const struct recipe *recipe, const struct pretrained_details *details,
                        struct text *out)
{
    const int64_t own = recipe->model.seq_length;
    text_add(out, "%lld",
             (long long)(recipe->model.position_embedding == LEARNED_ABSOLUTE || details->context < own
                             ? own
                             : details->context));
}

static void add_value(const struct recipe *recipe, const struct pretrained_architecture *architecture,
                      const struct pretrained_key *key, const struct pretrained_details *details,
                      struct text *out)
{
    AUTO(text) value = {0};
    char dotted[RECIPE_KEY_CHARS];
    double real;
    if (key->model_key != NULL) {
        snprintf(dotted, sizeof dotted, "model.%s", key->model_key);
        recipe_key_text(recipe, dotted, &value);
        add_key(out, key->name);
    }
    switch (key->kind) {
    case PRETRAINED_COUNT:
        if (strcmp(key->model_key, "seq_length") == 0)
            add_context(recipe, details, out);
        else
            text_add(out, "%s", text_chars(&value));
        break;
    case PRETRAINED_BOOL:
        text_add(out, "%s", text_chars(&value));
        break;
    case PRETRAINED_REAL:
        CHECK(number_parse(text_chars(&value), &real));
        add_real(out, real);
        break;
    case PRETRAINED_ACTIVATION:
        text_add_json(out, their_activation(architecture, text_chars(&value)));
        break;
    case PRETRAINED_ROPE:
        add_rope(&recipe->model, out);
        break;
    case PRETRAINED_WINDOW:
        add_key(out, key->name);
        if (recipe->model.window_size > 0)
            text_add(out, "%lld", (long long)recipe->model.window_size);
        else
            text_add(out, "null");
        break;
    case PRETRAINED_WINDOW_SWITCH:
        add_key(out, key->name);
        add_window_layers(&recipe->model, out);
        break;
    case PRETRAINED_LAYER_TYPES:
    case PRETRAINED_FIXED: // the value of a missing key
    case PRETRAINED_IGNORED:
        break;
    }
}

static void add_token(struct text *out, const char *name, int32_t id)
{
    add_key(out, name);
    if (id >= 0)
        text_add(out, "%d", id);
    else
        text_add(out, "null");
}

static void write_config(const struct recipe *recipe, const struct pretrained_architecture *architecture,
                         const struct pretrained_details *details, struct text *out)
{
    text_add(out, "{");
    add_key(out, "architectures");
    text_add(out, "[\"%s\"]", architecture->name);
    add_key(out, "model_type");
    text_add_json(out, architecture->model_type);
    for (const struct pretrained_key *key = architecture->keys; key->name != NULL; key++)
        add_value(recipe, architecture, key, details, out);
    add_key(out, "torch_dtype");
    text_add_json(out, details->dtype);
    add_token(out, "bos_token_id", details->ids->bos);
    add_key(out, "eos_token_id");
    pretrained_ids_ends_text(details->ids, out);
    if (details->ids->pad >= 0)
        add_token(out, "pad_token_id", details->ids->pad);
    text_add(out, "\n}\n");
}

/* ---- comparison ---- */

/* Whether a key of the model changes its function, given the other keys. Training options do not. */
static bool has_effect(const struct model_config *m, const char *key)
{
    static const char *const training[] = {"make_vocab_size_divisible_by", "hidden_dropout",
                                           "attention_dropout", "init_method_std", "attention_backend"};
    const bool scales = m->use_rope_scaling, llama3 = m->rope_scaling_type == ROPE_LLAMA3,
               yarn = m->rope_scaling_type == ROPE_YARN;
    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        if (strcmp(training[i], key) == 0)
            return false;
    if (strcmp(key, "add_qkv_bias") == 0)
        return !m->add_bias_linear;
    if (strcmp(key, "seq_length") == 0)
        return m->position_embedding == LEARNED_ABSOLUTE;
    const bool is_rope = strncmp(key, "rope_", 5) == 0 || strcmp(key, "use_rope_scaling") == 0;
    if ((is_rope || strncmp(key, "rotary_", 7) == 0) && m->position_embedding != ROPE)
        return false;
    if ((is_rope || strcmp(key, "rotary_base") == 0) && scales && m->rope_scaling_type == ROPE_NTK)
        return false; // exported as another base
    if (strncmp(key, "rope_", 5) == 0 && !scales)
        return false;
    if (strcmp(key, "rope_low_freq_factor") == 0 || strcmp(key, "rope_high_freq_factor") == 0)
        return llama3;
    if (strncmp(key, "rope_beta_", 10) == 0)
        return yarn;
    return strcmp(key, "rope_original_max_position_embeddings") != 0 || llama3 || yarn;
}

/* The keys that a token of a sequence attends to, at most. */
static int64_t most_keys(const struct model_config *m, int64_t layer, int64_t tokens)
{
    const int64_t window = model_window(m, layer);
    return window > 0 && window < tokens ? window : tokens;
}

static bool same_windows(const struct model_config *a, const struct model_config *b)
{
    const int64_t tokens = a->seq_length > b->seq_length ? a->seq_length : b->seq_length;
    bool same = a->num_layers == b->num_layers;
    for (int64_t i = 0; same && i < a->num_layers; i++)
        same = most_keys(a, i, tokens) == most_keys(b, i, tokens);
    return same;
}

/* Returns the number of keys that differ; *first: the first of them. */
static int differences(const struct recipe *a, const struct recipe *b, const char **first)
{
    int count = 0;
    const char *key;
    const bool windows = !same_windows(&a->model, &b->model);
    for (int i = 0; (key = recipe_model_key(i)) != NULL; i++) {
        AUTO(text) ours = {0}, theirs = {0};
        recipe_key_text(a, key, &ours);
        recipe_key_text(b, key, &theirs);
        const bool is_window = strncmp(key, "model.window_", strlen("model.window_")) == 0;
        if ((is_window ? windows : has_effect(&a->model, strchr(key, '.') + 1)) &&
            strcmp(text_chars(&ours), text_chars(&theirs)) != 0 && count++ == 0)
            *first = key;
    }
    return count;
}

/* Appends the config.json of the architecture, and counts the keys of the model that it does not express. */
static enum status try_architecture(const struct recipe *recipe,
                                    const struct pretrained_architecture *architecture,
                                    const struct pretrained_details *details, struct text *out, int *count,
                                    const char **first)
{
    struct problems warnings = {0};
    struct pretrained_config config;
    struct recipe *back = NULL;
    write_config(recipe, architecture, details, out);
    enum status status = pretrained_config_parse("config.json", out, &warnings, &config);
    if (status == OK)
        status = pretrained_recipe(&config, "config.json", "export", NULL, NULL, &back);
    if (status == OK)
        *count = differences(recipe, back, first);
    if (status == OK && *count == 0 && architecture->needs_whole_heads &&
        recipe->model.hidden_size % recipe->model.num_attention_heads != 0) {
        *count = 1;
        *first = "model.num_attention_heads";
    }
    problems_free(&warnings);
    recipe_destroy(back);
    return status;
}

static enum status refuse(const struct recipe *recipe, const struct pretrained_architecture *nearest,
                          const char *key)
{
    AUTO(text) value = {0};
    recipe_key_text(recipe, key, &value);
    return fail(BAD_RECIPE,
                "%s %s cannot be expressed by %s, the architecture that comes closest (others "
                "differ in more keys)",
                key, text_chars(&value), nearest->name);
}

enum status pretrained_config_write(const struct recipe *recipe, const char *name,
                                    const struct pretrained_details *details,
                                    const struct pretrained_architecture **out_architecture, struct text *out)
{
    const struct pretrained_architecture *architecture, *nearest = NULL, *preferred = details->preferred;
    const char *nearest_key = NULL;
    int fewest = 0;
    for (int i = preferred != NULL ? -1 : 0;
         (architecture = i < 0 ? preferred : pretrained_architecture(i)) != NULL; i++) {
        struct text text = {0};
        const char *key = NULL;
        int count = 0;
        if ((name != NULL && strcmp(name, architecture->name) != 0) || (i >= 0 && architecture == preferred))
            continue;
        enum status status = try_architecture(recipe, architecture, details, &text, &count, &key);
        if (status == OK && count == 0) {
            *out_architecture = architecture;
            *out = text;
            return OK;
        }
        text_free(&text);
        if (status == OK && (nearest == NULL || count < fewest)) {
            nearest = architecture;
            nearest_key = key;
            fewest = count;
        }
    }
    return nearest != NULL ? refuse(recipe, nearest, nearest_key)
                           : fail(BAD_RECIPE, "no architecture expresses this model: %s", fail_text());
}
