// SPDX-License-Identifier: Apache-2.0
#include "layers/norm.h"

#include <stdio.h>

void norm_declare_params(struct declaration *d, enum param_role role, const char *name)
{
    char full[PARAM_NAME_CHARS];
    snprintf(full, sizeof full, "%s.weight", name);
    declare_hidden_weight(d, role, full);
    if (d->model->normalization != LAYER_NORM)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    declare_hidden_bias(d, role, full);
}

struct norm norm_declare(const struct env *env, struct slot_layout *layout, int layer, enum param_role role)
{
    int64_t tokens = env_local_tokens(env), hidden = env->model->hidden_size;
    struct norm norm = {
        .weight = params_weight(env->weights->params, layer, role),
        .bias = params_bias(env->weights->params, layer, role),
    };
    CHECK(norm.weight >= 0);
    norm.mean = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 1, tokens);
    norm.rstd = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 1, tokens);
    norm.dweight = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_INPUT_TO_WEIGHT, 1, hidden);
    norm.dbias = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_INPUT_TO_WEIGHT, 1, hidden);
    return norm;
}

static enum norm_kind kind_of(const struct env *env)
{
    return env->model->normalization == LAYER_NORM ? NORM_LAYER : NORM_RMS;
}

static struct tensor vector(const struct pass *pass, struct region region)
{
    return tensor_1d(pass_tensor(pass, region).data, F32, region.columns);
}

static struct tensor value_or_none(const struct env *env, int param)
{
    return param >= 0 ? weights_held(env->weights, param)->weight : (struct tensor){0};
}

struct norm_forward norm_layer_forward(const struct norm *norm, const struct pass *pass, struct tensor x,
                                       struct tensor y)
{
    const struct env *env = pass->env;
    return (struct norm_forward){
        .kind = kind_of(env),
        .x = x,
        .weight = value_or_none(env, norm->weight),
        .bias = value_or_none(env, norm->bias),
        .epsilon = (float)env->model->norm_epsilon,
        .y = y,
        .mean = vector(pass, norm->mean),
        .rstd = vector(pass, norm->rstd),
    };
}

struct norm_backward norm_layer_backward_input(const struct norm *norm, const struct pass *pass,
                                               struct tensor dy, struct tensor x, struct tensor dresidual,
                                               struct tensor dx)
{
    const struct env *env = pass->env;
    return (struct norm_backward){
        .kind = kind_of(env),
        .dy = dy,
        .x = x,
        .weight = value_or_none(env, norm->weight),
        .mean = vector(pass, norm->mean),
        .rstd = vector(pass, norm->rstd),
        .dresidual = dresidual,
        .dx = dx,
        .dweight = vector(pass, norm->dweight),
        .dbias = norm->bias >= 0 ? vector(pass, norm->dbias) : (struct tensor){0},
    };
}

enum status norm_layer_backward_weight(const struct norm *norm, const struct pass *pass)
{
    const struct env *env = pass->env;
    struct tensor dweight = weights_held(env->weights, norm->weight)->gradient;
    TRY(add(env->compute, (struct add){.in = vector(pass, norm->dweight), .out = dweight}));
    if (norm->bias < 0)
        return OK;
    struct tensor dbias = weights_held(env->weights, norm->bias)->gradient;
    return add(env->compute, (struct add){.in = vector(pass, norm->dbias), .out = dbias});
}
