// SPDX-License-Identifier: Apache-2.0
#include "planner/memory/memory_layer.h"

const struct memory_assume memory_of_program = {
    .activation = 4, .weight = 4, .gradient = 4, .moment = 4, .statistic = 4};
const struct memory_assume memory_of_papers = {
    .activation = 2,
    .weight = 2,
    .gradient = 2,
    .master = 4,
    .moment = 4,
    .statistic = 2,
    .unfused_attention = true,
    .stored_masks = true,
    .large_only = true,
};

struct memory_assume memory_of_working(enum dtype working, enum dtype main)
{
    struct memory_assume assume = memory_of_program;
    assume.activation = assume.weight = (int)dtype_bytes(working);
    assume.master = working == main ? 0 : 4;
    return assume;
}

static int64_t tokens_of(const struct memory_shape *s)
{
    return s->batch * s->sequence;
}

static int64_t local_of(const struct memory_shape *s)
{
    return s->sequence_parallel ? tokens_of(s) / s->tp : tokens_of(s);
}

static int64_t heads_of(const struct memory_shape *s)
{
    return s->model->num_attention_heads / s->tp;
}

static int64_t kv_heads_of(const struct memory_shape *s)
{
    int64_t groups = s->model->num_query_groups, replicas = groups < s->tp ? s->tp / groups : 1;
    return groups * replicas / s->tp;
}

/* Outputs of the first linear layer of each branch: q, k and v; and the input of the activation function. */
static int64_t fused_of(const struct memory_shape *s)
{
    return (heads_of(s) + 2 * kv_heads_of(s)) * s->model->kv_channels;
}

static int64_t before_of(const struct memory_shape *s)
{
    return s->model->ffn_hidden_size / s->tp * (model_is_gated(s->model) ? 2 : 1);
}

/* Adds an item of `elements`. */
static void add_bytes(const struct memory_shape *s, struct memory_items *items, enum lifetime lifetime,
                      unsigned module, const char *what, int64_t bytes)
{
    if (!s->assume.large_only)
        bytes = (bytes + 63) / 64 * 64;
    CHECK(items->count < MEMORY_MAX_ITEMS);
    items->list[items->count++] =
        (struct memory_item){.what = what, .lifetime = lifetime, .module = module, .bytes = bytes};
}

static void add_item(const struct memory_shape *s, struct memory_items *items, enum lifetime lifetime,
                     unsigned module, const char *what, int64_t elements)
{
    add_bytes(s, items, lifetime, module, what, elements * s->assume.activation);
}

static void add_statistic(const struct memory_shape *s, struct memory_items *items, enum lifetime lifetime,
                          unsigned module, const char *what, int64_t elements)
{
    add_bytes(s, items, lifetime, module, what, elements * s->assume.statistic);
}

/* Mean and deviation of each token, and a microbatch's contribution to the norm's weight gradients. */
static void add_norm(const struct memory_shape *s, struct memory_items *items)
{
    int64_t hidden = s->model->hidden_size;
    if (!s->assume.large_only) {
        add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "norm: mean", local_of(s));
        add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "norm: 1 / deviation", local_of(s));
    }
    if (s->assume.unfused_norm) {
        add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, RECOMPUTE_NORM, "norm: input in fp32",
                      local_of(s) * hidden);
        add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, RECOMPUTE_NORM, "norm: before the weight",
                 local_of(s) * hidden);
    }
    add_statistic(s, items, KEEP_INPUT_TO_WEIGHT, 0, "norm: gradient of the weight", hidden);
    add_statistic(s, items, KEEP_INPUT_TO_WEIGHT, 0, "norm: gradient of the bias", hidden);
}

/* The gradient of a branch's output, which is added to the residual stream. */
static void add_branch_end(const struct memory_shape *s, struct memory_items *items)
{
    int64_t hidden = s->model->hidden_size;
    add_item(s, items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of the branch", local_of(s) * hidden);
    if (s->sequence_parallel)
        add_item(s, items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of the branch, all tokens",
                 tokens_of(s) * hidden);
    if (s->assume.stored_masks)
        add_bytes(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "mask of the hidden dropout", local_of(s) * hidden);
}

/* The norms of the heads of q and k: per head, what add_norm() has per layer. */
static void add_head_norms(const struct memory_shape *s, struct memory_items *items)
{
    int64_t d = s->model->kv_channels, heads[] = {heads_of(s), kv_heads_of(s)};
    for (int i = 0; i < 2; i++) {
        if (!s->assume.large_only) {
            add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "norm of the heads: mean",
                          heads[i] * tokens_of(s));
            add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "norm of the heads: 1 / deviation",
                          heads[i] * tokens_of(s));
        }
        add_statistic(s, items, KEEP_INPUT_TO_WEIGHT, 0, "norm of the heads: gradient of the weight",
                      heads[i] * d);
        add_statistic(s, items, KEEP_INPUT_TO_WEIGHT, 0, "norm of the heads: gradient of the bias",
                      heads[i] * d);
    }
    add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "q, k after their norms",
             tokens_of(s) * (heads[0] + heads[1]) * d);
}

static void add_attention(const struct memory_shape *s, struct memory_items *items)
{
    const struct model_config *model = s->model;
    int64_t tokens = tokens_of(s), scores = heads_of(s) * tokens * s->sequence;
    int64_t width = heads_of(s) * model->kv_channels, fused = tokens * fused_of(s);
    unsigned core = RECOMPUTE_CORE_ATTENTION;
    add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "q, k, v", fused);
    if (model->qk_layernorm)
        add_head_norms(s, items);
    if (s->assume.unfused_attention) {
        add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, core, "probabilities", scores);
        add_bytes(s, items, KEEP_UNTIL_BACKWARD_INPUT, core, "mask of the attention dropout", scores);
        add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, core, "probabilities after dropout", scores);
    } else {
        add_statistic(s, items, KEEP_UNTIL_BACKWARD_INPUT, core, "attention: log-sum-exp",
                      heads_of(s) * tokens);
    }
    // With stored probabilities, attention is only their matmul, which is kept for W.
    add_item(s, items, KEEP_UNTIL_BACKWARD_WEIGHT, s->assume.unfused_attention ? 0 : core,
             "attention: output", tokens * width);
    add_item(s, items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of q, k, v", fused);
    add_branch_end(s, items);
}

static void add_mlp(const struct memory_shape *s, struct memory_items *items)
{
    int64_t features = tokens_of(s) * s->model->ffn_hidden_size / s->tp;
    int64_t before = tokens_of(s) * before_of(s);
    add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, 0, "mlp: before the activation", before);
    if (s->assume.unfused_activation && model_is_gated(s->model))
        add_item(s, items, KEEP_UNTIL_BACKWARD_INPUT, RECOMPUTE_ACTIVATION, "mlp: function of the gate",
                 features);
    add_item(s, items, KEEP_UNTIL_BACKWARD_WEIGHT, RECOMPUTE_ACTIVATION, "mlp: after the activation",
             features);
    add_item(s, items, KEEP_INPUT_TO_WEIGHT, 0, "gradient before the activation", before);
    add_branch_end(s, items);
}

struct memory_items memory_of_block(const struct memory_shape *shape)
{
    struct memory_items items = {.count = 0};
    int64_t stream = local_of(shape) * shape->model->hidden_size;
    add_item(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "input", stream);
    add_norm(shape, &items);
    add_item(shape, &items, KEEP_UNTIL_BACKWARD_WEIGHT, RECOMPUTE_NORM, "norm: output", stream);
    add_attention(shape, &items);
    if (shape->model->block_type == BLOCK_SEQUENTIAL)
        add_item(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "between the branches", stream);
    if (shape->model->block_type != BLOCK_PARALLEL) {
        add_norm(shape, &items);
        add_item(shape, &items, KEEP_UNTIL_BACKWARD_WEIGHT, RECOMPUTE_NORM, "norm: output", stream);
    }
    add_mlp(shape, &items);
    return items;
}

/* Partial results and sums of tensor parallelism: dx of a column-parallel layer, and x of all tokens. */
static void add_column_scratch(const struct memory_shape *s, struct memory_items *items)
{
    int64_t hidden = s->model->hidden_size;
    add_item(s, items, SCRATCH, 0, "partial gradient", tokens_of(s) * hidden);
    if (!s->sequence_parallel)
        return;
    add_item(s, items, SCRATCH, 0, "input, all tokens", tokens_of(s) * hidden);
    add_item(s, items, SCRATCH, 0, "gradient", local_of(s) * hidden);
}

static void add_row_scratch(const struct memory_shape *s, struct memory_items *items)
{
    int64_t hidden = s->model->hidden_size;
    add_item(s, items, SCRATCH, 0, "partial output", tokens_of(s) * hidden);
    if (s->sequence_parallel)
        add_item(s, items, SCRATCH, 0, "output", local_of(s) * hidden);
    if (s->tp_comm_overlap)
        add_item(s, items, SCRATCH, 0, "partial outputs of other ranks", tokens_of(s) * hidden);
}

/* The scratch of quantization_declare() for a linear layer of K inputs and N outputs. */
static void add_quantized(const struct memory_shape *s, struct memory_items *items, int64_t inputs,
                          int64_t outputs)
{
    if (!s->quantized)
        return;
    int64_t wider = outputs > inputs ? outputs : inputs;
    add_statistic(s, items, SCRATCH, 0, "quantized input", tokens_of(s) * inputs);
    add_statistic(s, items, SCRATCH, 0, "quantized weights", outputs * inputs);
    add_statistic(s, items, SCRATCH, 0, "quantized gradient", tokens_of(s) * outputs);
    add_statistic(s, items, SCRATCH, 0, "amax values", tokens_of(s));
    if (s->assume.activation == s->assume.statistic)
        return;
    add_statistic(s, items, SCRATCH, 0, "matmul result before rounding", tokens_of(s) * wider);
    add_statistic(s, items, SCRATCH, 0, "bias before rounding", outputs);
}

int64_t memory_block_scratch(const struct memory_shape *shape)
{
    int64_t bytes[2];
    for (int branch = 0; branch < 2; branch++) {
        int64_t width = branch == 0 ? heads_of(shape) * shape->model->kv_channels
                                    : shape->model->ffn_hidden_size / shape->tp;
        struct memory_items items = {.count = 0};
        add_column_scratch(shape, &items);
        add_row_scratch(shape, &items);
        if (branch == 0 || model_is_gated(shape->model)) // computed in place without a gate
            add_item(shape, &items, SCRATCH, 0, "gradient inside the branch", tokens_of(shape) * width);
        if (branch == 0 && shape->model->qk_layernorm)
            add_item(shape, &items, SCRATCH, 0, "gradient of q, k after their norms",
                     tokens_of(shape) * (heads_of(shape) + kv_heads_of(shape)) * shape->model->kv_channels);
        add_quantized(shape, &items, shape->model->hidden_size,
                      branch == 0 ? fused_of(shape) : before_of(shape));
        add_quantized(shape, &items, width, shape->model->hidden_size);
        bytes[branch] = memory_of_lifetime(&items, SCRATCH);
    }
    if (shape->model->block_type != BLOCK_SEQUENTIAL)
        return bytes[0] + bytes[1];
    return bytes[0] > bytes[1] ? bytes[0] : bytes[1];
}

struct memory_items memory_of_embedding(const struct memory_shape *shape)
{
    struct memory_items items = {.count = 0};
    int64_t hidden = shape->model->hidden_size;
    add_item(shape, &items, SCRATCH, 0, "partial output", tokens_of(shape) * hidden);
    if (shape->model->embed_layernorm) {
        add_item(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "embedding: norm's input",
                 local_of(shape) * hidden);
        add_norm(shape, &items);
        add_item(shape, &items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of the embedding's norm",
                 local_of(shape) * hidden);
    }
    add_item(shape, &items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of the embedding", local_of(shape) * hidden);
    if (shape->sequence_parallel)
        add_item(shape, &items, KEEP_INPUT_TO_WEIGHT, 0, "gradient of the embedding, all tokens",
                 tokens_of(shape) * hidden);
    return items;
}

int64_t memory_head_rows(const struct memory_shape *shape)
{
    int64_t rows = (shape->model->vocab_size + shape->tp - 1) / shape->tp,
            multiple = shape->model->make_vocab_size_divisible_by;
    return (rows + multiple - 1) / multiple * multiple;
}

struct memory_items memory_of_head(const struct memory_shape *shape)
{
    struct memory_items items = {.count = 0};
    int64_t stream = local_of(shape) * shape->model->hidden_size, rows = memory_head_rows(shape);
    add_item(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "head: input", stream);
    add_norm(shape, &items);
    add_item(shape, &items, KEEP_UNTIL_BACKWARD_WEIGHT, 0, "head: norm's output", stream);
    const int logits = shape->assume.logits > 0 ? shape->assume.logits : shape->assume.activation;
    add_bytes(shape, &items, KEEP_UNTIL_BACKWARD_WEIGHT, 0, "logits, then their gradient",
              tokens_of(shape) * rows * logits * (shape->assume.whole_logits ? shape->tp : 1));
    add_statistic(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "loss: maxima", tokens_of(shape));
    add_statistic(shape, &items, KEEP_UNTIL_BACKWARD_INPUT, 0, "loss: sums and the label's logits",
                  2 * tokens_of(shape));
    add_column_scratch(shape, &items);
    return items;
}

int64_t memory_stream_bytes(const struct memory_shape *shape)
{
    return local_of(shape) * shape->model->hidden_size * shape->assume.activation;
}

int64_t memory_of_lifetime(const struct memory_items *items, enum lifetime lifetime)
{
    int64_t bytes = 0;
    for (int i = 0; i < items->count; i++)
        bytes += items->list[i].lifetime == lifetime ? items->list[i].bytes : 0;
    return bytes;
}

int64_t memory_kept_of_block(const struct memory_shape *shape, unsigned modules)
{
    struct memory_items items = memory_of_block(shape);
    int64_t bytes = items.list[0].bytes;
    for (int i = 1; i < items.count; i++) {
        const struct memory_item *item = &items.list[i];
        bool lasts =
            item->lifetime == KEEP_UNTIL_BACKWARD_INPUT || item->lifetime == KEEP_UNTIL_BACKWARD_WEIGHT;
        bytes += lasts && (modules & (item->module | RECOMPUTE_LAYER)) == 0 ? item->bytes : 0;
    }
    return bytes;
}

double memory_of_states(const struct memory_assume *assume, double parameters, int zero_stage, int dp)
{
    double optimizer = assume->master + 2 * assume->moment;
    return parameters * (assume->weight / (double)(zero_stage >= 3 ? dp : 1) +
                         assume->gradient / (double)(zero_stage >= 2 ? dp : 1) +
                         optimizer / (double)(zero_stage >= 1 ? dp : 1));
}
