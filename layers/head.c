// SPDX-License-Identifier: Apache-2.0
/* The vocabulary-parallel head with its loss (1909.08053). Each tp rank holds ceil(V/tp) rows. The logits are
 * never gathered: the maximum, the sum of exponentials and the label's logit are all-reduced, T elements
 * each. Losses are sums over tokens; the optimizer divides once by the number of tokens of the global
 * batch. */
#include "layers/linear/linear.h"
#include "layers/model.h"
#include "layers/norm.h"

struct head {
    struct norm norm;
    struct column_linear linear;
    int64_t begin, columns; // global index of this rank's first vocabulary row, and number of rows without
                            // padding
    struct region x;        // [T or T/tp, H]: the input
    struct region normed;   // KEEP_UNTIL_BACKWARD_WEIGHT
    struct region logits;   // KEEP_UNTIL_BACKWARD_WEIGHT [T, ceil(V/tp)]: logits, overwritten by I with their
                            // gradient
    struct region max;      // KEEP_UNTIL_BACKWARD_INPUT f32[1, T]
    struct region sums;     // KEEP_UNTIL_BACKWARD_INPUT f32[2, T]: sum of exponentials; label's logit
};

static void declare_params(struct declaration *d)
{
    norm_declare_params(d, ROLE_FINAL_NORM, "norm");
    struct param *weight = declare_vocabulary(d, ROLE_HEAD, "head.weight");
    if (d->model->tie_word_embeddings)
        declare_tie(d, weight, ROLE_TOKEN_EMBEDDING);
}

static void declare(const struct layer_context *context, struct slot_layout *layout, int layer,
                    struct region x, void *self)
{
    int64_t tokens = context->tokens, local = context_local_tokens(context),
            hidden = context->model->hidden_size;
    int weight = params_weight(context->weights->params, layer, ROLE_HEAD);
    const struct slice *slice = &weights_held(context->weights, weight)->slice;
    struct head head = {.begin = slice->begin[0], .columns = slice->count[0], .x = x};
    head.norm = norm_declare(context, layout, layer, ROLE_FINAL_NORM);
    head.normed = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_WEIGHT, local, hidden);
    head.linear = column_linear_declare(context, layout, weight, -1);
    head.logits = slot_layout_add(layout, KEEP_UNTIL_BACKWARD_WEIGHT, tokens, slice->padded[0]);
    head.max = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 1, tokens);
    // Both sums are adjacent in memory, for one all-reduce.
    head.sums = slot_layout_add_f32(layout, RECOMPUTE_LAYER, KEEP_UNTIL_BACKWARD_INPUT, 2, tokens);
    *(struct head *)self = head;
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

/* From head->x to the sums of losses and tokens of each sequence, in pass->batch. */
static enum status forward(const void *self, const struct pass *pass, struct tensor out)
{
    (void)out;
    const struct head *head = self;
    const struct layer_context *context = pass->context;
    const struct batch *batch = pass->batch;
    struct tensor normed = pass_tensor(pass, head->normed), logits = pass_tensor(pass, head->logits);
    struct head_sums sums = head_sums(head, pass);
    const float cap = (float)context->model->final_logit_softcapping;
    TRY(norm_forward(context->compute,
                     norm_layer_forward(&head->norm, pass, pass_tensor(pass, head->x), normed)));
    TRY(column_linear_forward(&head->linear, pass, normed, logits, (struct epilogue){0}));
    if (cap > 0.0F)
        TRY(softcap(context->compute,
                    (struct softcap){.x = tensor_columns(logits, 0, head->columns), .cap = cap}));

    TRY(loss_max(context->compute,
                 (struct loss_max){.logits = logits, .columns = head->columns, .max = sums.max}));
    TRY(group_all_reduce(context->groups->tp, context->compute, sums.max, REDUCE_MAX));
    TRY(loss_sum(context->compute, (struct loss_sum){
                                       .logits = logits,
                                       .max = sums.max,
                                       .label = batch->label,
                                       .begin = head->begin,
                                       .columns = head->columns,
                                       .sum = sums.sum,
                                       .target = sums.target,
                                   }));
    TRY(group_all_reduce(context->groups->tp, context->compute, pass_tensor(pass, head->sums), REDUCE_SUM));
    return loss_finish(context->compute, (struct loss_finish){
                                             .sum = sums.sum,
                                             .target = sums.target,
                                             .mask = batch->loss_mask,
                                             .sample_loss = batch->sample_loss,
                                             .sample_tokens = batch->sample_tokens,
                                         });
}

/* Applies the loss scale: this is the first gradient of the backward pass. */
static enum status backward_input(const void *self, const struct pass *pass, struct tensor dx)
{
    const struct head *head = self;
    const struct layer_context *context = pass->context;
    struct tensor logits = pass_tensor(pass, head->logits), dnormed;
    struct head_sums sums = head_sums(head, pass);
    TRY(loss_backward(context->compute, (struct loss_backward){
                                            .logits = logits,
                                            .max = sums.max,
                                            .sum = sums.sum,
                                            .label = pass->batch->label,
                                            .mask = pass->batch->loss_mask,
                                            .begin = head->begin,
                                            .columns = head->columns,
                                            .scale = context->loss_scale,
                                            .softcap = (float)context->model->final_logit_softcapping,
                                        }));
    TRY(column_linear_backward_input(&head->linear, pass, logits, (struct tensor){0}, &dnormed));
    return norm_backward(context->compute,
                         norm_layer_backward_input(&head->norm, pass, dnormed, pass_tensor(pass, head->x),
                                                   (struct tensor){0}, dx));
}

static enum status backward_weight(const void *self, const struct pass *pass)
{
    const struct head *head = self;
    struct tensor normed = pass_tensor(pass, head->normed);
    struct event gathered;
    TRY(column_linear_gather(&head->linear, pass, normed, &gathered));
    TRY(column_linear_backward_weight(&head->linear, pass, normed, gathered,
                                      pass_tensor(pass, head->logits)));
    return norm_layer_backward_weight(&head->norm, pass);
}

static struct tensor logits(const void *self, const struct pass *pass)
{
    return pass_tensor(pass, ((const struct head *)self)->logits);
}

const struct layer_kind layer_kind_head = {
    .name = "head",
    .bytes = sizeof(struct head),
    .has_input = true,
    .has_output = false,
    .declare_params = declare_params,
    .declare = declare,
    .forward = forward,
    .recompute = NULL,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .logits = logits,
};
