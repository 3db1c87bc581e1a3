// SPDX-License-Identifier: Apache-2.0
/* Low precision in linear layers: each operand is quantized according to its format, the quantized values do
 * not depend on the layout, and runs of layouts with the same arithmetic are bit-identical. */
#include "base/memory.h"
#include "layers/linear/linear.h"
#include "layers/model.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_verify.h"
#include "tests/support/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one layer, split over tp ranks ---- */

enum { B = 2, S = 48, T = B * S, HIDDEN = 96, HEADS = 4, GROUPS = 2, WIDTH = 128, MAX_TP = 4 };
enum { Q = HEADS * WIDTH, KV = GROUPS * WIDTH, FUSED = Q + 2 * KV, MAX_ELEMENTS = FUSED * T };

static const struct model_config model = {.num_layers = 2,
                                          .hidden_size = HIDDEN,
                                          .num_attention_heads = HEADS,
                                          .num_query_groups = GROUPS,
                                          .ffn_hidden_size = 256,
                                          .kv_channels = WIDTH,
                                          .seq_length = S,
                                          .vocab_size = 8,
                                          .make_vocab_size_divisible_by = 1,
                                          .norm_epsilon = 1e-5,
                                          .init_method_std = 0.02};

enum { OF_X, OF_W, OF_DY, OPERANDS };

/* The quantized x, w and dy of each matmul, by global index; for the QKV layer (0), which is
 * column-parallel, and the projection (1), which is row-parallel. */
struct quantized {
    float of[2][MATMUL_COUNT][OPERANDS][MAX_ELEMENTS];
};

/* Global x and dy of both layers. Sizes differ from token to token. */
struct operand_values {
    float of[2][OPERANDS][MAX_ELEMENTS];
};

struct trial {
    struct linear_precision precision;
    const struct operand_values *values;
    struct quantized *out;
    float seen[OPERANDS]; // with delayed scaling: x of q, w and dy of v, of all ranks
};

/* Everything needed for quantization, on one rank. */
struct rank {
    struct trial *trial;
    struct groups *groups;
    struct device *device;
    struct stream *stream;
    struct params params;
    struct weights weights;
    struct layer_options options;
    struct layer_context context;
    struct batch batch;
    struct pass pass;
    struct column_linear qkv;
    struct row_linear proj;
    char *slots[LIFETIME_COUNT];
    int64_t sample[T];
    int32_t place[T];
    float *used, *seen; // [rows * OPERANDS] of delayed scaling
};

/* Amax values from which delayed scaling computes scales: of the operands under test, and of all others.
 * Some elements of each operand are larger, and saturate. */
static const float amax_used[OPERANDS] = {5.0F, 0.03F, 3.0F};
enum { OTHER_AMAX = 7 };

static int64_t columns_of(int layer, int operand)
{
    return operand == OF_DY ? (layer == 0 ? FUSED : HIDDEN) : (layer == 0 ? HIDDEN : Q);
}

static void fill_operands(struct operand_values *out)
{
    static const char *const names[OPERANDS] = {"x", "w", "dy"};
    for (int layer = 0; layer < 2; layer++)
        for (int operand = 0; operand < OPERANDS; operand += OF_DY) {
            float *x = out->of[layer][operand];
            int64_t columns = columns_of(layer, operand);
            philox_normal(philox_named(8, names[operand]), (uint64_t)layer, 0, T * columns, x);
            for (int64_t i = 0; i < T * columns; i++)
                x[i] = ldexpf(x[i], (int)(i / columns % 7) - (int)(i % columns % 5));
        }
}

static int64_t amax_slot(const struct rank *r, int operand)
{
    return (int64_t)params_weight(&r->params, 1, operand == OF_X ? ROLE_QUERY : ROLE_VALUE) * OPERANDS +
           operand;
}

static void use_delayed_scaling(struct rank *r)
{
    int64_t n = (int64_t)r->params.count * OPERANDS;
    r->used = memory_zeroed((size_t)n, sizeof *r->used, "amaxes");
    r->seen = memory_zeroed((size_t)n, sizeof *r->seen, "amaxes");
    for (int64_t i = 0; i < n; i++)
        r->used[i] = OTHER_AMAX;
    for (int operand = 0; operand < OPERANDS; operand++)
        r->used[amax_slot(r, operand)] = amax_used[operand];
    r->context.delayed = (struct delayed_scaling){tensor_1d(r->used, F32, n), tensor_1d(r->seen, F32, n)};
}

/* As at the end of a step: the maximum over ranks. An evaluation has recorded nothing. */
static enum status reduce_amax(struct rank *r)
{
    TRY(group_all_reduce(r->groups->world, r->stream, r->context.delayed.recorded, REDUCE_MAX));
    TRY(stream_sync(r->stream));
    for (int operand = 0; operand < OPERANDS && r->groups->world->rank == 0; operand++)
        r->trial->seen[operand] = r->seen[amax_slot(r, operand)];
    return OK;
}

static enum status open_rank(struct world *world, struct trial *trial, struct rank *r)
{
    struct degrees degrees = {.tp = world->size, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    struct mesh mesh;
    r->trial = trial;
    TRY(mesh_create(degrees, NULL, &mesh));
    TRY(params_declare(&model, &degrees, false, &r->params));
    TRY(groups_create(world, &mesh, params_kv_replicas(&model, world->size), &r->groups));
    TRY(device_open(&(struct device_options){.name = "strict", .threads = 1}, &r->device));
    TRY(stream_create(r->device, "test", &r->stream));
    struct weights_config config = {.device = r->device,
                                    .params = &r->params,
                                    .coord = r->groups->coord,
                                    .layers = (const int[]){2, 1, 0, LAYER_EMBEDDING},
                                    .layer_count = 4,
                                    .groups = r->groups,
                                    .training = true};
    TRY(weights_create(&config, &r->weights));
    TRY(weights_initialize(&r->weights, r->stream, 3));
    for (int t = 0; t < T; t++) {
        r->sample[t] = 70 + t / S;
        r->place[t] = t % S;
    }
    r->batch = (struct batch){.sample = r->sample, .sample_offset = r->place};
    r->options = (struct layer_options){.precision = trial->precision};
    r->context = (struct layer_context){.model = &model,
                                        .groups = r->groups,
                                        .weights = &r->weights,
                                        .compute = r->stream,
                                        .tokens = B * S,
                                        .sequences = B,
                                        .options = &r->options,
                                        .seed = 3};
    use_delayed_scaling(r);
    struct slot_layout layout = {0};
    r->qkv = column_linear_declare(&r->context, &layout, params_weight(&r->params, 1, ROLE_QUERY), -1);
    r->proj = row_linear_declare(&r->context, &layout, params_weight(&r->params, 1, ROLE_ATTENTION_OUT), -1);
    r->pass = (struct pass){.context = &r->context, .batch = &r->batch, .training = true};
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++) {
        r->pass.base[lifetime] = r->slots[lifetime] = aligned_alloc(64, layout.bytes[lifetime] + 64);
        CHECK(r->slots[lifetime] != NULL);
    }
    return OK;
}

static void close_rank(struct rank *r)
{
    for (int lifetime = 0; lifetime < LIFETIME_COUNT; lifetime++)
        free(r->slots[lifetime]);
    free(r->used);
    free(r->seen);
    weights_destroy(&r->weights);
    stream_destroy(r->stream);
    groups_destroy(r->groups);
    device_close(r->device);
    params_free(&r->params);
}

/* The global outputs or inputs that this rank holds of each part that tp splits, and their offsets. */
struct cut_part {
    int64_t begin, count, offset; // within the part; of the part among all
    bool first;                   // of the ranks that hold the same slice
};

static int parts_of(const struct rank *r, int layer, struct cut_part out[3])
{
    int64_t offset = 0;
    int weight = layer == 0 ? r->qkv.weight : r->proj.weight, count = layer == 0 ? 3 : 1, dim = layer;
    for (int i = 0; i < count; i++) {
        const struct slice *slice = &weights_held(&r->weights, weight + i)->slice;
        out[i] = (struct cut_part){slice->begin[dim], slice->count[dim], offset, slice->first_replica};
        offset += weights_held(&r->weights, weight + i)->param->dim[dim];
    }
    return count;
}

/* Copies between this rank's matrix and the global one; `down`: the split dimension is the rows'. */
static void exchange(const struct rank *r, int layer, bool down, struct tensor local, float *whole,
                     int64_t whole_columns, bool out)
{
    struct cut_part parts[3];
    int64_t at = 0;
    int count = parts_of(r, layer, parts);
    for (int p = 0; p < count; p++)
        for (int64_t i = 0; i < parts[p].count; i++, at++)
            for (int64_t k = 0; k < local.dim[down ? 1 : 0]; k++) {
                int64_t global = parts[p].offset + parts[p].begin + i;
                float *mine =
                    (float *)local.data + (down ? at * local.stride[0] + k : k * local.stride[0] + at);
                float *theirs = whole + (down ? global * whole_columns + k : k * whole_columns + global);
                if (!out)
                    *mine = *theirs;
                else if (parts[p].first)
                    *theirs = *mine;
            }
}

/* x or dy, whole or this rank's slice. */
static struct tensor make(const struct rank *r, int layer, int operand, float *storage)
{
    bool cut = (operand == OF_X) == (layer == 1);
    const float *whole = r->trial->values->of[layer][operand];
    int64_t columns = columns_of(layer, operand), mine = cut ? 0 : columns;
    struct cut_part parts[3];
    for (int p = 0, count = parts_of(r, layer, parts); cut && p < count; p++)
        mine += parts[p].count;
    struct tensor t = tensor_2d(storage, F32, T, mine);
    if (cut)
        exchange(r, layer, false, t, (float *)(uintptr_t)whole, columns, false);
    else
        memcpy(storage, whole, (size_t)(T * columns) * sizeof *whole);
    return t;
}

static void keep(const struct rank *r, int layer, enum matmul matmul, int operand, struct tensor t)
{
    float *whole = r->trial->out->of[layer][matmul][operand];
    int64_t columns = columns_of(layer, operand);
    bool cut = operand == OF_W || (operand == OF_X) == (layer == 1);
    if (cut)
        exchange(r, layer, operand == OF_W && layer == 0, t, whole, columns, true);
    else if (r->groups->tp->rank == 0)
        memcpy(whole, t.data, tensor_bytes(t));
}

static enum status quantize_all(struct rank *r, int layer)
{
    const struct quantization *q = layer == 0 ? &r->qkv.quantization : &r->proj.quantization;
    static const int operands[MATMUL_COUNT][2] = {{OF_X, OF_W}, {OF_DY, OF_W}, {OF_DY, OF_X}};
    float *x = malloc(MAX_ELEMENTS * sizeof *x), *dy = malloc(MAX_ELEMENTS * sizeof *dy);
    CHECK(x != NULL && dy != NULL);
    struct tensor in[OPERANDS] = {make(r, layer, OF_X, x), weights_fused_value(&r->weights, q->weight),
                                  make(r, layer, OF_DY, dy)};
    for (int matmul = 0; matmul < MATMUL_COUNT; matmul++) {
        struct operands pair = {in[operands[matmul][0]], in[operands[matmul][1]]};
        TRY(quantize_operand(q, &r->pass, (enum matmul)matmul, &pair));
        TRY(stream_sync(r->stream));
        keep(r, layer, (enum matmul)matmul, operands[matmul][0], pair.first);
        keep(r, layer, (enum matmul)matmul, operands[matmul][1], pair.second);
    }
    free(x);
    free(dy);
    return OK;
}

static enum status rank_main(struct world *world, void *argument)
{
    struct rank r = {0};
    enum status status = open_rank(world, argument, &r);
    // As in an evaluation, which quantizes the same operands and records no amax.
    r.pass.training = false;
    if (status == OK)
        status = quantize_all(&r, 0);
    for (int64_t i = 0; i < r.params.count * OPERANDS && status == OK; i++)
        if (r.seen[i] > 0.0F)
            status = fail(OUT_OF_BOUND, "an evaluation records amax values");
    r.pass.training = true;
    for (int layer = 0; layer < 2 && status == OK; layer++)
        status = quantize_all(&r, layer);
    if (status == OK)
        status = reduce_amax(&r);
    close_rank(&r);
    return status;
}

static struct linear_precision all_matmuls(enum matmul_format format, enum scaling scaling)
{
    return (struct linear_precision){.format = {format, format, format}, .scaling = scaling, .num_layers = 2};
}

/* ---- an independent implementation of each format ---- */

static struct quantize expected(const struct linear_precision *precision, enum matmul matmul, int operand)
{
    const enum matmul_format format = precision->format[matmul];
    static const enum number_format of_gradients[] = {
        [MATMUL_E4M3] = NUMBER_E4M3, [MATMUL_E5M2] = NUMBER_E5M2, [MATMUL_HYBRID] = NUMBER_E5M2};
    bool rows = matmul == MATMUL_GRAD_WEIGHT || (matmul == MATMUL_GRAD_INPUT && operand == OF_W);
    struct quantize q = {.format = NUMBER_E4M3, .scale = SCALE_POWER_OF_TWO};
    int64_t along = 0, across = 1;
    if (format == MATMUL_MXFP8) {
        q.scale = precision->mxfp8_scale_rounding == SCALE_ROUNDS_UP ? SCALE_E8M0_UP : SCALE_E8M0_DOWN;
        along = 32;
    } else if (format == MATMUL_NVFP4) {
        q.format = NUMBER_E2M1;
        q.scale = SCALE_E4M3;
        along = 16;
        across = operand == OF_W ? 16 : 1;
    } else if (format == MATMUL_TERNARY) {
        q.format = operand == OF_W ? NUMBER_TERNARY : NUMBER_INT8;
        q.scale = SCALE_FULL;
    } else {
        q.format = operand == OF_DY        ? of_gradients[format]
                   : format == MATMUL_E5M2 ? NUMBER_E5M2
                                           : NUMBER_E4M3;
        along = precision->scaling == SCALING_BLOCKWISE ? 128 : 0;
        across = operand == OF_W ? 128 : 1;
    }
    q.block_rows = along == 0 ? 0 : rows ? along : across;
    q.block_columns = along == 0 ? 0 : rows ? across : along;
    q.period = operand == OF_W ? 0 : S;
    return q;
}

struct check {
    struct stream *stream;
    const struct quantized *got;
    const struct operand_values *values;
    struct linear_precision precision; // the same in all matmuls
    const float *seen;                 // [OPERANDS]
};

/* x of the first layer, or the weights or gradients of v alone: the number of elements that differ from the
 * reference. */
static int64_t mistakes(const struct check *k, enum matmul matmul, int operand, const float *in, int64_t rows,
                        int64_t columns, int64_t row_begin, int64_t column_begin, int64_t stride)
{
    float *out = malloc((size_t)(rows * columns) * sizeof *out), row_largest[T], largest = 0.0F;
    double sum = 0.0;
    int64_t wrong = 0;
    CHECK(out != NULL);
    struct tensor source = tensor_2d((float *)(uintptr_t)in, F32, rows, columns);
    struct quantize q = expected(&k->precision, matmul, operand);
    q.in = source;
    q.out = tensor_2d(out, F32, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        largest = fmaxf(largest, fabsf(in[i]));
        sum += rint(fabs((double)in[i]) * 0x1p24);
    }
    q.magnitude = tensor_1d(&largest, F32, 1);
    if (k->precision.scaling == SCALING_DELAYED) {
        float seen = k->seen[operand];
        wrong += memcmp(&seen, &largest, sizeof seen) != 0;
        largest = amax_used[operand];
    }
    if (q.format == NUMBER_TERNARY) {
        sum *= 0x1p-24;
        q.magnitude = tensor_1d(&sum, F64, 1);
        q.divisor = (double)(rows * columns);
    } else if (q.format == NUMBER_INT8) {
        for (int64_t r = 0; r < rows; r++) {
            row_largest[r] = 0.0F;
            for (int64_t c = 0; c < columns; c++)
                row_largest[r] = fmaxf(row_largest[r], fabsf(in[r * columns + c]));
        }
        q.magnitude = tensor_1d(row_largest, F32, rows);
    }
    MUST(quantize(k->stream, q));
    MUST(stream_sync(k->stream));
    for (int64_t r = 0; r < rows; r++)
        wrong += memcmp(out + r * columns,
                        k->got->of[0][matmul][operand] + (row_begin + r) * stride + column_begin,
                        (size_t)columns * sizeof *out) != 0;
    free(out);
    return wrong;
}

static int64_t check_format(const struct check *k)
{
    // Operands with a Hadamard transform or stochastic rounding: checked against tp 2 and 4.
    const float *x = k->values->of[0][OF_X], *fused = k->values->of[0][OF_DY];
    float *w = malloc(KV * HIDDEN * sizeof *w), *dy = malloc(T * KV * sizeof *dy);
    int64_t wrong = 0;
    CHECK(w != NULL && dy != NULL);
    for (int64_t t = 0; t < T; t++)
        memcpy(dy + t * KV, fused + t * FUSED + Q + KV, KV * sizeof *dy);
    philox_normal(philox_named(3, "layers.1.attention.v.weight"), 0, 0, KV * HIDDEN, w);
    for (int64_t i = 0; i < KV * HIDDEN; i++)
        w[i] *= 0.02F;
    enum matmul_format format = k->precision.format[0];
    bool fp4 = format == MATMUL_NVFP4, has_dy = !fp4 && format != MATMUL_TERNARY;
    wrong += mistakes(k, MATMUL_FORWARD, OF_X, x, T, HIDDEN, 0, 0, HIDDEN);
    wrong += fp4 ? 0 : mistakes(k, MATMUL_GRAD_WEIGHT, OF_X, x, T, HIDDEN, 0, 0, HIDDEN);
    wrong += mistakes(k, MATMUL_FORWARD, OF_W, w, KV, HIDDEN, Q + KV, 0, HIDDEN);
    wrong += mistakes(k, MATMUL_GRAD_INPUT, OF_W, w, KV, HIDDEN, Q + KV, 0, HIDDEN);
    wrong += has_dy ? mistakes(k, MATMUL_GRAD_INPUT, OF_DY, dy, T, KV, 0, Q + KV, FUSED) : 0;
    wrong += has_dy ? mistakes(k, MATMUL_GRAD_WEIGHT, OF_DY, dy, T, KV, 0, Q + KV, FUSED) : 0;
    free(w);
    free(dy);
    return wrong;
}

static const struct {
    const char *name;
    enum matmul_format format;
    enum scaling scaling;
    enum scale_rounding rounding;
} formats[] = {{"e4m3", MATMUL_E4M3, SCALING_TENSORWISE, SCALE_ROUNDS_UP},
               {"e5m2", MATMUL_E5M2, SCALING_TENSORWISE, SCALE_ROUNDS_UP},
               {"hybrid", MATMUL_HYBRID, SCALING_TENSORWISE, SCALE_ROUNDS_UP},
               {"hybrid, blockwise", MATMUL_HYBRID, SCALING_BLOCKWISE, SCALE_ROUNDS_UP},
               {"e4m3, delayed", MATMUL_E4M3, SCALING_DELAYED, SCALE_ROUNDS_UP},
               {"hybrid, delayed", MATMUL_HYBRID, SCALING_DELAYED, SCALE_ROUNDS_UP},
               {"mxfp8", MATMUL_MXFP8, SCALING_TENSORWISE, SCALE_ROUNDS_UP},
               {"mxfp8, down", MATMUL_MXFP8, SCALING_TENSORWISE, SCALE_ROUNDS_DOWN},
               {"nvfp4", MATMUL_NVFP4, SCALING_TENSORWISE, SCALE_ROUNDS_UP},
               {"ternary", MATMUL_TERNARY, SCALING_TENSORWISE, SCALE_ROUNDS_UP}};
enum { FORMATS = sizeof formats / sizeof *formats };

static int check_layer(void)
{
    int failures = 0;
    struct quantized *one = memory_zeroed(2, sizeof *one, "operands"), *cut = one + 1;
    struct device *device;
    struct operand_values *values = memory_zeroed(1, sizeof *values, "values");
    struct check check = {.got = one, .values = values};
    fill_operands(values);
    MUST(device_open(&(struct device_options){.name = "cpu", .threads = 1}, &device));
    MUST(stream_create(device, "check", &check.stream));
    for (int f = 0; f < FORMATS; f++) {
        struct trial trial = {
            .precision = all_matmuls(formats[f].format, formats[f].scaling), .values = values, .out = one};
        trial.precision.mxfp8_scale_rounding = formats[f].rounding;
        check.precision = trial.precision;
        MUST(world_run_threads(1, rank_main, &trial));
        float seen[OPERANDS];
        memcpy(seen, trial.seen, sizeof seen);
        check.seen = seen;
        int64_t wrong = check_format(&check);
        for (int tp = 2; tp <= MAX_TP; tp *= 2) {
            memset(cut, 0, sizeof *cut);
            trial.out = cut;
            MUST(world_run_threads(tp, rank_main, &trial));
            bool differs = memcmp(one, cut, sizeof *one) != 0 || memcmp(seen, trial.seen, sizeof seen) != 0;
            failures += differs;
            if (differs)
                printf("FAILED  %s: tp %d quantizes to other values than one rank\n", formats[f].name, tp);
        }
        failures += wrong != 0;
        printf("%s: %lld rows differ from the reference\n", formats[f].name, (long long)wrong);
    }
    stream_destroy(check.stream);
    device_close(device);
    free(one);
    free(values);
    return failures;
}

/* ---- whole runs ---- */

/* The first layout is the reference. */
struct layout_group {
    enum tiny_family family;
    const char *common;
    const char *layouts[4];
    bool differs; // the second must not be bit-identical to the first
};

#define STEPS    " train.train_iters=6 optimizer.lr_decay_iters=6 train.eval_interval=6 "
#define BF16_ALL "precision.params_dtype=bf16 "
#define PP_4     "pp=4 pipeline.layout=[2,0,3,0] pipeline.schedule=zb-h1 cluster.device=strict"
#define INTERLEAVED \
    "pp=2 pipeline.schedule=interleaved cluster.threads_per_rank=2 memory.recompute_granularity=full"
#define ZB_V                                                              \
    "pp=2 pipeline.schedule=zb-v memory.recompute_granularity=selective " \
    "memory.recompute_modules=[norm,core_attn]"

static const struct layout_group groups[] = {
    {TINY_GPT, "precision.matmul_format=mxfp8" STEPS, {"", PP_4, INTERLEAVED, ZB_V}, false},
    {TINY_LLAMA,
     "precision.matmul_format=nvfp4 model.seq_length=16 precision.high_precision_last_layers=1" STEPS,
     {"", PP_4, ZB_V},
     false},
    {TINY_LLAMA,
     "precision.matmul_format=hybrid precision.scaling=blockwise" STEPS,
     {"", PP_4, INTERLEAVED},
     false},
    {TINY_GPT,
     "precision.forward_format=ternary precision.grad_weight_format=e5m2 dp=2 train.micro_batch_size=1" STEPS,
     {"", INTERLEAVED},
     false},
    {TINY_GPT,
     "precision.matmul_format=e4m3 tp=2 parallel.sequence_parallel=true model.hidden_dropout=0.1" STEPS,
     {"", "pp=2 pipeline.schedule=zb-h1 cluster.device=strict"},
     false},
    // Each option must have an effect; low precision with all layers in high precision must have none.
    {TINY_LLAMA, BF16_ALL "precision.matmul_format=nvfp4 model.seq_length=16" STEPS, {"", PP_4, ZB_V}, false},
    {TINY_GPT, BF16_ALL STEPS, {"", "precision.matmul_format=mxfp8"}, true},
    {TINY_GPT, "precision.matmul_format=mxfp8" STEPS, {"", "precision.mxfp8_scale_rounding=down"}, true},
    {TINY_GPT,
     "precision.params_dtype=fp16 precision.initial_loss_scale=1024 precision.matmul_format=hybrid "
     "precision.scaling=delayed" STEPS,
     {"", PP_4, INTERLEAVED},
     false},
    {TINY_GPT, STEPS, {"precision.matmul_format=none", "precision.forward_format=e4m3"}, true},
    {TINY_GPT, STEPS, {"precision.matmul_format=none", "precision.grad_input_format=e5m2"}, true},
    {TINY_GPT, STEPS, {"precision.matmul_format=none", "precision.grad_weight_format=mxfp8"}, true},
    {TINY_GPT,
     "precision.matmul_format=mxfp8" STEPS,
     {"", "precision.high_precision_layers=[layers.-1.attention]"},
     true},
    {TINY_GPT,
     STEPS,
     {"", "precision.matmul_format=mxfp8 precision.high_precision_layers=[attention,mlp]"},
     false},
    {TINY_GPT,
     "precision.matmul_format=mxfp8" STEPS,
     {"precision.high_precision_first_layers=2", "precision.high_precision_layers=[layers.0,layers.1.mlp,"
                                                 "layers.1.attention.qkv,layers.-4.attention.proj]"},
     false},
};

static enum status run(const struct tiny *tiny, const struct layout_group *group, const char *layout,
                       struct trace *out)
{
    struct recipe *recipe = NULL;
    TRY(tiny_recipe(tiny, group->family, group->common, layout, 0, &recipe));
    enum status status = trace_run(recipe, &(struct trace_options){.transport = "local"}, out);
    recipe_destroy(recipe);
    return status;
}

static int check_group(const struct tiny *tiny, const struct layout_group *group)
{
    struct trace reference = {.steps = 0};
    int failures = 0;
    enum status status = run(tiny, group, group->layouts[0], &reference);
    for (int i = 1; i < 4 && group->layouts[i] != NULL; i++) {
        struct trace trace = {.steps = 0};
        struct text why = {0};
        if (status == OK)
            status = run(tiny, group, group->layouts[i], &trace);
        bool differs = status == OK && trace_differs(&reference, &trace, &why);
        if (status != OK || differs != group->differs) {
            printf("FAILED  \"%s\": \"%s\" against \"%s\": %s\n", group->common, group->layouts[i],
                   group->layouts[0],
                   status != OK ? fail_text()
                   : differs    ? text_chars(&why)
                                : "bit-identical");
            failures++;
        }
        text_free(&why);
    }
    return failures;
}

/* dp adds gradients in another order; the quantized operands are the same, so verify's bounds apply
 * unchanged. */
static int check_bounds(const struct tiny *tiny)
{
    static const struct comparison cases[] = {
        {TINY_GPT, "precision.matmul_format=mxfp8 train.micro_batch_size=2",
         "dp=2 pp=2 pipeline.schedule=zb-h1", ""},
        {TINY_LLAMA, "precision.matmul_format=nvfp4 model.seq_length=16 train.micro_batch_size=1", "dp=4",
         ""},
        {TINY_LLAMA, "precision.matmul_format=e4m3 train.micro_batch_size=2", "dp=2", ""},
        {TINY_GPT, "precision.matmul_format=hybrid precision.scaling=delayed train.micro_batch_size=2",
         "dp=2 tp=2 pp=2", "tp=2"}, // of as many tensor-parallel ranks
        {TINY_LLAMA, BF16_ALL "precision.matmul_format=mxfp8 train.micro_batch_size=2", "dp=2", ""},
    };
    int failures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += UNDER_SANITIZER ? 3 : 1) {
        struct verify_report report = {0};
        enum status status = tiny_verify(tiny, &cases[i], 2, (struct step_observer){0}, &report);
        bool bad = status != OK || report.outside != 0 || !(report.largest > 0.0);
        printf("%s, %s: %d out of bounds, the largest error is %.3f of its bound\n", cases[i].common,
               cases[i].layout, report.outside, report.largest);
        if (bad)
            printf("FAILED  %s\n", status != OK ? fail_text() : "out of bounds");
        failures += bad;
        verify_report_free(&report);
    }
    return failures;
}

int main(void)
{
    struct tiny tiny;
    int failures = check_layer();
    MUST(tiny_create(&tiny));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i += UNDER_TSAN ? 6 : UNDER_SANITIZER ? 4 : 1)
        failures += check_group(&tiny, &groups[i]);
    failures += check_bounds(&tiny);
    tiny_destroy(&tiny);
    printf("%d failures\n", failures);
    return failures != 0;
}
