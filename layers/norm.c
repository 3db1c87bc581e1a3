// SPDX-License-Identifier: Apache-2.0
#include "layers/norm.h"

#include <stdio.h>

static void declare_parts(struct declaration *d, enum param_role role, const char *name,
                          struct param *(*weight)(struct declaration *, enum param_role, const char *),
                          struct param *(*bias)(struct declaration *, enum param_role, const char *))
{
    char full[PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "%s.weight", name);
    weight(d, role, full);
    if (d->model->normalization != LAYER_NORM)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    bias(d, role, full);
}

void norm_declare_params(struct declaration *d, enum param_role role, const char *name)
{
    declare_parts(d, role, name, declare_hidden_weight, declare_hidden_bias);
}

void norm_declare_head_params(struct declaration *d, enum param_role role, const char *name)
{
    declare_parts(d, role, name, declare_head_weight, declare_head_bias);
}

/* `count` norms with one weight of `columns` elements, each of `tokens` rows. */
static struct norm declare_norms(const struct layer_context *context, struct slot_layout *layout, int layer,
                                 enum param_role role, int64_t count, int64_t tokens, int64_t columns)
{
    struct norm norm = {
        .weight = params_weight(context->weights->params, layer, role),
        .bias = params_bias(context->weights->params, layer, role),
    };
    CHECK(norm.weight >= 0);
    norm.mean = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, count, tokens);
    norm.rstd = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, count, tokens);
    norm.dweight = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_INPUT_TO_WEIGHT, count, columns);
    norm.dbias = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_INPUT_TO_WEIGHT, count, columns);
    return norm;
}

struct norm norm_declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                         enum param_role role)
{
    return declare_norms(context, layout, layer, role, 1, context_local_tokens(context),
                         context->model->hidden_size);
}

struct norm norm_declare_heads(const struct layer_context *context, struct slot_layout *layout, int layer,
                               enum param_role role, int64_t heads)
{
    return declare_norms(context, layout, layer, role, heads, context->tokens, context->model->kv_channels);
}

static enum norm_kind kind_of(const struct layer_context *context)
{
    return context->model->normalization == LAYER_NORM ? NORM_LAYER : NORM_RMS;
}

/* Row `index`. */
static struct tensor vector(const struct pass *pass, struct region region, int64_t index)
{
    float *data = pass_tensor(pass, region).data;
    return tensor_1d(data + index * region.columns, F32, region.columns);
}

static struct tensor value_or_none(const struct layer_context *context, int param)
{
    return param >= 0 ? weights_held(context->weights, param)->weight : (struct tensor){0};
}

static struct norm_forward forward_of(const struct norm *norm, const struct pass *pass, int64_t index,
                                      struct tensor x, struct tensor y)
{
    const struct layer_context *context = pass->context;
    return (struct norm_forward){
        .kind = kind_of(context),
        .x = x,
        .weight = value_or_none(context, norm->weight),
        .bias = value_or_none(context, norm->bias),
        .epsilon = (float)context->model->norm_epsilon,
        .y = y,
        .mean = vector(pass, norm->mean, index),
        .rstd = vector(pass, norm->rstd, index),
    };
}

struct norm_forward norm_layer_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                                       struct tensor y)
{
    return forward_of(norm, pass, 0, x, y);
}

static struct norm_backward backward_of(const struct norm *norm, const struct pass *pass, int64_t index,
                                        struct tensor dy, struct tensor x, struct tensor dresidual,
                                        struct tensor dx)
{
    const struct layer_context *context = pass->context;
    return (struct norm_backward){
        .kind = kind_of(context),
        .dy = dy,
        .x = x,
        .weight = value_or_none(context, norm->weight),
        .mean = vector(pass, norm->mean, index),
        .rstd = vector(pass, norm->rstd, index),
        .dresidual = dresidual,
        .dx = dx,
        .dweight = vector(pass, norm->dweight, index),
        .dbias = norm->bias >= 0 ? vector(pass, norm->dbias, index) : (struct tensor){0},
    };
}

struct norm_backward norm_layer_backward_input(const struct norm *norm, const struct pass *pass,
                                               struct tensor dy, struct tensor x, struct tensor dresidual,
                                               struct tensor dx)
{
    return backward_of(norm, pass, 0, dy, x, dresidual, dx);
}

/* The columns of a head. */
static struct tensor head_of(const struct pass *pass, struct tensor x, int64_t head)
{
    int64_t d = pass->context->model->kv_channels;
    return tensor_columns(x, head * d, (head + 1) * d);
}

enum status norm_heads_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                               struct tensor y)
{
    for (int64_t h = 0; h < norm->mean.rows; h++)
        TRY(norm_forward(pass->context->compute,
                         forward_of(norm, pass, h, head_of(pass, x, h), head_of(pass, y, h))));
    return OK;
}

enum status norm_heads_backward_input(const struct norm *norm, const struct pass *pass, struct tensor dy,
                                      struct tensor x, struct tensor dx)
{
    for (int64_t h = 0; h < norm->mean.rows; h++)
        TRY(norm_backward(pass->context->compute,
                          backward_of(norm, pass, h, head_of(pass, dy, h), head_of(pass, x, h),
                                      (struct tensor){0}, head_of(pass, dx, h))));
    return OK;
}

/* gradient += the rows of `sums`, in their order. */
static enum status add_rows(const struct pass *pass, struct region sums, int param)
{
    struct tensor gradient = weights_held(pass->context->weights, param)->gradient;
    for (int64_t i = 0; i < sums.rows; i++)
        TRY(add(pass->context->compute, (struct add){.in = vector(pass, sums, i), .out = gradient}));
    return OK;
}

enum status norm_layer_backward_weight(const struct norm *norm, const struct pass *pass)
{
    TRY(add_rows(pass, norm->dweight, norm->weight));
    return norm->bias >= 0 ? add_rows(pass, norm->dbias, norm->bias) : OK;
}
