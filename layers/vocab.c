// SPDX-License-Identifier: Apache-2.0
#include "layers/vocab.h"

struct embedding embedding_declare(const struct env *env, struct layout *layout)
{
    int64_t hidden = env->model->hidden_size;
    struct embedding embedding = {
        .table = params_find(env->weights->params, "embedding.weight"),
        .position = params_find(env->weights->params, "position.weight"),
        .site = philox_named(env->seed, "embedding.dropout"),
    };
    embedding.partial = layout_add(layout, SCRATCH, env_tokens(env), hidden);
    embedding.dx = layout_add(layout, KEEP_INPUT_TO_WEIGHT, env_local_tokens(env), hidden);
    if (env->sequence_parallel)
        embedding.gathered = layout_add(layout, KEEP_INPUT_TO_WEIGHT, env_tokens(env), hidden);
    return embedding;
}

/* Adds the learned position embeddings of the local tokens. */
static enum status add_positions(const struct embedding *embedding, const struct pass *pass,
                                 struct tensor out)
{
    const struct env *env = pass->env;
    if (embedding->position < 0)
        return OK;
    struct tensor table = weights_held(env->weights, embedding->position)->weight;
    return embedding_forward(env->compute, (struct embedding_forward){
                                               .table = table,
                                               .id = pass->batch->position + env_local_begin(env),
                                               .rows = table.dim[0],
                                               .out = out,
                                               .accumulate = true,
                                           });
}

enum status embedding_layer_forward(const struct embedding *embedding, const struct pass *pass,
                                    struct tensor out)
{
    const struct env *env = pass->env;
    const struct held *held = weights_held(env->weights, embedding->table);
    struct group *tp = env->groups->tp;
    // Without sequence parallelism the sum is accumulated in `out` itself.
    struct tensor partial = env->sequence_parallel ? pass_tensor(pass, embedding->partial) : out;
    TRY(embedding_forward(env->compute, (struct embedding_forward){
                                            .table = held->weight,
                                            .id = pass->batch->token,
                                            .begin = held->slice.begin[0],
                                            .rows = held->slice.count[0],
                                            .out = partial,
                                        }));
    if (env->sequence_parallel)
        TRY(group_reduce_scatter(tp, env->compute, partial, out));
    else
        TRY(group_all_reduce(tp, env->compute, out, REDUCE_SUM));
    TRY(add_positions(embedding, pass, out));

    struct dropout dropout = pass_hidden_dropout(pass, embedding->site);
    if (!(dropout.probability > 0.0F))
        return OK;
    return residual_forward(env->compute,
                            (struct residual_forward){.x = out, .out = out, .dropout = dropout});
}

enum status embedding_layer_backward_input(const struct embedding *embedding, const struct pass *pass,
                                           struct tensor dx)
{
    const struct env *env = pass->env;
    struct tensor local = pass_tensor(pass, embedding->dx);
    TRY(residual_backward(env->compute, (struct residual_backward){
                                            .dout = dx,
                                            .dx = local,
                                            .dropout = pass_hidden_dropout(pass, embedding->site),
                                        }));
    if (!env->sequence_parallel)
        return OK;
    return group_all_gather(env->groups->tp, env->compute, local, pass_tensor(pass, embedding->gathered));
}

enum status embedding_layer_backward_weight(const struct embedding *embedding, const struct pass *pass)
{
    const struct env *env = pass->env;
    const struct held *held = weights_held(env->weights, embedding->table);
    struct tensor local = pass_tensor(pass, embedding->dx);
    struct tensor whole = env->sequence_parallel ? pass_tensor(pass, embedding->gathered) : local;
    TRY(embedding_backward(env->compute, (struct embedding_backward){
                                             .id = pass->batch->token,
                                             .begin = held->slice.begin[0],
                                             .rows = held->slice.count[0],
                                             .dout = whole,
                                             .dtable = held->gradient,
                                         }));
    if (embedding->position < 0)
        return OK;
    struct tensor gradient = weights_held(env->weights, embedding->position)->gradient;
    return embedding_backward(env->compute, (struct embedding_backward){
                                                .id = pass->batch->position + env_local_begin(env),
                                                .rows = gradient.dim[0],
                                                .dout = local,
                                                .dtable = gradient,
                                            });
}

struct head head_declare(const struct env *env, struct layout *layout, enum lifetime x_lifetime)
{
    int64_t tokens = env_tokens(env), local = env_local_tokens(env), hidden = env->model->hidden_size;
    int weight = params_find(env->weights->params, "head.weight");
    const struct slice *slice = &weights_held(env->weights, weight)->slice;
    struct head head = {.begin = slice->begin[0], .columns = slice->count[0]};
    head.x = layout_add(layout, x_lifetime, local, hidden);
    head.norm = norm_declare(env, layout, "norm");
    head.normed = layout_add(layout, KEEP_UNTIL_BACKWARD_WEIGHT, local, hidden);
    head.linear = column_linear_declare(env, layout, weight, -1);
    head.logits = layout_add(layout, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, slice->padded[0]);
    head.max = layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 1, tokens);
    // Both sums are adjacent in memory, for one all-reduce.
    head.sums = layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 2, tokens);
    return head;
}

struct head_sums {
    struct tensor max, sum, target; // f32[T]
};

static struct head_sums head_sums(const struct head *head, const struct pass *pass)
{
    int64_t tokens = head->sums.columns;
    float *sums = pass_tensor(pass, head->sums).data;
    return (struct head_sums){
        .max = tensor_1d(pass_tensor(pass, head->max).data, F32, tokens),
        .sum = tensor_1d(sums, F32, tokens),
        .target = tensor_1d(sums + tokens, F32, tokens),
    };
}

enum status head_forward(const struct head *head, const struct pass *pass)
{
    const struct env *env = pass->env;
    const struct batch *batch = pass->batch;
    struct tensor normed = pass_tensor(pass, head->normed), logits = pass_tensor(pass, head->logits);
    struct head_sums sums = head_sums(head, pass);
    TRY(norm_forward(env->compute,
                     norm_layer_forward(&head->norm, pass, pass_tensor(pass, head->x), normed)));
    TRY(column_linear_forward(&head->linear, pass, normed, logits, (struct epilogue){0}));

    TRY(loss_max(env->compute,
                 (struct loss_max){.logits = logits, .columns = head->columns, .max = sums.max}));
    TRY(group_all_reduce(env->groups->tp, env->compute, sums.max, REDUCE_MAX));
    TRY(loss_sum(env->compute, (struct loss_sum){
                                   .logits = logits,
                                   .max = sums.max,
                                   .label = batch->label,
                                   .begin = head->begin,
                                   .columns = head->columns,
                                   .sum = sums.sum,
                                   .target = sums.target,
                               }));
    TRY(group_all_reduce(env->groups->tp, env->compute, pass_tensor(pass, head->sums), REDUCE_SUM));
    return loss_finish(env->compute, (struct loss_finish){
                                         .sum = sums.sum,
                                         .target = sums.target,
                                         .mask = batch->loss_mask,
                                         .sample_loss = batch->sample_loss,
                                         .sample_tokens = batch->sample_tokens,
                                     });
}

enum status head_backward_input(const struct head *head, const struct pass *pass, struct tensor dx)
{
    const struct env *env = pass->env;
    struct tensor logits = pass_tensor(pass, head->logits), dnormed;
    struct head_sums sums = head_sums(head, pass);
    TRY(loss_backward(env->compute, (struct loss_backward){
                                        .logits = logits,
                                        .max = sums.max,
                                        .sum = sums.sum,
                                        .label = pass->batch->label,
                                        .mask = pass->batch->loss_mask,
                                        .begin = head->begin,
                                        .columns = head->columns,
                                        .scale = env->loss_scale,
                                    }));
    TRY(column_linear_backward_input(&head->linear, pass, logits, &dnormed));
    return norm_backward(env->compute,
                         norm_layer_backward_input(&head->norm, pass, dnormed, pass_tensor(pass, head->x),
                                                   (struct tensor){0}, dx));
}

enum status head_backward_weight(const struct head *head, const struct pass *pass)
{
    struct tensor normed = pass_tensor(pass, head->normed);
    struct event gathered;
    TRY(column_linear_gather(&head->linear, pass, normed, &gathered));
    TRY(column_linear_backward_weight(&head->linear, pass, normed, gathered,
                                      pass_tensor(pass, head->logits)));
    return norm_layer_backward_weight(&head->norm, pass);
}
