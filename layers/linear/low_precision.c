// SPDX-License-Identifier: Apache-2.0
#include "layers/linear/low_precision.h"

#include <stdio.h>

/* Source of the magnitude for a scale that is not per block. */
enum magnitude_of { OF_NOTHING, OF_TENSOR, OF_ROW, OF_MEAN, OF_HISTORY };

/* Quantization of one operand. along 0: no blocks. */
struct rule {
    bool quantizes;
    enum number_format format;
    enum scale_rule scale;
    enum magnitude_of magnitude;
    int along, across; // block size: elements along the sum, and across it
    bool stochastic;
    bool transformed; // in grad_weight: Hadamard transform
};

/* Omitted fields are zero on purpose. */
#define TO(format_, ...)                                           \
    {                                                              \
        .quantizes = true, .format = NUMBER_##format_, __VA_ARGS__ \
    }
#define MX TO(E4M3, .scale = SCALE_E8M0_UP, .along = 32, .across = 1)
#define FP4(across_, ...) \
    TO(E2M1, .scale = SCALE_E4M3, .magnitude = OF_TENSOR, .along = 16, .across = (across_), __VA_ARGS__)

static const struct rule own_rules[MATMUL_FORMAT_COUNT][OPERAND_COUNT] = {
    [MATMUL_E4M3] = {TO(E4M3, .along = 0), TO(E4M3, .along = 0), TO(E4M3, .along = 0)},
    [MATMUL_E5M2] = {TO(E5M2, .along = 0), TO(E5M2, .along = 0), TO(E5M2, .along = 0)},
    [MATMUL_HYBRID] = {TO(E4M3, .along = 0), TO(E4M3, .along = 0), TO(E5M2, .along = 0)},
    [MATMUL_MXFP8] = {MX, MX, MX},
    [MATMUL_NVFP4] = {FP4(1, .transformed = true), FP4(16, .transformed = false),
                      FP4(1, .transformed = true, .stochastic = true)},
    [MATMUL_TERNARY] = {TO(INT8, .scale = SCALE_FULL, .magnitude = OF_ROW),
                        TO(TERNARY, .scale = SCALE_FULL, .magnitude = OF_MEAN),
                        {.quantizes = false}},
};

/* Returns true for e4m3, e5m2 and hybrid, whose scaling is configurable. */
static bool has_configurable_scaling(enum matmul_format format)
{
    return format == MATMUL_E4M3 || format == MATMUL_E5M2 || format == MATMUL_HYBRID;
}

static struct rule rule_of(const struct linear_precision *precision, enum matmul matmul, enum operand operand)
{
    enum matmul_format format = precision->format[matmul];
    struct rule rule = own_rules[format][operand];
    rule.transformed = rule.transformed && matmul == MATMUL_GRAD_WEIGHT;
    if (format == MATMUL_MXFP8 && precision->mxfp8_scale_rounding == SCALE_ROUNDS_DOWN)
        rule.scale = SCALE_E8M0_DOWN;
    if (!has_configurable_scaling(format))
        return rule;
    switch (precision->scaling) {
    case SCALING_TENSORWISE:
        rule.magnitude = OF_TENSOR;
        break;
    case SCALING_DELAYED:
        rule.magnitude = OF_HISTORY;
        break;
    case SCALING_BLOCKWISE:
        rule.along = 128;
        rule.across = operand == OPERAND_W ? 128 : 1;
    }
    return rule;
}

/* Operands of each matmul, in order. */
static const enum operand operands_of[MATMUL_COUNT][2] = {
    {OPERAND_X, OPERAND_W}, {OPERAND_DY, OPERAND_W}, {OPERAND_DY, OPERAND_X}};

/* Each operand occurs in two matmuls; its amax is recorded in the first one that uses delayed scaling. */
static bool is_recorded_in(const struct linear_precision *precision, enum matmul matmul, enum operand operand)
{
    for (int p = 0; p < (int)matmul; p++)
        if (has_configurable_scaling(precision->format[p]) &&
            (operands_of[p][0] == operand || operands_of[p][1] == operand))
            return false;
    return true;
}

/* ---- creation ---- */

/* Returns the name of the linear layer that a parameter belongs to; NULL: none, or the head, which is never
 * quantized. */
static const char *linear_of(enum param_role role)
{
    switch (role) { // no default: a new role is a compile error here
    case ROLE_QUERY:
    case ROLE_KEY:
    case ROLE_VALUE:
        return linear_names[LINEAR_QKV];
    case ROLE_ATTENTION_OUT:
        return linear_names[LINEAR_PROJ];
    case ROLE_MLP_GATE:
    case ROLE_MLP_UP:
        return linear_names[LINEAR_FC1];
    case ROLE_MLP_DOWN:
        return linear_names[LINEAR_FC2];
    case ROLE_TOKEN_EMBEDDING:
    case ROLE_EMBEDDING_NORM:
    case ROLE_POSITION_EMBEDDING:
    case ROLE_ATTENTION_NORM:
    case ROLE_QUERY_NORM:
    case ROLE_KEY_NORM:
    case ROLE_MLP_NORM:
    case ROLE_FINAL_NORM:
    case ROLE_HEAD:
    case ROLE_COUNT:
        break;
    }
    return NULL;
}

static int parts_of(const struct weights *weights, int weight)
{
    int parts = 0;
    for (int i = weight; i < weights->params->count && weights->params->list[i].fuse == weight; i++)
        parts++;
    CHECK(parts >= 1 && parts <= QUANTIZED_PARTS);
    return parts;
}

struct quantization quantization_declare(const struct layer_context *context, struct slot_layout *layout,
                                         int weight, int shard_dim)
{
    static const char *const matmuls[MATMUL_COUNT] = {"forward", "grad_input", "grad_weight"};
    const struct param *params = context->weights->params->list;
    const char *linear = linear_of(params[weight].role);
    struct quantization quantization = {.weight = weight, .inputs_sharded = shard_dim == 1};
    if (linear == NULL || !linear_precision_quantizes(&context->options->precision))
        return quantization;
    // Memory does not depend on the layers kept in high precision.
    if (!linear_is_high(&context->options->precision, params[weight].layer, linear))
        quantization.precision = context->options->precision;
    int64_t outputs = 0, inputs = weights_held(context->weights, weight)->slice.padded[1];
    for (int i = 0; i < parts_of(context->weights, weight); i++) {
        outputs += weights_held(context->weights, weight + i)->slice.padded[0];
        for (int p = 0; p < MATMUL_COUNT; p++) {
            char name[2 * PARAM_NAME_CHARS];
            snprintf(name, sizeof name, "%s.%s.rounding", params[weight + i].name, matmuls[p]);
            quantization.dither[i][p] = philox_named(context->seed, name);
        }
    }
    quantization.signs = philox_named(context->seed, "hadamard.signs");
    quantization.x = slot_layout_add_f32(layout, 0, SCRATCH, context->tokens, inputs);
    quantization.w = slot_layout_add_f32(layout, 0, SCRATCH, outputs, inputs);
    quantization.dy = slot_layout_add_f32(layout, 0, SCRATCH, context->tokens, outputs);
    quantization.magnitudes = slot_layout_add_f32(layout, 0, SCRATCH, 1, context->tokens);
    if (context->working == F32)
        return quantization;
    quantization.output =
        slot_layout_add_f32(layout, 0, SCRATCH, context->tokens, outputs > inputs ? outputs : inputs);
    quantization.bias = slot_layout_add_f32(layout, 0, SCRATCH, 1, outputs);
    return quantization;
}

/* ---- quantization ---- */

/* One operand to quantize. */
struct task {
    const struct quantization *quantization;
    const struct pass *pass;
    enum matmul matmul;
    enum operand operand;
    struct rule rule;
    int parts;    // logical tensors along its outputs; x has none
    bool sharded; // over tp
};

/* Returns the columns (of dy) or rows (of w) of one logical tensor. */
static struct tensor part_of(const struct task *task, struct tensor t, int part)
{
    const struct weights *weights = task->pass->context->weights;
    int64_t begin = 0;
    if (task->operand == OPERAND_X)
        return t;
    for (int i = 0; i < part; i++)
        begin += weights_held(weights, task->quantization->weight + i)->slice.padded[0];
    int64_t end = begin + weights_held(weights, task->quantization->weight + part)->slice.padded[0];
    return task->operand == OPERAND_W ? tensor_rows(t, begin, end) : tensor_columns(t, begin, end);
}

/* The magnitudes that determine the scales: of all parts, or of each row of x. */
static struct tensor magnitudes_of(const struct task *task)
{
    void *data = pass_tensor(task->pass, task->quantization->magnitudes).data;
    int64_t tokens = task->pass->context->tokens;
    return tensor_1d(data, task->rule.magnitude == OF_MEAN ? F64 : F32,
                     task->rule.magnitude == OF_ROW ? tokens : task->parts);
}

/* Selects one part from the magnitudes of all parameters' operands. */
static struct tensor delayed_part(const struct task *task, struct tensor all, int part)
{
    int64_t slot = (int64_t)(task->quantization->weight + part) * OPERAND_COUNT + (int64_t)task->operand;
    return tensor_1d((float *)all.data + slot, F32, 1);
}

static struct tensor magnitude_of_part(const struct task *task, int part)
{
    if (task->rule.magnitude == OF_HISTORY)
        return delayed_part(task, task->pass->context->delayed.used, part);
    struct tensor all = magnitudes_of(task);
    if (task->rule.magnitude == OF_ROW)
        return all;
    return tensor_1d((char *)all.data + (size_t)part * dtype_bytes(all.dtype), all.dtype, 1);
}

static enum status find_magnitudes(const struct task *task, struct tensor in)
{
    static const enum magnitude_kind kinds[] = {
        [OF_TENSOR] = MAGNITUDE_LARGEST, [OF_ROW] = MAGNITUDE_LARGEST_IN_ROW, [OF_MEAN] = MAGNITUDE_SUM};
    const struct layer_context *context = task->pass->context;
    for (int i = 0; i < task->parts; i++)
        TRY(magnitude(context->compute, (struct magnitude){.kind = kinds[task->rule.magnitude],
                                                           .in = part_of(task, in, i),
                                                           .out = magnitude_of_part(task, i)}));
    if (!task->sharded)
        return OK;
    return group_all_reduce(context->groups->tp, context->compute, magnitudes_of(task),
                            task->rule.magnitude == OF_MEAN ? REDUCE_SUM : REDUCE_MAX);
}

/* Records magnitudes for the scales of the next step. Other ranks and microbatches are merged later. */
static enum status record_magnitudes(const struct task *task, struct tensor in)
{
    const struct layer_context *context = task->pass->context;
    if (!task->pass->training || !is_recorded_in(&task->quantization->precision, task->matmul, task->operand))
        return OK;
    for (int i = 0; i < task->parts; i++)
        TRY(magnitude(context->compute,
                      (struct magnitude){.kind = MAGNITUDE_LARGEST,
                                         .in = part_of(task, in, i),
                                         .out = delayed_part(task, context->delayed.recorded, i),
                                         .accumulate = true}));
    return OK;
}

static enum status quantize_part(const struct task *task, struct tensor in, struct tensor out, int part)
{
    const struct layer_context *context = task->pass->context;
    const struct quantization *quantization = task->quantization;
    const struct rule *rule = &task->rule;
    // The sum runs over columns of x and w in forward and of dy in grad_input, else over rows.
    bool columns =
        task->matmul == MATMUL_FORWARD || (task->matmul == MATMUL_GRAD_INPUT && task->operand == OPERAND_DY);
    struct quantize args = {
        .in = part_of(task, in, part),
        .out = part_of(task, out, part),
        .format = rule->format,
        .scale = rule->scale,
        .block_rows = columns ? rule->across : rule->along,
        .block_columns = columns ? rule->along : rule->across,
        .period = task->operand == OPERAND_W ? 0 : context->tokens / context->sequences,
    };
    if (rule->magnitude != OF_NOTHING)
        args.magnitude = magnitude_of_part(task, part);
    if (rule->magnitude == OF_MEAN)
        args.divisor = (double)tensor_count(args.in) * context->groups->tp->size;
    if (rule->stochastic) {
        const struct held_param *held = weights_held(context->weights, quantization->weight + part);
        args.generator = quantization->dither[part][task->matmul];
        args.sample = task->pass->batch->sample;
        args.sample_offset = task->pass->batch->sample_offset;
        args.columns = held->param->dim[0];
        args.column_begin = held->slice.begin[0];
    }
    return quantize(context->compute, args);
}

static enum status quantize_one(const struct quantization *quantization, const struct pass *pass,
                                enum matmul matmul, enum operand operand, struct tensor *tensor)
{
    const struct region *regions[] = {&quantization->x, &quantization->w, &quantization->dy};
    struct task task = {.quantization = quantization, .pass = pass, .matmul = matmul, .operand = operand};
    task.rule = rule_of(&quantization->precision, matmul, operand);
    if (!task.rule.quantizes && tensor->dtype == F32)
        return OK;
    if (!task.rule.quantizes) { // unquantized; the other operand is f32
        struct tensor as_it_is = *tensor;
        *tensor = pass_tensor(pass, *regions[operand]);
        return cast(pass->context->compute, (struct cast){.in = as_it_is, .out = *tensor});
    }
    task.parts = operand == OPERAND_X ? 1 : parts_of(pass->context->weights, quantization->weight);
    task.sharded = operand == OPERAND_W || (operand == OPERAND_X) == quantization->inputs_sharded;
    struct tensor in = *tensor, out = pass_tensor(pass, *regions[operand]);
    if (task.rule.transformed) {
        TRY(hadamard(pass->context->compute,
                     (struct hadamard){.in = in, .out = out, .signs = quantization->signs}));
        in = out;
    }
    if (task.rule.magnitude == OF_HISTORY)
        TRY(record_magnitudes(&task, in));
    else if (task.rule.magnitude != OF_NOTHING)
        TRY(find_magnitudes(&task, in));
    for (int i = 0; i < task.parts; i++)
        TRY(quantize_part(&task, in, out, i));
    *tensor = out;
    return OK;
}

enum status quantize_operand(const struct quantization *quantization, const struct pass *pass,
                             enum matmul matmul, struct operands *operands)
{
    if (quantization->precision.format[matmul] == MATMUL_FORMAT_NONE)
        return OK;
    TRY(quantize_one(quantization, pass, matmul, operands_of[matmul][0], &operands->first));
    return quantize_one(quantization, pass, matmul, operands_of[matmul][1], &operands->second);
}
