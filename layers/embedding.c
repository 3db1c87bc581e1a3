// SPDX-License-Identifier: Apache-2.0
/* The vocabulary-parallel embedding (1909.08053). Each tp rank holds ceil(V/tp) rows. A token's embedding is
 * on one rank and zero on the others, so the sum over tp is exact.
 *
 *   token ── table ── sum over tp ── x ── norm (embed_layernorm) ──(+ position)── dropout ── out */
#include "layers/model.h"
#include "layers/norm.h"

struct embedding {
    int table, position; // parameter indices; position: -1 without learned positions
    bool has_norm;       // embed_layernorm
    struct norm norm;
    struct philox site;     // random stream of the dropout after the embedding
    struct region x;        // with the norm: KEEP_UNTIL_BACKWARD_INPUT [T or T/tp, H], its input
    struct region partial;  // SCRATCH [T, H]
    struct region dsum;     // KEEP_INPUT_TO_WEIGHT [T or T/tp, H]: gradient of the sum with the positions
    struct region dx;       // with the norm: KEEP_INPUT_TO_WEIGHT, same shape; without, dsum
    struct region gathered; // KEEP_INPUT_TO_WEIGHT [T, H], under sequence parallelism: dx of all tokens
};

static void declare_params(struct declaration *d)
{
    const struct model_config *m = d->model;
    declare_vocabulary(d, ROLE_TOKEN_EMBEDDING, "embedding.weight");
    if (m->embed_layernorm)
        norm_declare_params(d, ROLE_EMBEDDING_NORM, "embedding_norm");
    if (m->position_embedding != LEARNED_ABSOLUTE)
        return;
    struct param *param =
        declare_param(d, ROLE_POSITION_EMBEDDING, "position.weight", m->seq_length, m->hidden_size);
    param->init = INIT_NORMAL;
    param->std = (float)m->init_method_std;
    param->decay = true;
    param->partial = d->sequence_parallel ? PARTIAL_TP : PARTIAL_NONE;
}

static void declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                    struct region x, void *self)
{
    (void)x;
    int64_t hidden = context->model->hidden_size, local = context_local_tokens(context);
    struct embedding embedding = {
        .table = params_weight(context->weights->params, layer, ROLE_TOKEN_EMBEDDING),
        .position = params_weight(context->weights->params, layer, ROLE_POSITION_EMBEDDING),
        .has_norm = context->model->embed_layernorm,
        .site = philox_named(context->seed, "embedding.dropout"),
    };
    embedding.partial = slot_layout_add(layout, SCRATCH, context->tokens, hidden);
    embedding.dsum = embedding.dx = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, local, hidden);
    if (embedding.has_norm) {
        embedding.norm = norm_declare(context, layout, layer, ROLE_EMBEDDING_NORM);
        embedding.x = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_INPUT, local, hidden);
        embedding.dx = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, local, hidden);
    }
    if (context->options->sequence_parallel)
        embedding.gathered = slot_layout_add(layout, KEEP_INPUT_TO_WEIGHT, context->tokens, hidden);
    *(struct embedding *)self = embedding;
}

/* Adds the learned position embeddings of the local tokens. */
static enum status add_positions(const struct embedding *embedding, const struct pass *pass,
                                 struct tensor out)
{
    const struct layer_context *context = pass->context;
    if (embedding->position < 0)
        return OK;
    struct tensor table = weights_held(context->weights, embedding->position)->weight;
    return embedding_forward(context->compute, (struct embedding_forward){
                                                   .table = table,
                                                   .id = pass->batch->position + context_local_begin(context),
                                                   .rows = table.dim[0],
                                                   .out = out,
                                                   .accumulate = true,
                                               });
}

/* Embeds the local tokens. */
static enum status embed(const struct embedding *embedding, const struct pass *pass, struct tensor out)
{
    const struct layer_context *context = pass->context;
    const struct held_param *held = weights_held(context->weights, embedding->table);
    struct group *tp = context->groups->tp;
    // Without sequence parallelism the sum is accumulated in `out` itself.
    struct tensor partial = context->options->sequence_parallel ? pass_tensor(pass, embedding->partial) : out;
    TRY(embedding_forward(context->compute, (struct embedding_forward){
                                                .table = held->weight,
                                                .id = pass->batch->token,
                                                .begin = held->slice.begin[0],
                                                .rows = held->slice.count[0],
                                                .out = partial,
                                            }));
    return context->options->sequence_parallel ? group_reduce_scatter(tp, context->compute, partial, out)
                                               : group_all_reduce(tp, context->compute, out, REDUCE_SUM);
}

static enum status forward(const void *self, const struct pass *pass, struct tensor out)
{
    const struct embedding *embedding = self;
    const struct layer_context *context = pass->context;
    struct tensor x = embedding->has_norm ? pass_tensor(pass, embedding->x) : out;
    TRY(embed(embedding, pass, x));
    if (embedding->has_norm)
        TRY(norm_forward(context->compute, norm_layer_forward(&embedding->norm, pass, x, out)));
    TRY(add_positions(embedding, pass, out));

    struct dropout dropout = pass_hidden_dropout(pass, embedding->site);
    if (!(dropout.probability > 0.0F))
        return OK;
    return residual_forward(context->compute,
                            (struct residual_forward){.x = out, .out = out, .dropout = dropout});
}

/* The embedding has no input gradient; the tensors read by W are kept. */
static enum status backward_input(const void *self, const struct pass *pass, struct tensor dx)
{
    const struct embedding *embedding = self;
    const struct layer_context *context = pass->context;
    struct tensor dsum = pass_tensor(pass, embedding->dsum), local = pass_tensor(pass, embedding->dx);
    TRY(residual_backward(context->compute, (struct residual_backward){
                                                .dout = dx,
                                                .dx = dsum,
                                                .dropout = pass_hidden_dropout(pass, embedding->site),
                                            }));
    if (embedding->has_norm)
        TRY(norm_backward(context->compute, norm_layer_backward_input(&embedding->norm, pass, dsum,
                                                                      pass_tensor(pass, embedding->x),
                                                                      (struct tensor){0}, local)));
    if (!context->options->sequence_parallel)
        return OK;
    return group_all_gather(context->groups->tp, context->compute, local,
                            pass_tensor(pass, embedding->gathered));
}

static enum status backward_weight(const void *self, const struct pass *pass)
{
    const struct embedding *embedding = self;
    const struct layer_context *context = pass->context;
    const struct held_param *held = weights_held(context->weights, embedding->table);
    struct tensor whole =
        pass_tensor(pass, context->options->sequence_parallel ? embedding->gathered : embedding->dx);
    TRY(embedding_backward(context->compute, (struct embedding_backward){
                                                 .id = pass->batch->token,
                                                 .begin = held->slice.begin[0],
                                                 .rows = held->slice.count[0],
                                                 .dout = whole,
                                                 .dtable = held->gradient,
                                             }));
    if (embedding->has_norm)
        TRY(norm_layer_backward_weight(&embedding->norm, pass));
    if (embedding->position < 0)
        return OK;
    struct tensor gradient = weights_held(context->weights, embedding->position)->gradient;
    return embedding_backward(context->compute,
                              (struct embedding_backward){
                                  .id = pass->batch->position + context_local_begin(context),
                                  .rows = gradient.dim[0],
                                  .dout = pass_tensor(pass, embedding->dsum),
                                  .dtable = gradient,
                              });
}

const struct layer_kind layer_kind_embedding = {
    .name = "embedding",
    .bytes = sizeof(struct embedding),
    .has_input = false,
    .has_output = true,
    .declare_params = declare_params,
    .declare = declare,
    .forward = forward,
    .recompute = NULL,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
};
