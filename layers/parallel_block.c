// SPDX-License-Identifier: Apache-2.0
/* A pre-norm transformer block whose branches have the same input (GPT-J, GPT-NeoX, MegaScale):
 *
 *      ┌──norm1──attention──dropout──┐
 *   x ─┼────────────────────────────(+)── out
 *      └──norm2────mlp──────dropout──┘
 *
 *   BLOCK_PARALLEL              norm2 is norm1: one tensor, one weight, and one gradient, which is the sum of
 *                               those of the branches
 *   BLOCK_PARALLEL_TWO_NORMS    each branch has its own
 *
 * Nothing between the branches is kept, and no branch reads the other's output: recomputation needs neither
 * of the last matmuls. In the backward pass the gradients of both branches are in scratch memory at once.
 *
 * Tensor parallelism: the partial results of both branches are added before their sum over tp. So a layer has
 * one reduction forward, but one for each branch with hidden dropout, whose masks come after the sum; and one
 * backward, but two with two norms, each of which needs its own gradient. */
#include "layers/attention.h"
#include "layers/branch.h"
#include "layers/mlp.h"
#include "layers/model.h"
#include "layers/norm.h"

struct parallel_block {
    bool two_norms;
    struct norm norm1, norm2; // norm2: with two_norms
    struct attention attention;
    struct mlp mlp;
    struct philox attention_site, mlp_site; // random streams of the hidden dropout after each branch
    unsigned recomputed;                    // recomputed modules (enum recompute_module)
    struct region x;                        // [T or T/tp, H]: the input
    struct region normed1, normed2;         // KEEP_UNTIL_BACKWARD_WEIGHT; the same with one norm
};

static bool has_two_norms(const struct model_config *model)
{
    return model->block_type == BLOCK_PARALLEL_TWO_NORMS;
}

static void declare_params(struct declaration *d)
{
    norm_declare_params(d, ROLE_ATTENTION_NORM, "norm1");
    attention_declare_params(d);
    if (has_two_norms(d->model))
        norm_declare_params(d, ROLE_MLP_NORM, "norm2");
    mlp_declare_params(d);
}

static void declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                    struct region x, void *self)
{
    int64_t tokens = context_local_tokens(context), hidden = context->model->hidden_size;
    struct parallel_block block = {
        .two_norms = has_two_norms(context->model),
        .recomputed = layout->recomputed,
        .x = x,
        .attention_site = branch_site(context, layer, "attention"),
        .mlp_site = branch_site(context, layer, "mlp"),
    };
    block.norm1 = norm_declare(context, layout, layer, ROLE_ATTENTION_NORM);
    block.normed1 = block.normed2 =
        slot_layout_add_of(layout, RECOMPUTE_NORM, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, hidden);
    if (block.two_norms) {
        block.norm2 = norm_declare(context, layout, layer, ROLE_MLP_NORM);
        block.normed2 =
            slot_layout_add_of(layout, RECOMPUTE_NORM, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, hidden);
    }
    block.attention = attention_declare(context, layout, layer);
    block.mlp = mlp_declare(context, layout, layer);
    *(struct parallel_block *)self = block;
}

static enum status forward_norms(const struct parallel_block *block, const struct pass *pass)
{
    struct stream *compute = pass->context->compute;
    struct tensor x = pass_tensor(pass, block->x);
    TRY(norm_forward(compute, norm_layer_forward(&block->norm1, pass, x, pass_tensor(pass, block->normed1))));
    if (!block->two_norms)
        return OK;
    return norm_forward(compute,
                        norm_layer_forward(&block->norm2, pass, x, pass_tensor(pass, block->normed2)));
}

/* All but the last matmuls and the residual. */
static enum status forward_features(const struct parallel_block *block, const struct pass *pass)
{
    TRY(forward_norms(block, pass));
    TRY(attention_forward_features(&block->attention, pass, pass_tensor(pass, block->normed1)));
    return mlp_forward_features(&block->mlp, pass, pass_tensor(pass, block->normed2));
}

/* The last matmuls and the residual, with one sum over tp. */
static enum status forward_out_once(const struct parallel_block *block, const struct pass *pass,
                                    struct tensor out)
{
    struct stream *compute = pass->context->compute;
    struct tensor attended, both, bias = row_linear_bias(&block->mlp.out, pass);
    TRY(attention_forward_partial(&block->attention, pass, &attended));
    TRY(mlp_forward_out(&block->mlp, pass, attended, &both));
    struct tensor sum = out.data != NULL ? out : both;
    TRY(residual_forward(compute, branch_forward(pass, &block->attention.proj, block->attention_site, both,
                                                 pass_tensor(pass, block->x), sum)));
    return bias.data == NULL
               ? OK
               : residual_forward(compute, (struct residual_forward){.x = sum, .bias = bias, .out = sum});
}

/* out {0}: computes the output, too, but in scratch memory. */
static enum status forward(const void *self, const struct pass *pass, struct tensor out)
{
    const struct parallel_block *block = self;
    struct stream *compute = pass->context->compute;
    struct tensor attended, branch;
    TRY(forward_features(block, pass));
    if (pass->context->groups->tp->size > 1 &&
        !(pass_hidden_dropout(pass, block->attention_site).probability > 0.0F))
        return forward_out_once(block, pass, out);
    TRY(attention_forward_out(&block->attention, pass, &attended));
    struct tensor sum = out.data != NULL ? out : attended;
    TRY(residual_forward(compute, branch_forward(pass, &block->attention.proj, block->attention_site,
                                                 attended, pass_tensor(pass, block->x), sum)));
    TRY(mlp_forward_out(&block->mlp, pass, (struct tensor){0}, &branch));
    return residual_forward(compute,
                            branch_forward(pass, &block->mlp.out, block->mlp_site, branch, sum, sum));
}

static enum status recompute(const void *self, const struct pass *pass, struct tensor out)
{
    const struct parallel_block *block = self;
    const bool whole = pass->context->options->recompute.extent != RECOMPUTE_NEEDED;
    if ((block->recomputed & RECOMPUTE_LAYER) != 0)
        return out.data != NULL || whole ? forward(block, pass, out) : forward_features(block, pass);
    if ((block->recomputed & RECOMPUTE_NORM) != 0)
        TRY(forward_norms(block, pass));
    if ((block->recomputed & RECOMPUTE_CORE_ATTENTION) != 0)
        TRY(attention_core_recompute(&block->attention, pass));
    return (block->recomputed & RECOMPUTE_ACTIVATION) != 0 ? mlp_activate(&block->mlp, pass) : OK;
}

/* dx, the gradient of the residual stream, += that of x through the norms. */
static enum status backward_input(const void *self, const struct pass *pass, struct tensor dx)
{
    const struct parallel_block *block = self;
    struct stream *compute = pass->context->compute;
    struct tensor x = pass_tensor(pass, block->x), dattention, dmlp, addend = {0};
    TRY(residual_backward(compute, branch_backward(pass, &block->mlp.out, block->mlp_site, dx)));
    TRY(residual_backward(compute, branch_backward(pass, &block->attention.proj, block->attention_site, dx)));
    if (block->two_norms) {
        TRY(mlp_backward_input(&block->mlp, pass, &dmlp));
        TRY(norm_backward(compute, norm_layer_backward_input(&block->norm2, pass, dmlp, x, dx, dx)));
    } else {
        TRY(mlp_backward_input_partial(&block->mlp, pass, &addend));
    }
    TRY(attention_layer_backward_input(&block->attention, pass, addend, &dattention));
    return norm_backward(compute, norm_layer_backward_input(&block->norm1, pass, dattention, x, dx, dx));
}

static enum status backward_weight(const void *self, const struct pass *pass)
{
    const struct parallel_block *block = self;
    TRY(mlp_backward_weight(&block->mlp, pass, pass_tensor(pass, block->normed2)));
    if (block->two_norms)
        TRY(norm_layer_backward_weight(&block->norm2, pass));
    TRY(attention_layer_backward_weight(&block->attention, pass, pass_tensor(pass, block->normed1)));
    return norm_layer_backward_weight(&block->norm1, pass);
}

const struct layer_kind layer_kind_parallel_block = {
    .name = "parallel_block",
    .bytes = sizeof(struct parallel_block),
    .has_input = true,
    .has_output = true,
    .declare_params = declare_params,
    .declare = declare,
    .forward = forward,
    .recompute = recompute,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
};
