// SPDX-License-Identifier: Apache-2.0
/* How an algorithm is chosen, with the emulator's cuBLASLt: of its four, which add with strides 1, 2, 3 and
 * 4, the heuristic names the first and the third is the fastest. */
#include "kernels/cuda/device_cuda.h"
#include "kernels/ops.h"
#include "tests/emulator/include/cuda_runtime_api.h"

#include "base/text.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { M = 5, N = 7, K = 33 };

struct numbers {
    float a[M * K], b[K * N], c[M * N], bias[N];
};

struct place {
    char path[40];
};

static struct place make_place(void)
{
    struct place place = {.path = "/tmp/choose-XXXXXX"};
    int fd = mkstemp(place.path); // an empty file is a beginning
    cr_assert_geq(fd, 0);
    close(fd);
    return place;
}

static void remove_place(const struct place *place)
{
    char lock[60];
    snprintf(lock, sizeof lock, "%s.lock", place->path);
    remove(place->path);
    remove(lock);
}

static void draw(struct numbers *x)
{
    philox_normal(philox_named(3, "a"), 0, 0, M * K, x->a);
    philox_normal(philox_named(3, "b"), 0, 0, K * N, x->b);
    philox_normal(philox_named(3, "c"), 0, 0, M * N, x->c);
    philox_normal(philox_named(3, "bias"), 0, 0, N, x->bias);
}

/* c + a b + bias, as the algorithm with this stride does it. */
static void expect(const struct numbers *x, int stride, float out[M * N])
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

/* Twice on a device that keeps its choices at `algorithms`, the second time with how many waits. */
static struct numbers multiply(const char *algorithms, int *waits)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer buffer = {0};
    struct numbers x;
    setenv("EMULATOR_STREAMS", "late", 1);
    struct device_options options = {.name = "cuda", .threads = 1, .matmul_algorithms = algorithms};
    cr_assert_eq(device_open_with(&device_cuda, &options, &device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof x, &buffer), OK);
    struct numbers *there = buffer.data;
    for (int round = 0; round < 2; round++) {
        draw(&x);
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
    struct numbers x;
    float want[M * N];
    int waits;
    draw(&x);
    expect(&x, stride, want);
    x = multiply(algorithms, &waits);
    cr_expect_eq(memcmp(x.c, want, sizeof want), 0, "%s: not the bits of stride %d", algorithms, stride);
    cr_expect_eq(waits, 0, "what is known is not timed again");
}

Test(gemm_choose, the_heuristic_where_nothing_is_kept)
{
    expect_stride(NULL, 1);
}

/* The trials have not touched c, or the sum would be another. */
Test(gemm_choose, the_fastest_is_kept)
{
    struct place place = make_place();
    struct text first = {0}, second = {0};
    expect_stride(place.path, 3);
    cr_assert_eq(file_read(place.path, &first), OK);
    cr_expect_not_null(strstr(text_chars(&first), "\nemulated GPU 9.0 cublasLt 130100 m 5 n 7 k 33 "), "%s",
                       text_chars(&first));
    expect_stride(place.path, 3);
    cr_assert_eq(file_read(place.path, &second), OK);
    cr_expect_str_eq(text_chars(&first), text_chars(&second));
    text_free(&first);
    text_free(&second);
    remove_place(&place);
}

/* An entry decides, also where it is not the fastest; one that the library refuses does not. */
Test(gemm_choose, what_is_in_the_file)
{
    struct place place = make_place();
    struct text file = {0}, changed = {0};
    expect_stride(place.path, 3);
    cr_assert_eq(file_read(place.path, &file), OK);
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
        cr_assert_eq(file_write_atomic(place.path, text_chars(&changed), changed.length), OK);
        expect_stride(place.path, magic != 0 ? 1 : 2);
        text_free(&changed);
    }
    text_free(&file);
    remove_place(&place);
}
