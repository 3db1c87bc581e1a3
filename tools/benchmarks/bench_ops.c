// SPDX-License-Identifier: Apache-2.0
/* Rates of the ops at the sizes of a model, compared with memory bandwidth:
 *
 *     bench_ops [device=cpu] [type=f32] [model=gpt2] [threads=2] [batch=4] [sequence=256] [rotate=0]
 *     bench_ops device=cuda type=bf16 model=gpt3-1.3b batch=4 sequence=2048
 *
 * Each line: milliseconds (the best of several runs), the rate, for memory-bound ops the fraction of the peak
 * rate, and the time of the op in a microbatch of the whole model, with the optimizer at 8 microbatches per
 * step. On a CPU the buffers are those of one layer, so, as in training, small ones are read from caches and
 * can exceed the peak. On asynchronous devices (GPUs) a run is ten calls, and each uses the next copy of its
 * operands: `rotate` megabytes of each, so that rates are those of memory (bench_buffers.h). attention=cudnn:
 * only cuDNN's attention, not our own.
 *
 * The last lines compare the sum with the model's matrix multiplications, and fused epilogues with separate
 * kernels. */
#include "base/clock.h"
#include "tools/benchmarks/bench_buffers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 50257, V_PADDED = 50304, MICROBATCHES = 8, RUNS = 7 };

struct model {
    const char *name;
    int64_t hidden, heads, groups, head_dim, ffn, layers, parameters;
    int64_t gates; // matmuls of that width into the second half of a block
};
static const struct model models[] = {
    {"gpt2", 768, 12, 12, 64, 3072, 12, 124439808, 1},
    {"gpt3-1.3b", 2048, 16, 16, 128, 8192, 24, 1313722368, 1},
    {"llama3-8b", 4096, 32, 8, 128, 14336, 32, 8030261248, 2},
};
enum { MODELS = sizeof models / sizeof *models };

struct bench {
    struct bench_memory memory;
    struct stream *stream; // of the measured device
    struct model model;
    enum dtype dtype; // of activations and weights
    double size;      // bytes of an element
    int64_t batch, sequence, tokens, rotate_mb;
    int calls; // calls per run
    bool own_attention;
    double total_ms;       // milliseconds per microbatch
    double peak_bandwidth; // bytes per second
    // Devices with cuDNN's attention, and with our own on mma.sync; NULL: not available.
    struct stream *cudnn, *mma;
    struct stream *fused; // device with fused epilogues; NULL: not available
};

static void *host(int64_t bytes)
{
    void *data = malloc((size_t)bytes + 1);
    CHECK(data != NULL);
    return data;
}

static struct tensor matrix_of(struct bench *b, enum dtype dtype, int64_t rows, int64_t columns)
{
    return bench_normals(&b->memory, dtype, rows, columns);
}

static struct tensor matrix(struct bench *b, int64_t rows, int64_t columns)
{
    return matrix_of(b, b->dtype, rows, columns);
}

static struct tensor vector(struct bench *b, int64_t count)
{
    return tensor_1d(matrix(b, 1, count).data, b->dtype, count);
}

/* Tensors that are fp32 in every type. */
static struct tensor sums(struct bench *b, int64_t count)
{
    return tensor_1d(matrix_of(b, F32, 1, count).data, F32, count);
}

static struct tensor ones(struct bench *b, int64_t count)
{
    float *x = host(count * (int64_t)sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = 1.0F;
    void *data = bench_filled(&b->memory, x, (size_t)count * sizeof *x);
    free(x);
    return tensor_1d(data, F32, count);
}

static int32_t *numbers(struct bench *b, int64_t below)
{
    int32_t *n = host(b->tokens * (int64_t)sizeof *n);
    for (int64_t t = 0; t < b->tokens; t++)
        n[t] = (int32_t)(t * 7919 % below);
    int32_t *data = bench_filled(&b->memory, n, (size_t)b->tokens * sizeof *n);
    free(n);
    return data;
}

static int64_t *samples(struct bench *b)
{
    int64_t *n = host(b->tokens * (int64_t)sizeof *n);
    for (int64_t t = 0; t < b->tokens; t++)
        n[t] = t / b->sequence;
    int64_t *data = bench_filled(&b->memory, n, (size_t)b->tokens * sizeof *n);
    free(n);
    return data;
}

static double elements(int64_t rows, int64_t columns)
{
    return (double)rows * (double)columns;
}

/* Prints a line: bytes moved or flops computed by the op, and its number of runs per microbatch. */
static double report(struct bench *b, const char *name, double s, double amount, const char *unit,
                     double times)
{
    b->total_ms += times * s * 1e3;
    printf("%-32s %9.3f ms %9.1f %-8s", name, s * 1e3, amount / s * 1e-9, unit);
    if (unit[1] == 'B' && b->peak_bandwidth > 0.0)
        printf(" %5.1f %%", 100.0 * amount / s / b->peak_bandwidth);
    else
        printf("        ");
    printf(" x %-6.4g %9.2f ms\n", times, times * s * 1e3);
    return s;
}

/* Measures one call with the struct `args`, which is rotated before each. */
#define BEST_S(b, args, call)                                               \
    ({                                                                      \
        double best_ = INFINITY;                                            \
        for (int run_ = 0; run_ < RUNS; run_++) {                           \
            double begin_ = clock_s();                                      \
            for (int call_ = 0; call_ < (b)->calls; call_++) {              \
                bench_rotate(&(b)->memory, &(args), sizeof(args));          \
                MUST(call);                                                 \
            }                                                               \
            MUST(stream_sync((b)->stream));                                 \
            best_ = fmin(best_, (clock_s() - begin_) / (double)(b)->calls); \
        }                                                                   \
        best_;                                                              \
    })

static struct norm_forward norm_ahead(struct bench *b, struct tensor x)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct norm_forward f = {.kind = NORM_LAYER, .epsilon = 1e-5F, .x = x, .y = matrix(b, t, h)};
    f.weight = vector(b, h), f.bias = vector(b, h), f.mean = sums(b, t), f.rstd = sums(b, t);
    return f;
}

static struct norm_backward norm_back(struct bench *b, const struct norm_forward *f)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct norm_backward n = {
        .kind = NORM_LAYER, .x = f->x, .weight = f->weight, .mean = f->mean, .rstd = f->rstd};
    n.dy = f->y, n.dx = n.dresidual = matrix(b, t, h), n.dweight = sums(b, h), n.dbias = sums(b, h);
    return n;
}

/* The first norm of a block, and that of the head. */
static void bench_norms(struct bench *b)
{
    const double once = b->size * elements(b->tokens, b->model.hidden), times = (double)b->model.layers + 1;
    struct norm_forward f = norm_ahead(b, matrix(b, b->tokens, b->model.hidden));
    struct norm_backward n = norm_back(b, &f);
    report(b, "norm_forward", BEST_S(b, f, norm_forward(b->stream, f)), 2.0 * once, "GB/s", times);
    report(b, "norm_backward", BEST_S(b, n, norm_backward(b->stream, n)), 4.0 * once, "GB/s", times);
    bench_release(&b->memory);
}

static void bench_activation(struct bench *b, enum activation_kind kind, const char *name, double times)
{
    int64_t t = b->tokens, ffn = b->model.ffn, width = kind == ACTIVATION_SWIGLU ? 2 * ffn : ffn;
    struct activation_forward f = {.kind = kind, .x = matrix(b, t, width), .y = matrix(b, t, ffn)};
    struct activation_backward n = {.kind = kind, .x = f.x, .dy = f.y, .dx = matrix(b, t, width)};
    printf("%s:\n", name);
    report(b, "  activation_forward", BEST_S(b, f, activation_forward(b->stream, f)),
           b->size * elements(t, width + ffn), "GB/s", times);
    report(b, "  activation_backward", BEST_S(b, n, activation_backward(b->stream, n)),
           b->size * elements(t, 2 * width + ffn), "GB/s", times);
    bench_release(&b->memory);
}

static void bench_residual(struct bench *b, float probability, double times)
{
    int64_t t = b->tokens, h = b->model.hidden;
    struct dropout d = {.probability = probability, .generator = philox_named(1, "bench"), .columns = h};
    d.sample = samples(b);
    d.sample_offset = numbers(b, b->sequence);
    struct residual_forward f = {
        .x = matrix(b, t, h), .bias = vector(b, h), .residual = matrix(b, t, h), .dropout = d};
    f.out = f.residual;
    struct residual_backward n = {.dout = f.x, .dx = matrix(b, t, h), .dropout = d};
    printf("dropout %g:\n", (double)probability);
    report(b, "  residual_forward", BEST_S(b, f, residual_forward(b->stream, f)),
           3.0 * b->size * elements(t, h), "GB/s", times);
    report(b, "  residual_backward", BEST_S(b, n, residual_backward(b->stream, n)),
           2.0 * b->size * elements(t, h), "GB/s", times);

    // With the second norm of a block. Without dropout, dx is only needed for the branch.
    struct residual_norm_forward pair = {.residual = f, .norm = norm_ahead(b, f.out)};
    struct residual_norm_backward back = {.norm = norm_back(b, &pair.norm), .residual = n};
    if (probability == 0.0F)
        back.norm.dx = n.dx;
    back.residual.dout = back.norm.dx;
    report(b, "  residual_norm_forward", BEST_S(b, pair, residual_norm_forward(b->stream, pair)),
           4.0 * b->size * elements(t, h), "GB/s", times);
    report(b, "  residual_norm_backward", BEST_S(b, back, residual_norm_backward(b->stream, back)),
           (probability == 0.0F ? 4.0 : 5.0) * b->size * elements(t, h), "GB/s", times);
    bench_release(&b->memory);
}

static void bench_column_sums(struct bench *b)
{
    const int64_t h = b->model.hidden, widths[] = {h, 3 * h, b->model.ffn}, times[] = {2, 1, 1};
    for (int i = 0; i < 3; i++) {
        struct column_sum c = {.in = matrix(b, b->tokens, widths[i]), .out = sums(b, widths[i])};
        report(b, "column_sum", BEST_S(b, c, column_sum(b->stream, c)),
               b->size * elements(b->tokens, widths[i]), "GB/s", (double)(times[i] * b->model.layers));
        bench_release(&b->memory);
    }
}

static void bench_embedding(struct bench *b)
{
    int64_t h = b->model.hidden;
    struct embedding_forward f = {.table = matrix(b, V, h), .id = numbers(b, V), .rows = V};
    f.out = matrix(b, b->tokens, h);
    report(b, "embedding_forward", BEST_S(b, f, embedding_forward(b->stream, f)),
           2.0 * b->size * elements(b->tokens, h), "GB/s", 2);
    struct embedding_backward n = {.id = f.id, .rows = V, .dout = f.out, .dtable = matrix_of(b, F32, V, h)};
    report(b, "embedding_backward", BEST_S(b, n, embedding_backward(b->stream, n)),
           (8.0 + b->size) * elements(b->tokens, h), "GB/s", 2);
    bench_release(&b->memory);
}

static void bench_rope(struct bench *b)
{
    int64_t h = b->model.hidden;
    struct rope r = {.x = matrix(b, b->tokens, h),
                     .position = numbers(b, b->sequence),
                     .head_dim = b->model.head_dim,
                     .base = 1e4};
    report(b, "rope", BEST_S(b, r, rope(b->stream, r)), 2.0 * b->size * elements(b->tokens, h), "GB/s", 0);
    bench_release(&b->memory);
}

/* Forward and backward passes. */
static void attention_lines(struct bench *b, struct attention_backward n, double matmul_flops, double times,
                            double seconds[2])
{
    seconds[0] = BEST_S(b, n, attention_forward(b->stream, n.forward));
    report(b, "  attention_forward", seconds[0], 2 * matmul_flops, "GFLOP/s", times);
    seconds[1] = BEST_S(b, n, attention_backward(b->stream, n));
    report(b, "  attention_backward", seconds[1], 5 * matmul_flops, "GFLOP/s", times);
}

/* Same matrices on another device. */
static void time_others(struct bench *b, struct stream *other, struct attention_backward n,
                        double matmul_flops, double seconds[2])
{
    struct stream *const stream = b->stream;
    b->stream = other;
    attention_lines(b, n, matmul_flops, 0, seconds);
    b->stream = stream;
}

/* Compares with our own kernels for all GPUs, and with cuDNN. */
static void compare_attention(struct bench *b, struct attention_backward n, double matmul_flops,
                              const double own[2])
{
    double other[2];
    if (b->mma != NULL && b->dtype != F32) {
        printf("mma.sync:\n");
        time_others(b, b->mma, n, matmul_flops, other);
        printf("own attention runs at %.2f times the rate of mma.sync forward, %.2f backward\n",
               other[0] / own[0], other[1] / own[1]);
    }
    if (b->cudnn != NULL && b->dtype != F32 && n.forward.dropout.probability <= 0.0F) {
        printf("cuDNN:\n");
        time_others(b, b->cudnn, n, matmul_flops, other);
        printf("own attention: %.1f %% of cuDNN's rate forward, %.1f %% backward; target 80 %%\n",
               100.0 * other[0] / own[0], 100.0 * other[1] / own[1]);
    }
}

static void bench_attention(struct bench *b, float probability, double times)
{
    const struct model *m = &b->model;
    int64_t q = m->heads * m->head_dim, k = m->groups * m->head_dim, columns = q + 2 * k;
    struct attention_forward f = {.batch = b->batch, .sequence = b->sequence, .head_dim = m->head_dim};
    struct tensor qkv = matrix(b, b->tokens, columns), gradient = matrix(b, b->tokens, columns);
    f.scale = 1.0F / sqrtf((float)m->head_dim);
    f.q = tensor_columns(qkv, 0, q), f.k = tensor_columns(qkv, q, q + k),
    f.v = tensor_columns(qkv, q + k, columns);
    f.out = matrix(b, b->tokens, q), f.lse = matrix_of(b, F32, m->heads, b->tokens);
    f.dropout = (struct dropout){.probability = probability, .generator = philox_named(1, "a")};
    f.dropout.columns = b->sequence;
    f.dropout.sample = samples(b);
    struct attention_backward n = {.dout = matrix(b, b->tokens, q), .dq = tensor_columns(gradient, 0, q)};
    n.dk = tensor_columns(gradient, q, q + k), n.dv = tensor_columns(gradient, q + k, columns);
    double matmul_flops =
        elements(b->tokens, q) * (double)(b->sequence + 1); // pairs of positions within the causal mask
    printf("dropout %g:\n", (double)probability);
    double own[2];
    n.forward = f;
    attention_lines(b, n, matmul_flops, times, own);
    compare_attention(b, n, matmul_flops, own);
    bench_release(&b->memory);
}

static void bench_loss(struct bench *b)
{
    int64_t t = b->tokens;
    struct tensor logits = matrix(b, t, V_PADDED), max = sums(b, t), sum = ones(b, t), target = sums(b, t);
    int32_t *label = numbers(b, V);
    struct loss_max m = {.logits = logits, .columns = V, .max = max};
    struct loss_sum s = {
        .logits = logits, .max = max, .label = label, .columns = V, .sum = sum, .target = target};
    struct loss_backward n = {.logits = logits, .max = max, .sum = sum, .label = label, .columns = V};
    n.mask = ones(b, t).data;
    report(b, "loss_max", BEST_S(b, m, loss_max(b->stream, m)), b->size * elements(t, V), "GB/s", 1);
    report(b, "loss_sum", BEST_S(b, s, loss_sum(b->stream, s)), b->size * elements(t, V), "GB/s", 1);
    report(b, "loss_backward", BEST_S(b, n, loss_backward(b->stream, n)), 2.0 * b->size * elements(t, V),
           "GB/s", 1);
    bench_release(&b->memory);
}

/* Quantization before a low-precision matmul: of x [T, H], along its sum. Blocks read it twice. */
static void bench_formats(struct bench *b)
{
    const int64_t t = b->tokens, h = b->model.hidden;
    const double once = b->size * elements(t, h), out = 4.0 * elements(t, h);
    struct quantize q = {.in = matrix(b, t, h),
                         .out = matrix_of(b, F32, t, h),
                         .scale = SCALE_E8M0_UP,
                         .block_rows = 1,
                         .block_columns = 32,
                         .period = b->sequence,
                         .magnitude = sums(b, 1)};
    report(b, "quantize, mxfp8, rows", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out, "GB/s", 0);
    q.block_rows = 32, q.block_columns = 1;
    report(b, "quantize, mxfp8, columns", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out, "GB/s", 0);
    q.format = NUMBER_E2M1, q.scale = SCALE_E4M3, q.block_rows = 16;
    q.sample = samples(b), q.sample_offset = numbers(b, b->sequence), q.columns = h;
    report(b, "quantize, nvfp4, stochastic", BEST_S(b, q, quantize(b->stream, q)), 2.0 * once + out, "GB/s",
           0);
    q = (struct quantize){.in = q.in, .out = q.out, .magnitude = q.magnitude};
    report(b, "quantize, tensorwise", BEST_S(b, q, quantize(b->stream, q)), once + out, "GB/s", 0);
    struct magnitude m = {.in = q.in, .out = q.magnitude};
    report(b, "magnitude", BEST_S(b, m, magnitude(b->stream, m)), once, "GB/s", 0);
    if (t % HADAMARD_ROWS == 0) {
        struct hadamard transform = {.in = q.in, .out = q.out};
        report(b, "hadamard", BEST_S(b, transform, hadamard(b->stream, transform)), once + out, "GB/s", 0);
    }
    bench_release(&b->memory);
}

static void bench_optimizer(struct bench *b)
{
    const int64_t count = 32 << 20;
    const double times = (double)b->model.parameters / (double)count / MICROBATCHES;
    struct adamw a = {.weight = sums(b, count), .gradient = sums(b, count), .decay = true};
    a.m = sums(b, count), a.v = ones(b, count);
    if (b->dtype != F32)
        a.working = vector(b, count);
    const struct adamw_hyper hyper = {1e-4F, 0.1F, 0.05F, 1e-8F, 0.5F, 0.5F, 1e-3F, 0.1F, 0.0F, 1};
    a.hyper = bench_filled(&b->memory, &hyper, sizeof hyper);
    report(b, "adamw, 32 M", BEST_S(b, a, adamw(b->stream, a)),
           (28.0 + (b->dtype == F32 ? 0.0 : b->size)) * (double)count, "GB/s", times);
    int64_t blocks = squares_blocks(a.gradient);
    struct squares s = {.x = a.gradient,
                        .out = tensor_1d(bench_alloc(&b->memory, (size_t)blocks * 8), F64, blocks)};
    report(b, "squares, 32 M", BEST_S(b, s, squares(b->stream, s)), 4.0 * (double)count, "GB/s", times);
    bench_release(&b->memory);
}

/* Measures the peak bandwidth by a copy of memory larger than any cache; on a CPU by an add, since a copy
 * would also read its output (write allocation). */
static void bench_peak_bandwidth(struct bench *b, bool with_add)
{
    const int64_t count = 64 << 20;
    struct tensor in = sums(b, count), out = sums(b, count);
    struct add sum = {in, out};
    struct copy whole = {in, out};
    double s = with_add ? BEST_S(b, sum, add(b->stream, sum)) : BEST_S(b, whole, copy(b->stream, whole));
    double bytes = (with_add ? 12.0 : 8.0) * (double)count;
    b->peak_bandwidth = bytes / s;
    report(b, with_add ? "add, 512 MB (peak bandwidth)" : "copy, 512 MB (peak bandwidth)", s, bytes, "GB/s",
           0);
    bench_release(&b->memory);
}

/* y = x w^T, dx = dy w, dw += dy^T x, and the time of the model's multiplications of this shape. */
static double bench_gemm(struct bench *b, int64_t n, int64_t k, double times)
{
    struct tensor x = matrix(b, b->tokens, k), w = matrix(b, n, k), y = matrix(b, b->tokens, n),
                  dw = matrix_of(b, F32, n, k);
    struct gemm forward = {.a = x, .b = w, .c = y, .transpose_b = true}, input = {.a = y, .b = w, .c = x},
                weight = {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true};
    double s = BEST_S(b, forward, gemm(b->stream, forward));
    s += BEST_S(b, input, gemm(b->stream, input));
    s += BEST_S(b, weight, gemm(b->stream, weight));
    printf("gemm %6lld x %4lld, all three     %9.3f ms %8.1f GFLOP/s  x %-6.4g %9.2f ms\n", (long long)n,
           (long long)k, s * 1e3, 6.0 * elements(b->tokens, n) * (double)k / s * 1e-9, times,
           times * s * 1e3);
    bench_release(&b->memory);
    return times * s * 1e3;
}

/* A matmul and its epilogue, as separate kernels and fused. */
static void compare_epilogue(struct bench *b, const char *name, struct gemm args)
{
    struct bench other = *b;
    other.stream = b->fused;
    double apart = BEST_S(b, args, gemm(b->stream, args)),
           fused = BEST_S(&other, args, gemm(other.stream, args));
    printf("%-28s apart %9.3f ms, fused %9.3f ms  x %-6lld saves %8.2f ms\n", name, apart * 1e3, fused * 1e3,
           (long long)b->model.layers, (double)b->model.layers * (apart - fused) * 1e3);
}

static void bench_epilogues(struct bench *b)
{
    const int64_t h = b->model.hidden, ffn = b->model.ffn;
    const struct tensor x = matrix(b, b->tokens, h), before = matrix(b, b->tokens, ffn),
                        after = matrix(b, b->tokens, ffn);
    struct gemm args = {.a = x, .b = matrix(b, ffn, h), .transpose_b = true, .c = before};
    args.bias = vector(b, ffn);
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH, .after = after};
    compare_epilogue(b, "fc1, then gelu", args);
    args = (struct gemm){.a = x, .b = matrix(b, h, ffn), .c = after};
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH, .before = before};
    compare_epilogue(b, "fc2's dx, then gelu's", args);
    args = (struct gemm){.a = after, .b = x, .c = matrix_of(b, F32, ffn, h)};
    args.transpose_a = args.accumulate = true;
    args.epilogue.bias_gradient = sums(b, ffn);
    compare_epilogue(b, "fc1's dw, and its bias's", args);
    bench_release(&b->memory);
}

/* Parses "key=value" into *value; returns false for another key. */
static bool option(const char *argument, const char *key, const char **value)
{
    size_t length = strlen(key);
    if (strncmp(argument, key, length) != 0 || argument[length] != '=')
        return false;
    *value = argument + length + 1;
    return true;
}

static bool parse(struct bench *b, struct device_options *options, const char *argument)
{
    const char *value;
    if (option(argument, "device", &value)) {
        options->name = value;
        return true;
    }
    if (option(argument, "type", &value)) {
        const enum dtype types[] = {F32, BF16, F16};
        for (int i = 0; i < 3; i++) {
            if (strcmp(value, dtype_name(types[i])) == 0) {
                b->dtype = types[i];
                return true;
            }
        }
        return false;
    }
    if (option(argument, "model", &value)) {
        for (int i = 0; i < MODELS; i++) {
            if (strcmp(value, models[i].name) == 0) {
                b->model = models[i];
                return true;
            }
        }
        return false;
    }
    if (option(argument, "attention", &value)) {
        b->own_attention = strcmp(value, "own") == 0;
        options->kernels.attention = b->own_attention ? ATTENTION_OWN : ATTENTION_CUDNN;
        return b->own_attention || strcmp(value, "cudnn") == 0;
    }
    if (option(argument, "rotate", &value)) {
        b->rotate_mb = strtol(value, NULL, 10);
        return b->rotate_mb >= 0;
    }
    if (option(argument, "threads", &value))
        return (options->threads = (int)strtol(value, NULL, 10)) >= 1;
    if (option(argument, "batch", &value))
        return (b->batch = strtol(value, NULL, 10)) >= 1;
    return option(argument, "sequence", &value) && (b->sequence = strtol(value, NULL, 10)) >= 1;
}

static void bench_all(struct bench *b)
{
    const struct model *m = &b->model;
    const double layers = (double)m->layers;
    bench_norms(b);
    bench_activation(b, ACTIVATION_GELU, "gelu", 0);
    bench_activation(b, ACTIVATION_SWIGLU, "swiglu", 0);
    bench_activation(b, ACTIVATION_GELU_TANH, "gelu-tanh", layers);
    bench_residual(b, 0.1F, 0);
    bench_residual(b, 0.0F, layers);
    bench_column_sums(b);
    bench_embedding(b);
    bench_rope(b);
    if (b->own_attention) // cuDNN's attention does not implement our dropout
        bench_attention(b, 0.1F, 0);
    bench_attention(b, 0.0F, layers);
    bench_loss(b);
    bench_optimizer(b);
    bench_formats(b);
    const int64_t h = m->hidden, q = m->heads * m->head_dim, k = m->groups * m->head_dim;
    double gemm_ms = bench_gemm(b, q + 2 * k, h, layers) + bench_gemm(b, h, q, layers);
    gemm_ms += bench_gemm(b, m->gates * m->ffn, h, layers) + bench_gemm(b, h, m->ffn, layers) +
               bench_gemm(b, V, h, 1);
    printf("per microbatch: %.0f ms in these ops, %.0f ms in gemm, %.1f %%\n", b->total_ms, gemm_ms,
           100.0 * b->total_ms / gemm_ms);
    if (b->fused != NULL)
        bench_epilogues(b);
}

/* Opens the device with other options. Returns NULL and the reason without cuDNN. */
static struct device *open_other(struct device_options options, enum attention_backend attention,
                                 enum matmul_epilogues epilogues, struct stream **stream)
{
    struct device *device = NULL;
    options.kernels.attention = attention;
    options.kernels.epilogues = epilogues;
    options.nondeterministic = true; // cuDNN's faster engines
    if (device_open(&options, &device) != OK) {
        printf("%s\n", fail_text());
        return NULL;
    }
    MUST(stream_create(device, "other", stream));
    return device;
}

int main(int argc, char **argv)
{
    struct bench b = {.batch = 4, .sequence = 256, .model = models[0], .dtype = F32, .own_attention = true};
    b.rotate_mb = -1;
    struct device_options options = {.name = "cpu", .threads = 2, .kernels.attention = ATTENTION_OWN};
    struct device *cudnn = NULL, *mma = NULL, *fused = NULL;
    for (int i = 1; i < argc; i++) {
        if (!parse(&b, &options, argv[i])) {
            fprintf(stderr,
                    "bench_ops: %s: it takes device=NAME, type=f32|bf16|f16, threads=, batch= and "
                    "sequence= from 1, model=gpt2|gpt3-1.3b|llama3-8b, rotate=MEGABYTES and "
                    "attention=own|cudnn\n",
                    argv[i]);
            return 2;
        }
    }
    bool synchronous = device_traits(options.name)->synchronous;
    b.tokens = b.batch * b.sequence;
    b.size = (double)dtype_bytes(b.dtype);
    b.calls = synchronous ? 1 : 10;
    if (b.rotate_mb < 0)
        b.rotate_mb = synchronous ? 0 : BENCH_ROTATE_MB;
    options.nondeterministic = !b.own_attention; // cuDNN's faster engines
    MUST(device_open(&options, &b.memory.device));
    MUST(stream_create(b.memory.device, "bench", &b.stream));
    b.memory.stream = b.stream;
    b.memory.rotate_bytes = (size_t)b.rotate_mb * 1000000;
    printf("%s, %s, %s, %lld x %lld tokens\n", options.name, dtype_name(b.dtype), b.model.name,
           (long long)b.batch, (long long)b.sequence);
    if (device_traits(options.name)->computes && !device_traits(options.name)->has_host_memory) {
        if (b.own_attention) {
            cudnn = open_other(options, ATTENTION_CUDNN, EPILOGUES_APART, &b.cudnn);
            mma = open_other(options, ATTENTION_OWN_MMA, EPILOGUES_APART, &b.mma);
        }
        fused = open_other(options, ATTENTION_OWN, EPILOGUES_FUSED, &b.fused);
    }
    bench_peak_bandwidth(&b, synchronous);
    bench_all(&b);
    struct stream *streams[] = {b.cudnn, b.mma, b.fused, b.stream};
    struct device *devices[] = {cudnn, mma, fused, b.memory.device};
    for (int i = 0; i < 4; i++) {
        stream_destroy(streams[i]);
        device_close(devices[i]);
    }
    return 0;
}
