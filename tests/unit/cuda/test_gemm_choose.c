// SPDX-License-Identifier: Apache-2.0
/* Choice of an algorithm, with the emulated cuBLASLt: it has four, which add with strides 1, 2, 3 and 4; the
 * heuristic prefers the first, and the third is the fastest. */
#include "kernels/cuda/runtime/device_cuda.h"
#include "kernels/ops.h"
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/text.h"
#include "kernels/numbers/narrow.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { M = 5, N = 7, K = 33 };

struct operands {
    float a[M * K], b[K * N], c[M * N];
    _Alignas(16) float bias[N]; // unaligned, it would not use the library
};

struct cache_file {
    char path[40];
};

static struct cache_file make_cache_file(void)
{
    struct cache_file cache = {.path = "/tmp/choose-XXXXXX"};
    int fd = mkstemp(cache.path); // an empty file is valid
    cr_assert_geq(fd, 0);
    close(fd);
    return cache;
}

static void remove_cache_file(const struct cache_file *cache)
{
    char lock[60];
    snprintf(lock, sizeof lock, "%s.lock", cache->path);
    remove(cache->path);
    remove(lock);
}

static void random_operands(struct operands *x)
{
    philox_normal(philox_named(3, "a"), 0, 0, M * K, x->a);
    philox_normal(philox_named(3, "b"), 0, 0, K * N, x->b);
    philox_normal(philox_named(3, "c"), 0, 0, M * N, x->c);
    philox_normal(philox_named(3, "bias"), 0, 0, N, x->bias);
}

/* c + a b + bias, as computed by the algorithm with this stride. */
static void expect(const struct operands *x, int stride, float out[M * N])
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0.0F;
            for (int first = 0; first < stride; first++)
                for (int k = first; k < K; k += stride)
                    sum = fmaf(x->b[k * N + j], x->a[i * K + k], sum);
            out[i * N + j] = sum + x->c[i * N + j] + x->bias[j];
        }
}

/* Twice on a device with its cache at `algorithms`; *waits counts those of the second. */
static struct operands multiply(const char *algorithms, int *waits)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer buffer = {0};
    struct operands x;
    setenv("EMULATOR_STREAMS", "late", 1);
    struct device_options options = {.name = "cuda", .threads = 1, .kernels.matmul_algorithms = algorithms};
    cr_assert_eq(device_open_with(&device_cuda, &options, &device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof x, &buffer), OK);
    struct operands *there = buffer.data;
    for (int round = 0; round < 2; round++) {
        random_operands(&x);
        cr_assert_eq(copy_to_device(stream, there, &x, sizeof x), OK);
        cr_assert_eq(stream_sync(stream), OK);
        int before = emulator_calls().syncs;
        cr_assert_eq(gemm(stream, (struct gemm){.a = tensor_2d(there->a, F32, M, K),
                                                .b = tensor_2d(there->b, F32, K, N),
                                                .c = tensor_2d(there->c, F32, M, N),
                                                .bias = tensor_1d(there->bias, F32, N),
                                                .accumulate = true}),
                     OK, "%s", fail_text());
        *waits = emulator_calls().syncs - before;
        cr_assert_eq(copy_to_host(stream, &x, there, sizeof x), OK);
        cr_assert_eq(stream_sync(stream), OK);
    }
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
    return x;
}

static void expect_stride(const char *algorithms, int stride)
{
    struct operands x;
    float want[M * N];
    int waits;
    random_operands(&x);
    expect(&x, stride, want);
    x = multiply(algorithms, &waits);
    cr_expect_eq(memcmp(x.c, want, sizeof want), 0, "%s: not the bits of stride %d", algorithms, stride);
    cr_expect_eq(waits, 0, "a cached choice is not timed again");
}

Test(gemm_choose, uses_the_heuristic_without_a_file)
{
    expect_stride(NULL, 1);
}

/* The trials must not modify c, or the sum would differ. */
Test(gemm_choose, the_fastest_is_cached)
{
    struct cache_file cache = make_cache_file();
    struct text first = {0}, second = {0};
    expect_stride(cache.path, 3);
    cr_assert_eq(file_read(cache.path, &first), OK);
    cr_expect_not_null(strstr(text_chars(&first), "\nemulated GPU 9.0 cublasLt 130100 m 5 n 7 k 33 "), "%s",
                       text_chars(&first));
    expect_stride(cache.path, 3);
    cr_assert_eq(file_read(cache.path, &second), OK);
    cr_expect_str_eq(text_chars(&first), text_chars(&second));
    text_free(&first);
    text_free(&second);
    remove_cache_file(&cache);
}

/* An entry decides, even if it is not the fastest; an entry that the library rejects is ignored. */
Test(gemm_choose, file_contents)
{
    struct cache_file cache = make_cache_file();
    struct text file = {0}, changed = {0};
    expect_stride(cache.path, 3);
    cr_assert_eq(file_read(cache.path, &file), OK);
    for (int magic = 0; magic < 2; magic++) {
        const char *entry = strchr(text_chars(&file), '\n') + 1, *words = strchr(entry, '|');
        uint64_t sum = 0xcbf29ce484222325U;
        text_add(&changed, "%s", text_chars(&file));
        size_t begin = (size_t)(entry - text_chars(&file)), at = (size_t)(words - text_chars(&file)) + 1;
        changed.chars[at + (magic != 0 ? 15 : 31)] = magic != 0 ? '0' : '1'; // order 1: stride 2
        for (size_t i = begin; i < at + 128; i++)
            sum = (sum ^ (unsigned char)changed.chars[i]) * 0x100000001b3U;
        changed.length = at + 128;
        text_add(&changed, "|%016llx\n", (unsigned long long)sum);
        cr_assert_eq(file_write_atomic(cache.path, text_chars(&changed), changed.length), OK);
        expect_stride(cache.path, magic != 0 ? 1 : 2);
        text_free(&changed);
    }
    text_free(&file);
    remove_cache_file(&cache);
}

/* ---- epilogues: fused or separate ---- */

enum { ROWS = 16, COLUMNS = 8, SUMS = 24 };

struct layer {
    float x[ROWS * SUMS], weight[SUMS * COLUMNS], before[ROWS * COLUMNS], after[ROWS * COLUMNS];
    float dy[ROWS * SUMS], dx[ROWS * COLUMNS], gradient[SUMS * COLUMNS], sum[SUMS];
};

/* A matmul with GELU, its gradient and a bias gradient; returns how often the host waits for a choice. */
static int run_layer(struct stream *stream, struct layer *there)
{
    int before = emulator_calls().syncs;
    struct tensor x = tensor_2d(there->x, F32, ROWS, SUMS), dy = tensor_2d(there->dy, F32, ROWS, SUMS);
    struct tensor pre = tensor_2d(there->before, F32, ROWS, COLUMNS);
    struct gemm forward = {.a = x, .b = tensor_2d(there->weight, F32, SUMS, COLUMNS), .c = pre};
    struct gemm backward = forward, gradient = {.transpose_a = true, .accumulate = true};
    forward.epilogue.after = tensor_2d(there->after, F32, ROWS, COLUMNS);
    backward.c = tensor_2d(there->dx, F32, ROWS, COLUMNS);
    backward.epilogue.before = pre;
    forward.epilogue.activation = backward.epilogue.activation = ACTIVATION_GELU_TANH;
    gradient.a = dy;
    gradient.b = pre;
    gradient.c = tensor_2d(there->gradient, F32, SUMS, COLUMNS);
    gradient.epilogue.bias_gradient = tensor_1d(there->sum, F32, SUMS);
    cr_assert_eq(gemm(stream, forward), OK, "%s", fail_text());
    cr_assert_eq(gemm(stream, backward), OK, "%s", fail_text());
    cr_assert_eq(gemm(stream, gradient), OK, "%s", fail_text());
    return emulator_calls().syncs - before;
}

/* Twice on one device, with identical bits: the trials of the first have no side effects. *first and *second:
 * number of host waits. */
static struct layer train(enum matmul_epilogues epilogues, const char *algorithms, int *first, int *second)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer buffer = {0};
    struct layer x, before;
    struct device_options options = {.name = "cuda",
                                     .threads = 1,
                                     .kernels.matmul_algorithms = algorithms,
                                     .kernels.epilogues = epilogues};
    setenv("EMULATOR_STREAMS", "late", 1);
    cr_assert_eq(device_open_with(&device_cuda, &options, &device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof x, &buffer), OK);
    int *const waits[] = {first, second};
    struct text choices = {0};
    for (int round = 0; round < 2; round++) {
        philox_normal(philox_named(3, "layer"), 0, 0, sizeof x / sizeof(float), (float *)&x);
        cr_assert_eq(copy_to_device(stream, buffer.data, &x, sizeof x), OK);
        cr_assert_eq(stream_sync(stream), OK);
        *waits[round] = run_layer(stream, buffer.data);
        cr_assert_eq(copy_to_host(stream, &x, buffer.data, sizeof x), OK);
        cr_assert_eq(stream_sync(stream), OK);
        cr_expect(round == 0 || memcmp(&x, &before, sizeof x) == 0, "epilogues %d", epilogues);
        before = x;
    }
    device_choices(device, &choices);
    const char *expected[] = {[EPILOGUES_FUSED] = "3 shapes fused in cuBLASLt, 0 as separate kernels",
                              [EPILOGUES_AUTO] = "2 shapes fused in cuBLASLt, 1 as separate kernels"};
    cr_expect(epilogues == EPILOGUES_APART || strstr(text_chars(&choices), expected[epilogues]) != NULL, "%s",
              text_chars(&choices));
    text_free(&choices);
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
    return x;
}

#define SAME(field) (memcmp(a.field, b.field, sizeof a.field) == 0)

/* In the emulated cuBLASLt, GELU takes no time, and its gradient is slow; both choices are cached, and no
 * trial has accumulated into a gradient. */
Test(gemm_choose, keeps_the_faster_of_fused_and_separate)
{
    struct cache_file cache = make_cache_file();
    struct text file = {0}, later = {0};
    int first, second;
    const struct layer apart = train(EPILOGUES_APART, cache.path, &first, &second);
    const struct layer fused = train(EPILOGUES_FUSED, cache.path, &first, &second);
    const struct layer a = train(EPILOGUES_AUTO, cache.path, &first, &second);
    cr_expect_eq(second, 0, "a cached choice is not timed again");
    cr_assert_eq(file_read(cache.path, &file), OK);
    const char *chars = text_chars(&file);
    int answers = 0;
    for (const char *line = strstr(chars, "\napart? "); line != NULL; line = strstr(line + 1, "\napart? "))
        answers++;
    cr_expect_eq(answers, 3, "%s", chars);
    for (int again = 0; again < 2; again++) {
        const struct layer b = again == 0 ? fused : apart;
        cr_expect_eq(SAME(after), again == 0);
        cr_expect_eq(SAME(dx), again == 1);
        cr_expect_eq(SAME(sum), again == 0);
        cr_expect(SAME(before) && SAME(gradient));
    }
    const struct layer b = train(EPILOGUES_AUTO, cache.path, &first, &second);
    cr_expect_eq(memcmp(&a, &b, sizeof a), 0);
    cr_assert_eq(file_read(cache.path, &later), OK);
    cr_expect_str_eq(chars, text_chars(&later));
    text_free(&file);
    text_free(&later);
    remove_cache_file(&cache);
}

/* ---- matmuls without an algorithm ---- */

enum { TOKENS = 8, VOCABULARY = 257, WIDTH = 16 }; // a row of logits is an odd number of 2-byte elements

struct head {
    uint16_t x[TOKENS * WIDTH], weight[VOCABULARY * WIDTH], logits[TOKENS * VOCABULARY],
        after[TOKENS * VOCABULARY], dx[TOKENS * WIDTH];
};

static void random_bf16(const char *name, int64_t count, uint16_t *out)
{
    float x[VOCABULARY * WIDTH];
    philox_normal(philox_named(3, name), 0, 0, count, x);
    narrow_floats(BF16, x, out, count);
}

/* The logits with GELU as an epilogue, then the gradient of x; twice, with the same bits. */
static struct head multiply_head(enum matmul_epilogues epilogues, struct text *choices)
{
    struct device_options options = {.name = "cuda", .threads = 1, .kernels.epilogues = epilogues};
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer buffer = {0};
    struct head h, first;
    cr_assert_eq(device_open_with(&device_cuda, &options, &device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof h, &buffer), OK);
    struct head *there = buffer.data;
    struct tensor x = tensor_2d(there->x, BF16, TOKENS, WIDTH),
                  logits = tensor_2d(there->logits, BF16, TOKENS, VOCABULARY),
                  weight = tensor_2d(there->weight, BF16, VOCABULARY, WIDTH);
    for (int round = 0; round < 2; round++) {
        memset(&h, 0xff, sizeof h); // NaN
        random_bf16("x", TOKENS * WIDTH, h.x);
        random_bf16("weight", VOCABULARY * WIDTH, h.weight);
        cr_assert_eq(copy_to_device(stream, there, &h, sizeof h), OK);
        struct gemm forward = {.a = x, .b = weight, .c = logits, .transpose_b = true};
        if (epilogues != EPILOGUES_APART)
            forward.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH,
                                                 .after = tensor_2d(there->after, BF16, TOKENS, VOCABULARY)};
        cr_assert_eq(gemm(stream, forward), OK, "%s", fail_text());
        cr_assert_eq(
            gemm(stream,
                 (struct gemm){.a = logits, .b = weight, .c = tensor_2d(there->dx, BF16, TOKENS, WIDTH)}),
            OK, "%s", fail_text());
        cr_assert_eq(copy_to_host(stream, &h, there, sizeof h), OK);
        cr_assert_eq(stream_sync(stream), OK);
        cr_expect(round == 0 || memcmp(&h, &first, sizeof h) == 0, "other bits in the second run");
        first = h;
    }
    device_choices(device, choices);
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
    return h;
}

/* sum a[k step_a] b[k step_b], within fp32 summation and one rounding of the result to bf16. */
static void expect_dot(uint16_t got, const uint16_t *a, int step_a, const uint16_t *b, int step_b, int count)
{
    double want = 0.0, size = 0.0;
    for (int k = 0; k < count; k++) {
        const double term = (double)float_of_bf16(a[k * step_a]) * (double)float_of_bf16(b[k * step_b]);
        want += term;
        size += fabs(term);
    }
    const double bound = (fabs(want) * 0x1p-8 + count * 0x1p-24 * size) * 1.01;
    cr_expect(fabs((double)float_of_bf16(got) - want) <= bound, "%g, not %g", (double)float_of_bf16(got),
              want);
}

/* Instead of an error in the middle of a run: our own kernel, reported once per shape. */
Test(gemm_choose, a_shape_without_an_algorithm_runs_on_our_own_kernel)
{
    const enum matmul_epilogues all[] = {EPILOGUES_APART, EPILOGUES_FUSED};
    setenv("EMULATOR_CUBLASLT_ALIGNMENT", "16", 1);
    for (int i = 0; i < 2; i++) {
        struct text choices = {0};
        const struct head h = multiply_head(all[i], &choices);
        for (int t = 0; t < TOKENS; t++) {
            for (int v = 0; v < VOCABULARY; v++)
                expect_dot(h.logits[t * VOCABULARY + v], h.x + t * WIDTH, 1, h.weight + v * WIDTH, 1, WIDTH);
            for (int j = 0; j < WIDTH; j++)
                expect_dot(h.dx[t * WIDTH + j], h.logits + t * VOCABULARY, 1, h.weight + j, WIDTH,
                           VOCABULARY);
        }
        const char *reported =
            strstr(text_chars(&choices), "matmul: cuBLASLt has no algorithm for 2 shapes, ");
        cr_assert_not_null(reported, "%s", text_chars(&choices));
        cr_expect_not_null(strstr(reported, "\n  our own: emulated GPU 9.0 cublasLt 130100 m 8 n 257 k 16 "));
        cr_expect_not_null(strstr(reported, "\n  our own: emulated GPU 9.0 cublasLt 130100 m 8 n 16 k 257 "));
        text_free(&choices);
    }
    unsetenv("EMULATOR_CUBLASLT_ALIGNMENT");
    struct text choices = {0};
    multiply_head(EPILOGUES_APART, &choices);
    cr_expect_str_eq(text_chars(&choices), "");
    text_free(&choices);
}
