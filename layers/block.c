// SPDX-License-Identifier: Apache-2.0
/* One pre-norm transformer block (GPT-2, Llama):
 *
 *   x ──norm1──attention──dropout──(+)── middle ──norm2──mlp──dropout──(+)── out
 *    └──────────────────────────────┘        └───────────────────────────┘
 *
 * The residual stream, the norms and the hidden dropout process the local tokens of this rank: all T, or T/tp
 * under sequence parallelism. */
#include "layers/attention.h"
#include "layers/branch.h"
#include "layers/mlp.h"
#include "layers/model.h"
#include "layers/norm.h"

struct block {
    struct norm norm1, norm2;
    struct attention attention;
    struct mlp mlp;
    struct philox attention_site, mlp_site; // random streams of the hidden dropout after each branch
    unsigned recomputed;                    // recomputed modules (enum recompute_module)
    struct region x;                        // [T or T/tp, H]: the input
    struct region middle;                   // KEEP_UNTIL_BACKWARD_INPUT
    struct region normed1, normed2;         // KEEP_UNTIL_BACKWARD_WEIGHT
};

static void declare_params(struct declaration *d)
{
    norm_declare_params(d, ROLE_ATTENTION_NORM, "norm1");
    attention_declare_params(d);
    norm_declare_params(d, ROLE_MLP_NORM, "norm2");
    mlp_declare_params(d);
}

static void declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                    struct region x, void *self)
{
    int64_t tokens = context_local_tokens(context), hidden = context->model->hidden_size;
    struct block block = {
        .recomputed = layout->recomputed,
        .x = x,
        .attention_site = branch_site(context, layer, "attention"),
        .mlp_site = branch_site(context, layer, "mlp"),
    };
    block.norm1 = norm_declare(context, layout, layer, ROLE_ATTENTION_NORM);
    block.normed1 = slot_layout_add_of(layout, RECOMPUTE_NORM, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, hidden);
    // The branches never run at the same time: they share scratch memory.
    size_t scratch = layout->bytes[SCRATCH];
    block.attention = attention_declare(context, layout, layer);
    size_t attention_scratch = layout->bytes[SCRATCH];
    layout->bytes[SCRATCH] = scratch;

    block.middle = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, tokens, hidden);
    block.norm2 = norm_declare(context, layout, layer, ROLE_MLP_NORM);
    block.normed2 = slot_layout_add_of(layout, RECOMPUTE_NORM, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, hidden);
    block.mlp = mlp_declare(context, layout, layer);
    if (layout->bytes[SCRATCH] < attention_scratch)
        layout->bytes[SCRATCH] = attention_scratch;
    *(struct block *)self = block;
}

static struct norm_forward first_norm(const struct block *block, const struct pass *pass)
{
    return norm_layer_forward(&block->norm1, pass, pass_tensor(pass, block->x),
                              pass_tensor(pass, block->normed1));
}

static struct norm_forward second_norm(const struct block *block, const struct pass *pass)
{
    return norm_layer_forward(&block->norm2, pass, pass_tensor(pass, block->middle),
                              pass_tensor(pass, block->normed2));
}

/* All but the last matmul and the second residual. */
static enum status forward_features(const struct block *block, const struct pass *pass)
{
    struct stream *compute = pass->context->compute;
    struct tensor branch;
    TRY(norm_forward(compute, first_norm(block, pass)));
    TRY(attention_layer_forward(&block->attention, pass, pass_tensor(pass, block->normed1), &branch));
    TRY(residual_norm_forward(compute, (struct residual_norm_forward){
                                           .residual = branch_forward(
                                               pass, &block->attention.proj, block->attention_site, branch,
                                               pass_tensor(pass, block->x), pass_tensor(pass, block->middle)),
                                           .norm = second_norm(block, pass),
                                       }));
    return mlp_forward_features(&block->mlp, pass, pass_tensor(pass, block->normed2));
}

static enum status forward(const void *self, const struct pass *pass, struct tensor out)
{
    const struct block *block = self;
    struct tensor branch;
    TRY(forward_features(block, pass));
    TRY(mlp_forward_out(&block->mlp, pass, (struct tensor){0}, &branch));
    return residual_forward(pass->context->compute,
                            branch_forward(pass, &block->mlp.out, block->mlp_site, branch,
                                           pass_tensor(pass, block->middle), out));
}

/* Recomputes the whole layer, including its unused output: models programs that recompute a layer as a black
 * box (RECOMPUTE_WHOLE). */
static enum status forward_discarded(const struct block *block, const struct pass *pass)
{
    struct tensor branch;
    TRY(forward_features(block, pass));
    TRY(mlp_forward_out(&block->mlp, pass, (struct tensor){0}, &branch));
    return residual_forward(pass->context->compute,
                            branch_forward(pass, &block->mlp.out, block->mlp_site, branch,
                                           pass_tensor(pass, block->middle), branch));
}

static enum status recompute(const void *self, const struct pass *pass, struct tensor out)
{
    const struct block *block = self;
    if ((block->recomputed & RECOMPUTE_LAYER) != 0 && out.data == NULL &&
        pass->context->options->recompute.extent != RECOMPUTE_NEEDED)
        return forward_discarded(block, pass);
    if ((block->recomputed & RECOMPUTE_LAYER) != 0)
        return out.data != NULL ? forward(block, pass, out) : forward_features(block, pass);
    if ((block->recomputed & RECOMPUTE_NORM) != 0) {
        TRY(norm_forward(pass->context->compute, first_norm(block, pass)));
        TRY(norm_forward(pass->context->compute, second_norm(block, pass)));
    }
    if ((block->recomputed & RECOMPUTE_CORE_ATTENTION) != 0)
        TRY(attention_core_recompute(&block->attention, pass));
    return (block->recomputed & RECOMPUTE_ACTIVATION) != 0 ? mlp_activate(&block->mlp, pass) : OK;
}

/* dx is the gradient of the residual stream; each branch adds its part. Without dropout the gradient of
 * `middle` equals that of the attention projection's output, which W reads: it is written to proj->dy and
 * used from there. */
static enum status backward_input(const void *self, const struct pass *pass, struct tensor dx)
{
    const struct block *block = self;
    struct stream *compute = pass->context->compute;
    const struct row_linear *proj = &block->attention.proj;
    struct tensor dnormed;
    bool drops = pass_hidden_dropout(pass, block->attention_site).probability > 0.0F;
    struct tensor dmiddle = drops ? dx : pass_tensor(pass, proj->dy);
    TRY(residual_backward(compute, branch_backward(pass, &block->mlp.out, block->mlp_site, dx)));
    TRY(mlp_backward_input(&block->mlp, pass, &dnormed));
    TRY(residual_norm_backward(
        compute, (struct residual_norm_backward){
                     .norm = norm_layer_backward_input(&block->norm2, pass, dnormed,
                                                       pass_tensor(pass, block->middle), dx, dmiddle),
                     .residual = branch_backward(pass, proj, block->attention_site, dmiddle),
                 }));
    TRY(attention_layer_backward_input(&block->attention, pass, (struct tensor){0}, &dnormed));
    return norm_backward(compute, norm_layer_backward_input(&block->norm1, pass, dnormed,
                                                            pass_tensor(pass, block->x), dmiddle, dx));
}

static enum status backward_weight(const void *self, const struct pass *pass)
{
    const struct block *block = self;
    TRY(mlp_backward_weight(&block->mlp, pass, pass_tensor(pass, block->normed2)));
    TRY(norm_layer_backward_weight(&block->norm2, pass));
    TRY(attention_layer_backward_weight(&block->attention, pass, pass_tensor(pass, block->normed1)));
    return norm_layer_backward_weight(&block->norm1, pass);
}

const struct layer_kind layer_kind_block = {
    .name = "block",
    .bytes = sizeof(struct block),
    .has_input = true,
    .has_output = true,
    .declare_params = declare_params,
    .declare = declare,
    .forward = forward,
    .recompute = recompute,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
};
