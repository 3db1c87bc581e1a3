// SPDX-License-Identifier: Apache-2.0
/* gemm against a matmul in double precision. The bound is derived: K products and K sums in fp32, in any
 * order, have an error of at most (K + 2) eps times the sum of the absolute values, to first order; the
 * accumulated c and the bias are two more terms. */
#include "kernels/ops.h"
#include "tests/support/mirror.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct matmul_case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate, bias;
    int64_t extra_a, extra_b, extra_c; // added to the row strides
    int64_t offset;                    // of every operand, in elements: other alignments
};

/* A gemm with its operands in host memory, which is device memory on a CPU. */
struct trial {
    struct matmul_case what;
    float *a, *b, *c, *before, *bias;
    int64_t c_elements;
    struct gemm args;
};

static float *draw(int64_t count, const char *name)
{
    float *x = aligned_alloc(64, (size_t)(count + 32) / 16 * 64);
    philox_normal(philox_named(7, name), 0, 0, count, x);
    return x;
}

static struct tensor view(float *data, int64_t rows, int64_t columns, int64_t extra)
{
    struct tensor t = tensor_2d(data, F32, rows, columns);
    t.stride[0] += extra;
    return t;
}

static struct trial trial_of(struct matmul_case p)
{
    struct trial t = {.what = p};
    int64_t a_rows = p.transpose_a ? p.k : p.m, a_columns = p.transpose_a ? p.m : p.k;
    int64_t b_rows = p.transpose_b ? p.n : p.k, b_columns = p.transpose_b ? p.k : p.n;
    t.a = draw(p.offset + a_rows * (a_columns + p.extra_a), "a");
    t.b = draw(p.offset + b_rows * (b_columns + p.extra_b), "b");
    t.c_elements = p.offset + p.m * (p.n + p.extra_c);
    t.c = draw(t.c_elements, "c");
    t.before = draw(t.c_elements, "c");
    t.bias = draw(p.offset + p.n, "bias");
    t.args = (struct gemm){.a = view(t.a + p.offset, a_rows, a_columns, p.extra_a),
                           .b = view(t.b + p.offset, b_rows, b_columns, p.extra_b),
                           .c = view(t.c + p.offset, p.m, p.n, p.extra_c),
                           .transpose_a = p.transpose_a,
                           .transpose_b = p.transpose_b,
                           .accumulate = p.accumulate};
    if (p.bias)
        t.args.bias = tensor_1d(t.bias + p.offset, F32, p.n);
    return t;
}

static void trial_free(struct trial *t)
{
    free(t->a);
    free(t->b);
    free(t->c);
    free(t->before);
    free(t->bias);
}

static double element(struct tensor t, bool transpose, int64_t row, int64_t column)
{
    const float *data = t.data;
    return (double)(transpose ? data[column * t.stride[0] + row] : data[row * t.stride[0] + column]);
}

/* From the first element to the last, including gaps between rows. */
static size_t bytes_spanned(struct tensor t)
{
    int64_t elements = t.ndim == 2 ? (t.dim[0] - 1) * t.stride[0] + t.dim[1] : t.dim[0];
    return (size_t)elements * sizeof(float);
}

static void run_on(struct device *device, struct gemm args)
{
    struct stream *stream;
    struct tensor operands[] = {args.a, args.b, args.c, args.bias};
    for (int i = 0; i < 4; i++)
        if (tensor_count(operands[i]) > 0)
            mirror_register(device, operands[i].data, bytes_spanned(operands[i]));
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(gemm(stream, args), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(stream), OK);
    stream_destroy(stream);
    device_close(device);
}

static void run(struct gemm args, int threads)
{
    run_on(fixture_device(threads), args);
}

/* The largest error over its bound. unit: relative error of the operands. */
static double worst_rounded(const struct trial *t, double unit)
{
    const struct gemm *g = &t->args;
    double largest = 0;
    for (int64_t i = 0; i < t->what.m; i++) {
        for (int64_t j = 0; j < t->what.n; j++) {
            int64_t at = t->what.offset + i * g->c.stride[0] + j;
            double sum = t->what.accumulate ? (double)t->before[at] : 0.0, size = fabs(sum);
            if (t->what.bias) {
                sum += (double)t->bias[t->what.offset + j];
                size += fabs((double)t->bias[t->what.offset + j]);
            }
            for (int64_t k = 0; k < t->what.k; k++) {
                double term = element(g->a, g->transpose_a, i, k) * element(g->b, g->transpose_b, k, j);
                sum += term;
                size += fabs(term);
            }
            double bound = ((double)(t->what.k + 2) * (double)FLT_EPSILON + unit * (2.0 + unit)) * size +
                           (double)FLT_MIN;
            double error = fabs((double)t->c[at] - sum);
            largest =
                error / bound > largest || isnan(error) ? (isnan(error) ? INFINITY : error / bound) : largest;
        }
    }
    return largest;
}

static double worst(const struct trial *t)
{
    return worst_rounded(t, 0.0);
}

/* The gaps before and between the rows of c must be unchanged. */
static bool gaps_untouched(const struct trial *t)
{
    for (int64_t i = 0; i < t->c_elements; i++) {
        int64_t column =
            i < t->what.offset ? INT64_MAX : (i - t->what.offset) % (t->what.n + t->what.extra_c);
        if (column >= t->what.n && memcmp(&t->c[i], &t->before[i], sizeof(float)) != 0)
            return false;
    }
    return true;
}

static void check(struct matmul_case p)
{
    struct trial t = trial_of(p);
    run(t.args, 2);
    double ratio = worst(&t);
    cr_assert_leq(ratio, 1.0, "%ldx%ldx%ld ta %d tb %d accumulate %d bias %d: error is %g of its bound",
                  (long)p.m, (long)p.n, (long)p.k, p.transpose_a, p.transpose_b, p.accumulate, p.bias, ratio);
    cr_assert(gaps_untouched(&t));
    trial_free(&t);
}

Test(gemm, every_form_and_odd_shapes)
{
    const int64_t shapes[][3] = {{1, 1, 1},    {1, 7, 3},     {5, 1, 9},
                                 {33, 17, 65}, {48, 100, 31}, {130, 257, 100}};
    const size_t count = sizeof shapes / sizeof *shapes;
    for (size_t s = 0; s < count; s++) {
        // The reference is slow: for the largest, each property on and off only.
        for (int form = 0; form < 32; form += !long_tests() && s + 1 == count ? 5 : 1)
            check((struct matmul_case){.m = shapes[s][0],
                                       .n = shapes[s][1],
                                       .k = shapes[s][2],
                                       .transpose_a = (form & 1) != 0,
                                       .transpose_b = (form & 2) != 0,
                                       .accumulate = (form & 4) != 0,
                                       .bias = (form & 8) != 0,
                                       .extra_a = (form & 16) != 0 ? 5 : 0,
                                       .extra_b = (form & 16) != 0 ? 3 : 0,
                                       .extra_c = (form & 16) != 0 ? 7 : 0,
                                       .offset = (form & 16) != 0 ? 1 : 0});
    }
}

/* Shapes that are divided into many panels, the last ones small. */
Test(gemm, many_panels)
{
    for (int form = 0; form < (fixture_is_emulated || UNDER_SANITIZER ? 1 : 4); form++) {
        check((struct matmul_case){
            .m = 1030, .n = 801, .k = 37, .transpose_b = form > 1, .bias = form % 2 == 0});
        check((struct matmul_case){
            .m = 40, .n = 5003, .k = 20, .transpose_a = form > 1, .accumulate = form % 2 == 0});
        check((struct matmul_case){
            .m = 2100, .n = 30, .k = 20, .transpose_a = form > 1, .bias = form % 2 == 0});
    }
}

/* TF32 has a 10-bit mantissa: rounding, or truncation, is below 2^-10 of each operand. It must also be in
 * effect: the fp32 bound is violated. */
Test(gemm, tf32)
{
    struct device *device = fixture_tf32_device();
    if (device == NULL)
        cr_skip_test("only on a GPU");
    for (int form = 0; form < 16; form++) {
        struct matmul_case p = {.m = 48,
                                .n = 100,
                                .k = 64,
                                .transpose_a = (form & 1) != 0,
                                .transpose_b = (form & 2) != 0,
                                .accumulate = (form & 4) != 0,
                                .bias = (form & 8) != 0};
        struct trial t = trial_of(p);
        run_on(device, t.args);
        device = fixture_tf32_device();
        cr_assert_leq(worst_rounded(&t, 0x1p-10), 1.0, "form %d", form);
        cr_assert_gt(worst(&t), 1.0, "form %d is exact: is it TF32?", form);
        cr_assert(gaps_untouched(&t));
        trial_free(&t);
    }
    device_close(device);
}

Test(gemm, empty_matrices)
{
    // K = 0: an empty sum, but still the bias.
    for (int form = 0; form < 4; form++)
        check((struct matmul_case){
            .m = 9, .n = 5, .k = 0, .accumulate = (form & 1) != 0, .bias = (form & 2) != 0});
    check((struct matmul_case){.m = 0, .n = 5, .k = 3, .accumulate = true});
    check((struct matmul_case){.m = 4, .n = 0, .k = 3, .bias = true});
}

/* The reference must detect errors. */
Test(gemm, the_bound_detects_a_wrong_result)
{
    struct matmul_case p = {.m = 20, .n = 30, .k = 40, .accumulate = true, .bias = true};
    struct trial t = trial_of(p);
    run(t.args, 1);
    cr_assert_leq(worst(&t), 1.0);
    t.c[77] += 1e-3F; // about thirty times an element's bound
    cr_assert_gt(worst(&t), 1.0);
    trial_free(&t);

    t = trial_of(p);
    t.args.accumulate = false; // ignores the previous c
    run(t.args, 1);
    cr_assert_gt(worst(&t), 1.0);
    trial_free(&t);
}

static bool same_result_bits(const struct trial *x, const struct trial *y)
{
    for (int64_t i = 0; i < x->what.m; i++) {
        const float *a = (const float *)x->args.c.data + i * x->args.c.stride[0];
        const float *b = (const float *)y->args.c.data + i * y->args.c.stride[0];
        if (memcmp(a, b, (size_t)x->what.n * sizeof *a) != 0)
            return false;
    }
    return true;
}

/* Copies operands to a trial with another offset. */
static void copy_rows(struct tensor from, struct tensor to)
{
    for (int64_t r = 0; r < from.dim[0]; r++)
        memcpy((float *)to.data + r * to.stride[0], (float *)from.data + r * from.stride[0],
               (size_t)from.dim[1] * sizeof(float));
}

static const int64_t bit_shapes[][3] = {
    {512, 1024, 1024}, {768, 768, 1024}, {256, 256, 1024}, {24, 1024, 64}, {1000, 700, 130}, {64, 3001, 96},
};
enum { BIT_SHAPES = sizeof bit_shapes / sizeof *bit_shapes };
/* The bits of dnnl_sgemm() depend on the number of threads for the first three shapes. Larger shapes would
 * not test more of the memory accesses, or of a kernel whose blocks are identical. */
static int first_bit_shape(void)
{
    if (fixture_is_emulated || UNDER_SANITIZER)
        return BIT_SHAPES - 1;
    return long_tests() ? 0 : 2;
}

Test(gemm, threads_do_not_change_bits)
{
    for (int s = first_bit_shape(); s < BIT_SHAPES; s++) {
        for (int form = 0; form < 3; form++) {
            struct matmul_case p = {.m = bit_shapes[s][0],
                                    .n = bit_shapes[s][1],
                                    .k = bit_shapes[s][2],
                                    .transpose_a = form == 2,
                                    .transpose_b = form == 0,
                                    .accumulate = form == 2,
                                    .bias = form == 0};
            struct trial one = trial_of(p);
            run(one.args, 1);
            for (int threads = 2; threads <= 3; threads++) {
                struct trial many = trial_of(p);
                run(many.args, threads);
                cr_assert(same_result_bits(&one, &many), "%ldx%ldx%ld form %d: %d threads", (long)p.m,
                          (long)p.n, (long)p.k, form, threads);
                trial_free(&many);
            }
            trial_free(&one);
        }
    }
}

Test(gemm, alignment_does_not_change_bits)
{
    const int64_t offsets[] = {1, 3, 8, 13};
    for (int s = first_bit_shape(); s < BIT_SHAPES; s++) {
        for (int form = 0; form < 3; form++) {
            struct matmul_case p = {.m = bit_shapes[s][0],
                                    .n = bit_shapes[s][1],
                                    .k = bit_shapes[s][2],
                                    .transpose_a = form == 2,
                                    .transpose_b = form == 0};
            struct trial plain = trial_of(p);
            run(plain.args, 2);
            for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
                struct matmul_case q = p;
                q.offset = offsets[o];
                struct trial moved = trial_of(q);
                copy_rows(plain.args.a, moved.args.a);
                copy_rows(plain.args.b, moved.args.b);
                run(moved.args, 2);
                cr_assert(same_result_bits(&plain, &moved), "%ldx%ldx%ld form %d: offset %ld", (long)p.m,
                          (long)p.n, (long)p.k, form, (long)offsets[o]);
                trial_free(&moved);
            }
            trial_free(&plain);
        }
    }
}

/* ---- memory ---- */

static int64_t resident_bytes(void)
{
    long long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    cr_assert(file != NULL && fscanf(file, "%lld %lld", &size, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

struct growth {
    const struct trial *trial;
    int64_t bytes; // resident after several calls, beyond those after one
};

static void *grow(void *context)
{
    enum { CALLS = 4 };
    struct growth *growth = context;
    run(growth->trial->args, 1);
    growth->bytes = -resident_bytes();
    for (int i = 0; i < CALLS; i++)
        run(growth->trial->args, 1);
    growth->bytes += resident_bytes();
    return NULL;
}

/* oneDNN allocates a block of 1.8 MiB for each panel of this matmul, and frees it. (AddressSanitizer keeps
 * freed memory.) */
Test(gemm, a_thread_keeps_one_packing_block, .disabled = UNDER_SANITIZER)
{
    enum { MOST_BYTES = 4 << 20 };
    if (fixture_is_emulated || getenv("CUBOID_TEST_DEVICE") != NULL)
        return; // another device
    struct trial t = trial_of((struct matmul_case){.m = 1024, .n = 4096, .k = 256, .transpose_b = true});
    struct growth growth = {.trial = &t};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, grow, &growth), 0);
    pthread_join(thread, NULL);
    cr_assert_leq(growth.bytes, MOST_BYTES, "%lld more bytes are resident", (long long)growth.bytes);
    trial_free(&t);
}
