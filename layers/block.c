// SPDX-License-Identifier: Apache-2.0
#include "layers/block.h"

#include <stdio.h>

static struct philox site(const struct env *env, int layer, const char *branch)
{
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "layers.%d.%s.dropout", layer, branch);
    return philox_named(env->seed, name);
}

struct block block_declare(const struct env *env, struct layout *layout, int layer, struct region x)
{
    int64_t tokens = env_local_tokens(env), hidden = env->model->hidden_size;
    struct block block = {
        .layer = layer,
        .again = layout->again,
        .x = x,
        .attention_site = site(env, layer, "attention"),
        .mlp_site = site(env, layer, "mlp"),
    };
    char name[PARAM_NAME_CHARS];
    snprintf(name, sizeof name, "layers.%d.norm1", layer);
    block.norm1 = norm_declare(env, layout, name);
    block.normed1 = layout_add_of(layout, RECOMPUTE_NORM, HOME_UNTIL_WEIGHT, tokens, hidden);
    // The branches never run at once: they share their scratch.
    size_t scratch = layout->bytes[HOME_SCRATCH];
    block.attention = attention_declare(env, layout, layer);
    size_t most = layout->bytes[HOME_SCRATCH];
    layout->bytes[HOME_SCRATCH] = scratch;

    block.middle = layout_add(layout, HOME_UNTIL_INPUT, tokens, hidden);
    snprintf(name, sizeof name, "layers.%d.norm2", layer);
    block.norm2 = norm_declare(env, layout, name);
    block.normed2 = layout_add_of(layout, RECOMPUTE_NORM, HOME_UNTIL_WEIGHT, tokens, hidden);
    block.mlp = mlp_declare(env, layout, layer);
    if (layout->bytes[HOME_SCRATCH] < most)
        layout->bytes[HOME_SCRATCH] = most;
    return block;
}

/* out = residual + dropout(branch + bias of the branch's last layer) */
static enum status add_branch(const struct pass *pass, const struct row_linear *last,
                              struct philox dropout_site, struct tensor branch, struct tensor residual,
                              struct tensor out)
{
    return residual_forward(pass->env->compute, (struct residual_forward){
                                                    .x = branch,
                                                    .bias = row_linear_bias(last, pass),
                                                    .residual = residual,
                                                    .out = out,
                                                    .dropout = pass_hidden_dropout(pass, dropout_site),
                                                });
}

/* Up to the last matrix. */
static enum status forward_features(const struct block *block, const struct pass *pass)
{
    struct tensor x = pass_tensor(pass, block->x), middle = pass_tensor(pass, block->middle);
    struct tensor normed1 = pass_tensor(pass, block->normed1), normed2 = pass_tensor(pass, block->normed2);
    struct tensor branch;
    TRY(norm_layer_forward(&block->norm1, pass, x, normed1));
    TRY(attention_layer_forward(&block->attention, pass, normed1, &branch));
    TRY(add_branch(pass, &block->attention.proj, block->attention_site, branch, x, middle));
    TRY(norm_layer_forward(&block->norm2, pass, middle, normed2));
    return mlp_forward_features(&block->mlp, pass, normed2);
}

enum status block_forward(const struct block *block, const struct pass *pass, struct tensor out)
{
    struct tensor branch;
    TRY(forward_features(block, pass));
    TRY(mlp_forward_out(&block->mlp, pass, &branch));
    return add_branch(pass, &block->mlp.out, block->mlp_site, branch, pass_tensor(pass, block->middle), out);
}

enum status block_forward_again(const struct block *block, const struct pass *pass, struct tensor out)
{
    if ((block->again & RECOMPUTE_LAYER) != 0)
        return out.data != NULL ? block_forward(block, pass, out) : forward_features(block, pass);
    if ((block->again & RECOMPUTE_NORM) != 0) {
        TRY(norm_layer_forward(&block->norm1, pass, pass_tensor(pass, block->x),
                               pass_tensor(pass, block->normed1)));
        TRY(norm_layer_forward(&block->norm2, pass, pass_tensor(pass, block->middle),
                               pass_tensor(pass, block->normed2)));
    }
    if ((block->again & RECOMPUTE_CORE_ATTENTION) != 0)
        TRY(attention_core_again(&block->attention, pass));
    return (block->again & RECOMPUTE_ACTIVATION) != 0 ? mlp_activate(&block->mlp, pass) : OK;
}

/* The gradient of a branch's last layer: dx through the dropout mask. */
static enum status enter_branch(const struct pass *pass, const struct row_linear *last,
                                struct philox dropout_site, struct tensor dx)
{
    return residual_backward(pass->env->compute, (struct residual_backward){
                                                     .dout = dx,
                                                     .dx = pass_tensor(pass, last->dy),
                                                     .dropout = pass_hidden_dropout(pass, dropout_site),
                                                 });
}

enum status block_backward_input(const struct block *block, const struct pass *pass, struct tensor dx)
{
    // dx runs down the residual stream; each branch adds its part to it.
    struct tensor dnormed;
    TRY(enter_branch(pass, &block->mlp.out, block->mlp_site, dx));
    TRY(mlp_backward_input(&block->mlp, pass, &dnormed));
    TRY(norm_layer_backward_input(&block->norm2, pass, dnormed, pass_tensor(pass, block->middle), dx));

    TRY(enter_branch(pass, &block->attention.proj, block->attention_site, dx));
    TRY(attention_layer_backward_input(&block->attention, pass, &dnormed));
    return norm_layer_backward_input(&block->norm1, pass, dnormed, pass_tensor(pass, block->x), dx);
}

enum status block_backward_weight(const struct block *block, const struct pass *pass)
{
    TRY(mlp_backward_weight(&block->mlp, pass, pass_tensor(pass, block->normed2)));
    TRY(norm_layer_backward_weight(&block->norm2, pass));
    TRY(attention_layer_backward_weight(&block->attention, pass, pass_tensor(pass, block->normed1)));
    return norm_layer_backward_weight(&block->norm1, pass);
}
