// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include <stdio.h>

static enum activation_kind kind_of(const struct env *env)
{
    switch (env->model->activation) {
    case GELU:
        return ACTIVATION_GELU;
    case GELU_TANH:
        return ACTIVATION_GELU_TANH;
    case SWIGLU:
        return ACTIVATION_SWIGLU;
    }
    die(__FILE__, __LINE__, "activation", "unknown kind %d", (int)env->model->activation);
}

void mlp_declare_params(struct declaration *d)
{
    const struct model_config *m = d->model;
    static const char *const gated[] = {"mlp.gate", "mlp.up"}, *const plain[] = {"mlp.fc1"};
    const char *const *names = m->activation == SWIGLU ? gated : plain;
    int count = m->activation == SWIGLU ? 2 : 1;
    for (int bias = 0; bias <= (m->add_bias_linear ? 1 : 0); bias++) {
        int first = d->out->count;
        for (int i = 0; i < count; i++) {
            char name[PARAM_NAME_CHARS];
            snprintf(name, sizeof name, "%s.%s", names[i], bias ? "bias" : "weight");
            if (bias)
                declare_cut_bias(d, name, m->ffn_hidden_size);
            else
                declare_matrix(d, name, m->ffn_hidden_size, m->hidden_size, 0, m->init_method_std);
        }
        declare_fused(d, first);
    }
    declare_matrix(d, "mlp.fc2.weight", m->hidden_size, m->ffn_hidden_size, 1, declare_branch_std(d));
    if (m->add_bias_linear)
        declare_hidden_vector(d, "mlp.fc2.bias", INIT_ZERO);
}

struct mlp mlp_declare(const struct env *env, struct layout *layout, int layer)
{
    bool gated = env->model->activation == SWIGLU;
    int64_t tokens = env_tokens(env), features = env->model->ffn_hidden_size / env->groups->tp->size;
    int64_t before = gated ? 2 * features : features;
    struct mlp mlp = {.dafter = {0}};
    mlp.in = column_linear_declare(env, layout,
                                   param_row(env, layer, gated ? "mlp.gate.weight" : "mlp.fc1.weight"),
                                   param_row(env, layer, gated ? "mlp.gate.bias" : "mlp.fc1.bias"));
    mlp.out = row_linear_declare(env, layout, param_row(env, layer, "mlp.fc2.weight"),
                                 param_row(env, layer, "mlp.fc2.bias"));
    mlp.before = layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, tokens, before);
    mlp.after = layout_add_of(layout, RECOMPUTE_ACTIVATION, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, features);
    mlp.dbefore = layout_add(layout, KEEP_INPUT_TO_WEIGHT, tokens, before);
    if (gated)
        mlp.dafter = layout_add(layout, SCRATCH, tokens, features);
    return mlp;
}

enum status mlp_activate(const struct mlp *mlp, const struct pass *pass)
{
    return activation_forward(pass->env->compute,
                              (struct activation_forward){.kind = kind_of(pass->env),
                                                          .x = pass_tensor(pass, mlp->before),
                                                          .y = pass_tensor(pass, mlp->after)});
}

/* If backward recomputes the activation from `before` alone, forward uses the same separate kernel, for
 * bit-identical results. */
static bool activates_behind_product(const struct env *env)
{
    const struct recompute *r = &env->recompute;
    return env->model->activation != SWIGLU &&
           !(r->granularity == RECOMPUTE_SELECTIVE && (r->modules & RECOMPUTE_ACTIVATION) != 0);
}

enum status mlp_forward_features(const struct mlp *mlp, const struct pass *pass, struct tensor x)
{
    struct tensor before = pass_tensor(pass, mlp->before);
    if (activates_behind_product(pass->env))
        return column_linear_forward(
            &mlp->in, pass, x, before,
            (struct epilogue){.activation = kind_of(pass->env), .after = pass_tensor(pass, mlp->after)});
    TRY(column_linear_forward(&mlp->in, pass, x, before, (struct epilogue){0}));
    return mlp_activate(mlp, pass);
}

enum status mlp_forward_out(const struct mlp *mlp, const struct pass *pass, struct tensor *y)
{
    return row_linear_forward(&mlp->out, pass, pass_tensor(pass, mlp->after), y);
}

enum status mlp_forward(const struct mlp *mlp, const struct pass *pass, struct tensor x, struct tensor *y)
{
    TRY(mlp_forward_features(mlp, pass, x));
    return mlp_forward_out(mlp, pass, y);
}

enum status mlp_backward_input(const struct mlp *mlp, const struct pass *pass, struct tensor *dx)
{
    enum activation_kind kind = kind_of(pass->env);
    struct tensor before = pass_tensor(pass, mlp->before), dbefore = pass_tensor(pass, mlp->dbefore);
    if (kind == ACTIVATION_SWIGLU) {
        struct tensor dafter = pass_tensor(pass, mlp->dafter);
        TRY(row_linear_backward_input(&mlp->out, pass, dafter, (struct epilogue){0}));
        TRY(activation_backward(
            pass->env->compute,
            (struct activation_backward){.kind = kind, .x = before, .dy = dafter, .dx = dbefore}));
    } else {
        TRY(row_linear_backward_input(&mlp->out, pass, dbefore,
                                      (struct epilogue){.activation = kind, .before = before}));
    }
    return column_linear_backward_input(&mlp->in, pass, dbefore, dx);
}

enum status mlp_backward_weight(const struct mlp *mlp, const struct pass *pass, struct tensor x)
{
    struct event gathered;
    TRY(column_linear_gather(&mlp->in, pass, x, &gathered));
    TRY(row_linear_backward_weight(&mlp->out, pass, pass_tensor(pass, mlp->after)));
    return column_linear_backward_weight(&mlp->in, pass, x, gathered, pass_tensor(pass, mlp->dbefore));
}
