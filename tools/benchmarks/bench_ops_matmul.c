// SPDX-License-Identifier: Apache-2.0
/* The ops of bench_ops that tensor cores compute: attention, matrix multiplications, and their epilogues. */
#include "tools/benchmarks/bench_ops.h"

#include <stdio.h>

/* Forward and backward passes. */
static void attention_lines(struct bench *b, struct attention_backward n, double matmul_flops, double times,
                            double seconds[2])
{
    seconds[0] = BEST_S(b, n, attention_forward(b->stream, n.forward));
    bench_report(b, "  attention_forward", seconds[0], 2 * matmul_flops, "GFLOP/s", times);
    seconds[1] = BEST_S(b, n, attention_backward(b->stream, n));
    bench_report(b, "  attention_backward", seconds[1], 5 * matmul_flops, "GFLOP/s", times);
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

void bench_attention(struct bench *b, float probability, double times)
{
    const struct model *m = &b->model;
    int64_t q = m->heads * m->head_dim, k = m->groups * m->head_dim, columns = q + 2 * k;
    struct attention_forward f = {.batch = b->batch, .sequence = b->sequence, .head_dim = m->head_dim};
    struct tensor qkv = bench_matrix(b, b->tokens, columns), gradient = bench_matrix(b, b->tokens, columns);
    f.scale = 1.0F / sqrtf((float)m->head_dim);
    f.q = tensor_columns(qkv, 0, q), f.k = tensor_columns(qkv, q, q + k),
    f.v = tensor_columns(qkv, q + k, columns);
    f.out = bench_matrix(b, b->tokens, q), f.lse = bench_matrix_of(b, F32, m->heads, b->tokens);
    f.dropout = (struct dropout){.probability = probability, .generator = philox_named(1, "a")};
    f.dropout.columns = b->sequence;
    f.dropout.sample = bench_samples(b);
    struct attention_backward n = {.dout = bench_matrix(b, b->tokens, q),
                                   .dq = tensor_columns(gradient, 0, q)};
    n.dk = tensor_columns(gradient, q, q + k), n.dv = tensor_columns(gradient, q + k, columns);
    double matmul_flops =
        bench_elements(b->tokens, q) * (double)(b->sequence + 1); // pairs of positions within the causal mask
    printf("dropout %g:\n", (double)probability);
    double own[2];
    n.forward = f;
    attention_lines(b, n, matmul_flops, times, own);
    compare_attention(b, n, matmul_flops, own);
    bench_release(&b->memory);
}

/* Prints one multiplication: with the heuristic's algorithm, and with the fastest of several. */
static void gemm_line(const struct bench *b, const char *name, int64_t n, int64_t k, const double seconds[2],
                      double flops)
{
    printf("gemm %6lld x %5lld, %-16s %9.3f ms %8.1f GFLOP/s", (long long)n, (long long)k, name,
           seconds[0] * 1e3, flops / seconds[0] * 1e-9);
    if (b->tuned != NULL)
        printf(", best of 8 %9.3f ms %8.1f GFLOP/s", seconds[1] * 1e3, flops / seconds[1] * 1e-9);
    printf("\n");
}

/* Seconds per call, on both devices. */
static void time_gemm(struct bench *b, struct gemm args, double seconds[2])
{
    struct bench other = *b;
    other.stream = b->tuned;
    seconds[0] = BEST_S(b, args, gemm(b->stream, args));
    seconds[1] = b->tuned != NULL ? BEST_S(&other, args, gemm(other.stream, args)) : seconds[0];
}

double bench_gemm(struct bench *b, int64_t n, int64_t k, double times)
{
    struct tensor x = bench_matrix(b, b->tokens, k), w = bench_matrix(b, n, k),
                  y = bench_matrix(b, b->tokens, n), dw = bench_matrix_of(b, F32, n, k);
    const struct {
        const char *name; // the left and the right matrix: normal, or transposed
        struct gemm args;
    } all[] = {
        {"NT y = x w^T", {.a = x, .b = w, .c = y, .transpose_b = true}},
        {"NN dx = dy w", {.a = y, .b = w, .c = x}},
        {"TN dw += dy^T x", {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true}},
    };
    const double flops = 2.0 * bench_elements(b->tokens, n) * (double)k;
    double sum[2] = {0.0, 0.0};
    for (int i = 0; i < 3; i++) {
        double seconds[2];
        time_gemm(b, all[i].args, seconds);
        gemm_line(b, all[i].name, n, k, seconds, flops);
        sum[0] += seconds[0];
        sum[1] += seconds[1];
    }
    gemm_line(b, "all three", n, k, sum, 3.0 * flops);
    printf("  x %-6.4g %9.2f ms", times, times * sum[0] * 1e3);
    if (b->tuned != NULL)
        printf(", best of 8 %9.2f ms, %.1f %% of the time", times * sum[1] * 1e3, 100.0 * sum[1] / sum[0]);
    printf("\n");
    bench_release(&b->memory);
    return times * sum[0] * 1e3;
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

void bench_epilogues(struct bench *b)
{
    const int64_t h = b->model.hidden, ffn = b->model.ffn;
    const struct tensor x = bench_matrix(b, b->tokens, h), before = bench_matrix(b, b->tokens, ffn),
                        after = bench_matrix(b, b->tokens, ffn);
    struct gemm args = {.a = x, .b = bench_matrix(b, ffn, h), .transpose_b = true, .c = before};
    args.bias = bench_vector(b, ffn);
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH, .after = after};
    compare_epilogue(b, "fc1, then gelu", args);
    args = (struct gemm){.a = x, .b = bench_matrix(b, h, ffn), .c = after};
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH, .before = before};
    compare_epilogue(b, "fc2's dx, then gelu's", args);
    args = (struct gemm){.a = after, .b = x, .c = bench_matrix_of(b, F32, ffn, h)};
    args.transpose_a = args.accumulate = true;
    args.epilogue.bias_gradient = bench_sums(b, ffn);
    compare_epilogue(b, "fc1's dw, and its bias's", args);
    bench_release(&b->memory);
}
