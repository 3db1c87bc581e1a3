// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

void mlp_declare_params(struct declaration *d)
{
    const struct model_config *m = d->model;
    int64_t features = m->ffn_hidden_size, hidden = m->hidden_size;
    bool gated = model_is_gated(m);
    int first = d->out->count;
    if (gated)
        declare_matrix(d, ROLE_MLP_GATE, "mlp.gate.weight", features, hidden, 0, m->init_method_std);
    declare_matrix(d, ROLE_MLP_UP, gated ? "mlp.up.weight" : "mlp.fc1.weight", features, hidden, 0,
                   m->init_method_std);
    declare_fused(d, first);
    first = d->out->count;
    if (gated && m->add_bias_linear)
        declare_sharded_bias(d, ROLE_MLP_GATE, "mlp.gate.bias", features);
    if (m->add_bias_linear)
        declare_sharded_bias(d, ROLE_MLP_UP, gated ? "mlp.up.bias" : "mlp.fc1.bias", features);
    declare_fused(d, first);
    declare_matrix(d, ROLE_MLP_DOWN, "mlp.fc2.weight", hidden, features, 1, declare_branch_std(d));
    if (m->add_bias_linear)
        declare_hidden_bias(d, ROLE_MLP_DOWN, "mlp.fc2.bias");
}

struct mlp mlp_declare(const struct layer_context *context, struct slot_layout *layout, int layer)
{
    const struct params *params = context->weights->params;
    bool gated = model_is_gated(context->model);
    enum param_role first = gated ? ROLE_MLP_GATE : ROLE_MLP_UP; // of the fused matrix
    int64_t tokens = context->tokens, features = context->model->ffn_hidden_size / context->groups->tp->size;
    int64_t before = gated ? 2 * features : features;
    struct mlp mlp = {.dafter = {0}};
    mlp.in = column_linear_declare(context, layout, params_weight(params, layer, first),
                                   params_bias(params, layer, first));
    mlp.out = row_linear_declare(context, layout, params_weight(params, layer, ROLE_MLP_DOWN),
                                 params_bias(params, layer, ROLE_MLP_DOWN));
    mlp.before = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, tokens, before);
    mlp.after =
        slot_layout_add_of(layout, RECOMPUTE_ACTIVATION, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, features);
    mlp.dbefore = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, tokens, before);
    if (gated)
        mlp.dafter = slot_layout_add(layout, SCRATCH, tokens, features);
    return mlp;
}

enum status mlp_activate(const struct mlp *mlp, const struct pass *pass)
{
    return activation_forward(pass->context->compute,
                              (struct activation_forward){.kind = pass->context->model->activation,
                                                          .x = pass_tensor(pass, mlp->before),
                                                          .y = pass_tensor(pass, mlp->after)});
}

/* If backward recomputes the activation from `before` alone, forward uses the same separate kernel, for
 * bit-identical results. */
static bool fuses_activation(const struct layer_context *context)
{
    const struct recompute *r = &context->options->recompute;
    return !model_is_gated(context->model) &&
           !(r->granularity == RECOMPUTE_SELECTIVE && (r->modules & RECOMPUTE_ACTIVATION) != 0);
}

enum status mlp_forward_features(const struct mlp *mlp, const struct pass *pass, struct tensor x)
{
    struct tensor before = pass_tensor(pass, mlp->before);
    if (fuses_activation(pass->context))
        return column_linear_forward(&mlp->in, pass, x, before,
                                     (struct epilogue){.activation = pass->context->model->activation,
                                                       .after = pass_tensor(pass, mlp->after)});
    TRY(column_linear_forward(&mlp->in, pass, x, before, (struct epilogue){0}));
    return mlp_activate(mlp, pass);
}

enum status mlp_forward_out(const struct mlp *mlp, const struct pass *pass, struct tensor addend,
                            struct tensor *y)
{
    return row_linear_forward(&mlp->out, pass, pass_tensor(pass, mlp->after), addend, y);
}

/* Everything but the matmul with the first layer's weight. */
static enum status backward_features(const struct mlp *mlp, const struct pass *pass)
{
    enum activation kind = pass->context->model->activation;
    struct tensor before = pass_tensor(pass, mlp->before), dbefore = pass_tensor(pass, mlp->dbefore);
    if (activation_is_gated(kind)) {
        struct tensor dafter = pass_tensor(pass, mlp->dafter);
        TRY(row_linear_backward_input(&mlp->out, pass, dafter, (struct epilogue){0}));
        return activation_backward(
            pass->context->compute,
            (struct activation_backward){.kind = kind, .x = before, .dy = dafter, .dx = dbefore});
    }
    return row_linear_backward_input(&mlp->out, pass, dbefore,
                                     (struct epilogue){.activation = kind, .before = before});
}

enum status mlp_backward_input(const struct mlp *mlp, const struct pass *pass, struct tensor *dx)
{
    TRY(backward_features(mlp, pass));
    return column_linear_backward_input(&mlp->in, pass, pass_tensor(pass, mlp->dbefore), (struct tensor){0},
                                        dx);
}

enum status mlp_backward_input_partial(const struct mlp *mlp, const struct pass *pass, struct tensor *partial)
{
    TRY(backward_features(mlp, pass));
    return column_linear_backward_input_partial(&mlp->in, pass, pass_tensor(pass, mlp->dbefore), partial);
}

enum status mlp_backward_weight(const struct mlp *mlp, const struct pass *pass, struct tensor x)
{
    struct event gathered;
    TRY(column_linear_gather(&mlp->in, pass, x, &gathered));
    TRY(row_linear_backward_weight(&mlp->out, pass, pass_tensor(pass, mlp->after)));
    return column_linear_backward_weight(&mlp->in, pass, x, gathered, pass_tensor(pass, mlp->dbefore));
}
