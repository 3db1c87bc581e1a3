// SPDX-License-Identifier: Apache-2.0
/* How fast the ops run at GPT-2 124M's sizes, beside what memory allows:
 *
 *     bench_ops [THREADS [BATCH SEQUENCE]]          (2, 4, 256)
 *
 * Each line: milliseconds (the best of several runs), the rate, and what a microbatch of the whole model
 * spends in the op, with the optimizer's share at 8 microbatches a step. A line's buffers are those of one
 * layer, so, as in training, what fits the caches is read from there and can beat the triad.
 *
 * The last lines set the sum beside the model's matrix multiplications. */
#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    H = 768,
    HEADS = 12,
    LAYERS = 12,
    V = 50257,
    V_PADDED = 50304,
    PARAMETERS = 124439808,
    MICROBATCHES = 8
};
enum { RUNS = 7, BUFFERS_MAX = 24 };

struct bench {
    struct device *device;
    struct stream *stream;
    int64_t batch, sequence, tokens;
    struct buffer buffer[BUFFERS_MAX];
    int buffers;
    double total_ms; // of a microbatch
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(struct bench *b, int64_t bytes)
{
    CHECK(b->buffers < BUFFERS_MAX);
    struct buffer *buffer = &b->buffer[b->buffers++];
    MUST(buffer_alloc(b->device, PART_WORKSPACE, (size_t)bytes, buffer));
    return buffer->data;
}

/* Of everyday size and either sign. */
static struct tensor matrix(struct bench *b, int64_t rows, int64_t columns)
{
    float *x = memory(b, rows * columns * (int64_t)sizeof *x);
    for (int64_t i = 0; i < rows * columns; i++)
        x[i] = 0.02F * (float)((uint32_t)((uint64_t)i * 2654435761U >> 9) % 127U) - 1.26F;
    return tensor_2d(x, F32, rows, columns);
}

static struct tensor vector(struct bench *b, int64_t count)
{
    return tensor_1d(matrix(b, 1, count).data, F32, count);
}

static struct tensor vector_of_ones(struct bench *b, int64_t count)
{
    struct tensor t = vector(b, count);
    for (int64_t i = 0; i < count; i++)
        ((float *)t.data)[i] = 1.0F;
    return t;
}

static int32_t *numbers(struct bench *b, int64_t below)
{
    int32_t *n = memory(b, b->tokens * (int64_t)sizeof *n);
    for (int64_t t = 0; t < b->tokens; t++)
        n[t] = (int32_t)(t * 7919 % below);
    return n;
}

static void release(struct bench *b)
{
    while (b->buffers > 0)
        buffer_free(&b->buffer[--b->buffers]);
}

static double elements(int64_t rows, int64_t columns)
{
    return (double)rows * (double)columns;
}

/* One line: what the op moves (bytes) or computes (flops), and how often a microbatch runs it. */
static double report(struct bench *b, const char *name, double s, double amount, const char *unit,
                     double times)
{
    b->total_ms += times * s * 1e3;
    printf("%-32s %9.3f ms %8.1f %-8s x %-6.4g %9.2f ms\n", name, s * 1e3, amount / s * 1e-9, unit, times,
           times * s * 1e3);
    return s;
}

#define BEST_S(b, call)                            \
    ({                                             \
        double best_ = INFINITY;                   \
        for (int run_ = 0; run_ < RUNS; run_++) {  \
            double begin_ = now_s();               \
            MUST(call);                            \
            MUST(stream_sync((b)->stream));        \
            best_ = fmin(best_, now_s() - begin_); \
        }                                          \
        best_;                                     \
    })

static void bench_norms(struct bench *b)
{
    int64_t t = b->tokens;
    struct norm_forward f = {.kind = NORM_LAYER, .epsilon = 1e-5F};
    f.x = matrix(b, t, H), f.y = matrix(b, t, H), f.weight = vector(b, H), f.bias = vector(b, H);
    f.mean = vector(b, t), f.rstd = vector(b, t);
    report(b, "norm_forward", BEST_S(b, norm_forward(b->stream, f)), 8.0 * elements(t, H), "GB/s",
           2 * LAYERS + 1);
    struct norm_backward n = {
        .kind = NORM_LAYER, .x = f.x, .weight = f.weight, .mean = f.mean, .rstd = f.rstd};
    n.dy = f.y, n.dx = matrix(b, t, H), n.dweight = vector(b, H), n.dbias = vector(b, H);
    report(b, "norm_backward", BEST_S(b, norm_backward(b->stream, n)), 16.0 * elements(t, H), "GB/s",
           2 * LAYERS + 1);
    release(b);
}

static void bench_activation(struct bench *b, enum activation_kind kind, const char *name, double times)
{
    int64_t t = b->tokens, width = kind == ACTIVATION_SWIGLU ? 8 * H : 4 * H;
    struct activation_forward f = {.kind = kind, .x = matrix(b, t, width), .y = matrix(b, t, 4 * H)};
    struct activation_backward n = {.kind = kind, .x = f.x, .dy = f.y, .dx = matrix(b, t, width)};
    printf("%s:\n", name);
    report(b, "  activation_forward", BEST_S(b, activation_forward(b->stream, f)),
           4.0 * elements(t, (width + 4 * H)), "GB/s", times);
    report(b, "  activation_backward", BEST_S(b, activation_backward(b->stream, n)),
           4.0 * elements(t, (2 * width + 4 * H)), "GB/s", times);
    release(b);
}

static void bench_residual(struct bench *b, float probability, double times)
{
    int64_t t = b->tokens;
    struct dropout d = {.probability = probability, .generator = philox_named(1, "bench"), .columns = H};
    int64_t *sample = memory(b, t * (int64_t)sizeof *sample);
    for (int64_t i = 0; i < t; i++)
        sample[i] = i / b->sequence;
    d.sample = sample;
    d.place = numbers(b, b->sequence);
    struct residual_forward f = {
        .x = matrix(b, t, H), .bias = vector(b, H), .residual = matrix(b, t, H), .dropout = d};
    f.out = f.residual;
    struct residual_backward n = {.dout = f.x, .dx = matrix(b, t, H), .dropout = d};
    printf("dropout %g:\n", (double)probability);
    report(b, "  residual_forward", BEST_S(b, residual_forward(b->stream, f)), 12.0 * elements(t, H), "GB/s",
           times);
    report(b, "  residual_backward", BEST_S(b, residual_backward(b->stream, n)), 8.0 * elements(t, H), "GB/s",
           times);
    release(b);
}

static void bench_column_sums(struct bench *b)
{
    for (int64_t n = H; n <= 4 * H; n *= n == H ? 3 : 2) { // 768, 2304; 4608 ends it
        struct column_sum c = {.in = matrix(b, b->tokens, n), .out = vector(b, n)};
        report(b, "column_sum", BEST_S(b, column_sum(b->stream, c)), 4.0 * elements(b->tokens, n), "GB/s",
               n == H ? 2 * LAYERS : LAYERS * 7.0 / 3.0); // widths 768, 768, 2304, 3072 in a layer
        release(b);
    }
}

static void bench_embedding(struct bench *b)
{
    struct embedding_forward f = {.table = matrix(b, V, H), .id = numbers(b, V), .rows = V};
    f.out = matrix(b, b->tokens, H);
    report(b, "embedding_forward", BEST_S(b, embedding_forward(b->stream, f)), 8.0 * elements(b->tokens, H),
           "GB/s", 2);
    struct embedding_backward n = {.id = f.id, .rows = V, .dout = f.out, .dtable = f.table};
    report(b, "embedding_backward", BEST_S(b, embedding_backward(b->stream, n)),
           12.0 * elements(b->tokens, H), "GB/s", 2);
    release(b);
}

static void bench_rope(struct bench *b)
{
    struct rope r = {
        .x = matrix(b, b->tokens, H), .position = numbers(b, b->sequence), .head_dim = 64, .base = 1e4};
    report(b, "rope", BEST_S(b, rope(b->stream, r)), 8.0 * elements(b->tokens, H), "GB/s", 0);
    release(b);
}

static void bench_attention(struct bench *b, float probability, double times)
{
    struct attention_forward f = {
        .batch = b->batch, .sequence = b->sequence, .head_dim = 64, .scale = 0.125F};
    struct tensor qkv = matrix(b, b->tokens, 3 * H), gradient = matrix(b, b->tokens, 3 * H);
    f.q = tensor_columns(qkv, 0, H), f.k = tensor_columns(qkv, H, 2 * H),
    f.v = tensor_columns(qkv, 2 * H, 3 * H);
    f.out = matrix(b, b->tokens, H), f.lse = matrix(b, HEADS, b->tokens);
    f.dropout = (struct dropout){.probability = probability, .generator = philox_named(1, "a")};
    f.dropout.columns = b->sequence;
    f.dropout.sample = memory(b, b->tokens * (int64_t)sizeof(int64_t));
    for (int64_t i = 0; i < b->tokens; i++)
        ((int64_t *)f.dropout.sample)[i] = i / b->sequence;
    struct attention_backward n = {.dout = matrix(b, b->tokens, H), .dq = tensor_columns(gradient, 0, H)};
    n.dk = tensor_columns(gradient, H, 2 * H), n.dv = tensor_columns(gradient, 2 * H, 3 * H);
    double product_flops =
        elements(b->tokens, H) * (double)(b->sequence + 1); // the pairs that see each other
    printf("dropout %g:\n", (double)probability);
    double s = BEST_S(b, attention_forward(b->stream, f));
    n.forward = f;
    report(b, "  attention_forward", s, 2 * product_flops, "GFLOP/s", times);
    report(b, "  attention_backward", BEST_S(b, attention_backward(b->stream, n)), 5 * product_flops,
           "GFLOP/s", times);
    release(b);
}

static void bench_loss(struct bench *b)
{
    int64_t t = b->tokens;
    struct tensor logits = matrix(b, t, V_PADDED), max = vector(b, t), sum = vector(b, t),
                  target = vector(b, t);
    int32_t *label = numbers(b, V);
    struct loss_max m = {.logits = logits, .columns = V, .max = max};
    struct loss_sum s = {
        .logits = logits, .max = max, .label = label, .columns = V, .sum = sum, .target = target};
    struct loss_backward n = {.logits = logits, .max = max, .sum = sum, .label = label, .columns = V};
    n.mask = vector_of_ones(b, t).data;
    report(b, "loss_max", BEST_S(b, loss_max(b->stream, m)), 4.0 * elements(t, V), "GB/s", 1);
    report(b, "loss_sum", BEST_S(b, loss_sum(b->stream, s)), 4.0 * elements(t, V), "GB/s", 1);
    report(b, "loss_backward", BEST_S(b, loss_backward(b->stream, n)), 8.0 * elements(t, V), "GB/s", 1);
    release(b);
}

static void bench_optimizer(struct bench *b)
{
    struct adamw a = {
        .weight = vector(b, PARAMETERS / 4), .gradient = vector(b, PARAMETERS / 4), .decay = true};
    a.m = vector(b, PARAMETERS / 4), a.v = vector_of_ones(b, PARAMETERS / 4);
    struct adamw_hyper *hyper = memory(b, sizeof *hyper);
    *hyper = (struct adamw_hyper){1e-4F, 0.9F, 0.95F, 1e-8F, 0.5F, 0.5F, 1e-3F, 0.1F};
    a.hyper = hyper;
    report(b, "adamw, a quarter", BEST_S(b, adamw(b->stream, a)), 7.0 * PARAMETERS, "GB/s",
           4.0 / MICROBATCHES);
    int64_t blocks = squares_blocks(a.gradient);
    struct squares s = {.x = a.gradient, .out = tensor_1d(memory(b, blocks * 8), F64, blocks)};
    report(b, "squares, a quarter", BEST_S(b, squares(b->stream, s)), 1.0 * PARAMETERS, "GB/s",
           4.0 / MICROBATCHES);
    release(b);
}

/* The ceiling: an add over memory that no cache holds. */
static void bench_triad(struct bench *b)
{
    struct add a = {.in = vector(b, 64 << 20), .out = vector(b, 64 << 20)};
    report(b, "add, 512 MB: the ceiling", BEST_S(b, add(b->stream, a)), 12.0 * (64 << 20), "GB/s", 0);
    release(b);
}

/* y = x w^T, dx = dy w, dw += dy^T x, and how long the model's multiplications of this shape take. */
static double bench_gemm(struct bench *b, int64_t n, int64_t k, double times)
{
    struct tensor x = matrix(b, b->tokens, k), w = matrix(b, n, k), y = matrix(b, b->tokens, n);
    double s = BEST_S(b, gemm(b->stream, (struct gemm){.a = x, .b = w, .c = y, .transpose_b = true}));
    s += BEST_S(b, gemm(b->stream, (struct gemm){.a = y, .b = w, .c = x}));
    s += BEST_S(
        b, gemm(b->stream, (struct gemm){.a = y, .b = x, .c = w, .transpose_a = true, .accumulate = true}));
    printf("gemm %6lld x %4lld, all three     %9.3f ms %8.1f GFLOP/s  x %-6.4g %9.2f ms\n", (long long)n,
           (long long)k, s * 1e3, 6.0 * elements(b->tokens, n) * (double)k / s * 1e-9, times,
           times * s * 1e3);
    release(b);
    return times * s * 1e3;
}

int main(int argc, char **argv)
{
    struct bench b = {.batch = 4, .sequence = 256};
    struct device_options options = {.name = "cpu", .threads = 2};
    if (argc > 1)
        options.threads = (int)strtol(argv[1], NULL, 10);
    if (argc > 3) {
        b.batch = strtol(argv[2], NULL, 10);
        b.sequence = strtol(argv[3], NULL, 10);
    }
    if (options.threads < 1 || b.batch < 1 || b.sequence < 1) {
        fprintf(stderr, "bench_ops [THREADS [BATCH SEQUENCE]]: numbers from 1\n");
        return 2;
    }
    b.tokens = b.batch * b.sequence;
    MUST(device_open(&options, &b.device));
    MUST(stream_create(b.device, "bench", &b.stream));
    bench_triad(&b);
    bench_norms(&b);
    bench_activation(&b, ACTIVATION_GELU, "gelu", 0);
    bench_activation(&b, ACTIVATION_SWIGLU, "swiglu", 0);
    bench_activation(&b, ACTIVATION_GELU_TANH, "gelu-tanh", LAYERS);
    bench_residual(&b, 0.1F, 0);
    bench_residual(&b, 0.0F, 2 * LAYERS);
    bench_column_sums(&b);
    bench_embedding(&b);
    bench_rope(&b);
    bench_attention(&b, 0.1F, 0);
    bench_attention(&b, 0.0F, LAYERS);
    bench_loss(&b);
    bench_optimizer(&b);
    double gemm_ms = bench_gemm(&b, 3 * H, H, LAYERS) + bench_gemm(&b, H, H, LAYERS);
    gemm_ms += bench_gemm(&b, 4 * H, H, LAYERS) + bench_gemm(&b, H, 4 * H, LAYERS) + bench_gemm(&b, V, H, 1);
    printf("a microbatch: %.0f ms of these ops beside %.0f ms of gemm, %.1f %%\n", b.total_ms, gemm_ms,
           100.0 * b.total_ms / gemm_ms);
    stream_destroy(b.stream);
    device_close(b.device);
    return 0;
}
