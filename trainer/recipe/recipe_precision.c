// SPDX-License-Identifier: Apache-2.0
/* The precision keys of the linear layers, and their rules; the options of layers that follow from the
 * sections `precision` and `memory`. */
#include "base/memory.h"
#include "kernels/ops.h"
#include "trainer/recipe/recipe_rules.h"

#include <string.h>

static const char *const matmul_keys[MATMUL_COUNT] = {
    "precision.forward_format", "precision.grad_input_format", "precision.grad_weight_format"};
static const char *const format_names[MATMUL_FORMAT_COUNT] = {"none",  "e4m3",  "e5m2",   "hybrid",
                                                              "mxfp8", "nvfp4", "ternary"};

/* The key that gives a matmul its format. */
static const char *key_of(const struct recipe *r, int matmul)
{
    const struct recipe_precision *p = &r->precision;
    const int format[MATMUL_COUNT] = {p->forward_format, p->grad_input_format, p->grad_weight_format};
    return format[matmul] == MATMUL_FORMAT_SAME ? "precision.matmul_format" : matmul_keys[matmul];
}

const char *recipe_quantized_format(const struct recipe *recipe, const char **key)
{
    const struct linear_precision *precision = &recipe->layers.precision;
    for (int i = 0; i < MATMUL_COUNT; i++)
        if (precision->format[i] != MATMUL_FORMAT_NONE) {
            *key = key_of(recipe, i);
            return format_names[precision->format[i]];
        }
    return NULL;
}

void recipe_warn_simulated(const struct recipe *recipe, struct problems *problems)
{
    const char *key = NULL, *gpu = recipe_gpu(recipe);
    const char *format = gpu != NULL ? recipe_quantized_format(recipe, &key) : NULL;
    if (format == NULL)
        return;
    AUTO(text) where = {0};
    recipe_origin_text(recipe, recipe_row_index(key), &where);
    problems_warn(problems,
                  "%s: %s %s is simulated bit-exactly on %s, several times slower than bf16: for studies of "
                  "accuracy only",
                  text_chars(&where), key, format, gpu);
}

/* ---- scaling ---- */

/* The first matmul whose format has its own scales; -1: none. */
static int with_own_scales(const struct linear_precision *precision)
{
    for (int i = 0; i < MATMUL_COUNT; i++)
        if (precision->format[i] >= MATMUL_MXFP8)
            return i;
    return -1;
}

static bool scaling_holds(const struct view *v)
{
    const struct linear_precision *precision = &v->recipe->layers.precision;
    return v->recipe->precision.scaling == SCALE_AUTO || with_own_scales(precision) < 0;
}

static void scaling_message(const struct view *v, struct text *out)
{
    static const char *const names[] = {"auto", "tensorwise", "delayed", "blockwise"};
    const struct linear_precision *precision = &v->recipe->layers.precision;
    int matmul = with_own_scales(precision);
    text_add(out,
             "precision.scaling %s applies to e4m3, e5m2 and hybrid, but %s %s has its own scales; use "
             "precision.scaling=auto",
             names[v->recipe->precision.scaling], key_of(v->recipe, matmul),
             format_names[precision->format[matmul]]);
}

/* With post-validation, a rank would start a step before all ranks have contributed to its scales. */
static bool delay_holds(const struct view *v)
{
    return v->recipe->precision.scaling != SCALE_DELAYED || !v->recipe->pipeline.optimizer_post_validation;
}

static void delay_message(const struct view *v, struct text *out)
{
    (void)v;
    text_add(out, "precision.scaling delayed updates scales before each step, but "
                  "pipeline.optimizer_post_validation true starts the step before they are known; use "
                  "pipeline.optimizer_post_validation=false");
}

/* ---- names ---- */

static bool matches_a_layer(const struct recipe *r, const char *name)
{
    for (int64_t layer = 0; layer < r->model.num_layers; layer++)
        for (int i = 0; i < LINEARS_OF_LAYER; i++)
            if (linear_is_named(name, r->model.num_layers, layer, linear_names[i]))
                return true;
    return false;
}

static const char *first_unknown_layer(const struct recipe *r)
{
    for (size_t i = 0; i < r->precision.high_precision_layers.count; i++)
        if (!matches_a_layer(r, r->precision.high_precision_layers.list[i]))
            return r->precision.high_precision_layers.list[i];
    return NULL;
}

static bool names_hold(const struct view *v)
{
    return first_unknown_layer(v->recipe) == NULL;
}

static void names_message(const struct view *v, struct text *out)
{
    text_add(out, "precision.high_precision_layers: ");
    text_add_clean(out, first_unknown_layer(v->recipe));
    text_add(out,
             " is not a linear layer of this model; use layers.0 to layers.%lld, alone or followed "
             "by one of",
             (long long)v->recipe->model.num_layers - 1);
    for (int i = 0; i < LINEARS_OF_LAYER; i++)
        text_add(out, "%s %s", i > 0 ? "," : "", linear_names[i]);
    text_add(out, " (layers.0.mlp.fc2), or one of these alone");
}

/* ---- blocks under tensor parallelism ---- */

static int64_t largest_block(const struct recipe *r, int *matmul)
{
    const struct linear_precision *precision = &r->layers.precision;
    int64_t largest = 1;
    for (int i = 0; i < MATMUL_COUNT; i++) {
        int64_t block = matmul_block(precision->format[i], precision->scaling);
        if (block > largest) {
            largest = block;
            *matmul = i;
        }
    }
    return largest;
}

/* The rows or columns that one rank has of a tensor-parallel dimension. */
struct share {
    const char *what;
    int64_t size;
};

enum { SHARES = 3 };

static void shares_of(const struct recipe *r, struct share out[SHARES])
{
    const struct model_config *m = &r->model;
    int tp = r->parallel.tensor_parallel_size;
    int64_t groups = m->num_query_groups > tp ? m->num_query_groups / tp : 1;
    out[0] = (struct share){"heads", m->num_attention_heads / tp * m->kv_channels};
    out[1] = (struct share){"key and value heads", groups * m->kv_channels};
    out[2] = (struct share){"MLP", m->ffn_hidden_size / tp};
}

static const struct share *first_split_block(const struct recipe *r, struct share shares[SHARES], int *matmul)
{
    int64_t block = largest_block(r, matmul);
    shares_of(r, shares);
    for (int i = 0; i < SHARES && r->parallel.tensor_parallel_size > 1; i++)
        if (shares[i].size % block != 0)
            return &shares[i];
    return NULL;
}

static bool blocks_hold(const struct view *v)
{
    struct share shares[SHARES];
    int matmul = 0;
    return first_split_block(v->recipe, shares, &matmul) == NULL;
}

static void blocks_message(const struct view *v, struct text *out)
{
    const struct recipe *r = v->recipe;
    struct share shares[SHARES];
    int matmul = 0;
    const struct share *share = first_split_block(r, shares, &matmul);
    const struct linear_precision *precision = &r->layers.precision;
    text_add(
        out,
        "parallel.tensor_parallel_size %d gives each rank %lld channels of the %s, not a multiple of the "
        "%lld that share a scale in %s %s%s",
        r->parallel.tensor_parallel_size, (long long)share->size, share->what,
        (long long)largest_block(r, &matmul), key_of(r, matmul), format_names[precision->format[matmul]],
        precision->format[matmul] < MATMUL_MXFP8 ? " with precision.scaling blockwise" : "");
}

/* ---- requirements of formats ---- */

static bool transforms(const struct recipe *r)
{
    return r->layers.precision.format[MATMUL_GRAD_WEIGHT] == MATMUL_NVFP4;
}

static bool tokens_hold(const struct view *v)
{
    return !transforms(v->recipe) || v->recipe->model.seq_length % HADAMARD_ROWS == 0;
}

static void tokens_message(const struct view *v, struct text *out)
{
    text_add(
        out, "model.seq_length %lld is not divisible by %d, the tokens of a Hadamard transform in %s nvfp4",
        (long long)v->recipe->model.seq_length, (int)HADAMARD_ROWS, key_of(v->recipe, MATMUL_GRAD_WEIGHT));
}

static int64_t transformed_tokens(const struct recipe *r)
{
    (void)r;
    return HADAMARD_ROWS;
}

/* ---- loss scaling ---- */

static bool least_scale_holds(const struct view *v)
{
    const struct recipe_precision *p = &v->recipe->precision;
    return p->min_loss_scale <= p->initial_loss_scale;
}

static void least_scale_message(const struct view *v, struct text *out)
{
    const struct recipe_precision *p = &v->recipe->precision;
    text_add(out,
             "precision.min_loss_scale %.9g is above precision.initial_loss_scale %.9g; use "
             "precision.min_loss_scale=%.9g",
             p->min_loss_scale, p->initial_loss_scale, p->initial_loss_scale);
}

/* ---- masters ---- */

static bool main_holds(const struct view *v)
{
    const struct recipe_precision *p = &v->recipe->precision;
    return p->main_params_dtype == F32 || p->main_params_dtype == p->params_dtype;
}

static void main_message(const struct view *v, struct text *out)
{
    text_add(out,
             "precision.main_params_dtype bf16 requires precision.params_dtype bf16, not %s; use "
             "precision.params_dtype=bf16 or precision.main_params_dtype=fp32",
             v->recipe->precision.params_dtype == F32 ? "fp32" : "fp16");
}

#define FORMATS                                                                     \
    "precision.matmul_format precision.forward_format precision.grad_input_format " \
    "precision.grad_weight_format"

static const struct rule rules[] = {
    {"precision.scaling " FORMATS, scaling_holds, scaling_message, {{0}}},
    {"precision.scaling pipeline.optimizer_post_validation", delay_holds, delay_message, {{0}}},
    {"precision.high_precision_layers model.num_layers", names_hold, names_message, {{0}}},
    {"parallel.tensor_parallel_size " FORMATS " precision.scaling model.num_attention_heads "
     "model.num_query_groups model.kv_channels model.hidden_size model.ffn_hidden_size model.activation",
     blocks_hold,
     blocks_message,
     {{.key = "parallel.tensor_parallel_size"}}},
    {"model.seq_length " FORMATS,
     tokens_hold,
     tokens_message,
     {{.key = "model.seq_length", .grid = transformed_tokens}}},
    {"precision.min_loss_scale precision.initial_loss_scale", least_scale_holds, least_scale_message, {{0}}},
    {"precision.main_params_dtype precision.params_dtype", main_holds, main_message, {{0}}},
};
const struct rules recipe_precision_rules = RULES_OF(rules);

/* ---- options of layers ---- */

static unsigned modules_of(const struct recipe_names *names)
{
    unsigned modules = 0;
    const struct recipe_row *row = &recipe_rows[recipe_row_index("memory.recompute_modules")];
    for (size_t i = 0; i < names->count; i++)
        for (const struct choice *c = row->choices; c->name != NULL; c++)
            if (strcmp(names->list[i], c->name) == 0)
                modules |= (unsigned)c->value;
    return modules;
}

/* Fills format, scaling, num_layers and high; the other fields are rows of the table. */
static void derive_precision(struct recipe *recipe)
{
    const struct recipe_precision *p = &recipe->precision;
    struct linear_precision *precision = &recipe->layers.precision;
    const int per_matmul[MATMUL_COUNT] = {p->forward_format, p->grad_input_format, p->grad_weight_format};
    static const enum scaling scalings[] = {
        [SCALE_AUTO] = SCALING_TENSORWISE,
        [SCALE_TENSORWISE] = SCALING_TENSORWISE,
        [SCALE_DELAYED] = SCALING_DELAYED,
        [SCALE_BLOCKWISE] = SCALING_BLOCKWISE,
    };
    precision->scaling = scalings[p->scaling];
    precision->num_layers = recipe->model.num_layers;
    precision->high = p->high_precision_layers.list;
    precision->high_count = p->high_precision_layers.count;
    for (int i = 0; i < MATMUL_COUNT; i++)
        precision->format[i] =
            per_matmul[i] == MATMUL_FORMAT_SAME ? p->matmul_format : (enum matmul_format)per_matmul[i];
}

void recipe_derive_layers(struct recipe *recipe)
{
    recipe->layers.recompute.modules = modules_of(&recipe->memory.recompute_modules);
    derive_precision(recipe);
}

const char *recipe_dtype_name(const struct recipe *recipe)
{
    const enum dtype dtype = recipe->precision.params_dtype;
    return dtype == BF16 ? "bf16" : dtype == F16 ? "fp16" : "fp32";
}
