// SPDX-License-Identifier: Apache-2.0
/* gemm of bf16 and f16 against a matmul in double precision of the same 16-bit values. K products, c and the
 * bias are added with an error of narrow_sum_error(); a narrow c is rounded once more, by u of itself and of
 * that error. bf16 uses the library's own gemm if it has one, f16 is computed in fp32. */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

struct matmul_case {
    enum dtype dtype, c_type;
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate, bias;
    int64_t extra; // added to the row strides
};

struct trial {
    struct fixture fixture;
    struct matmul_case what;
    struct gemm args;
    double *want, *bound; // [M, N]
};

static double value(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride[0] + column;
    return t.dtype == F32 ? (double)((const float *)t.data)[at]
                          : narrow_value(t.dtype, ((const uint16_t *)t.data)[at]);
}

static struct tensor matrix(struct fixture *fixture, const char *name, enum dtype dtype, int64_t rows,
                            int64_t columns, int64_t extra)
{
    int64_t count = rows * (columns + extra);
    float *wide = fixture_normals(fixture, name, count, 1.0);
    uint16_t *narrow = fixture_shorts(fixture, count);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = narrow_nearest(dtype, wide[i]);
    struct tensor whole = tensor_2d(dtype == F32 ? (void *)wide : narrow, dtype, rows, columns + extra);
    return tensor_columns(whole, 0, columns);
}

static struct trial trial_of(struct matmul_case p, int threads, int shift)
{
    struct trial t = {.fixture = fixture_open(threads), .what = p};
    struct fixture *s = &t.fixture;
    s->shift = shift;
    t.args =
        (struct gemm){.transpose_a = p.transpose_a, .transpose_b = p.transpose_b, .accumulate = p.accumulate};
    t.args.a = matrix(s, "a", p.dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.extra);
    t.args.b = matrix(s, "b", p.dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.extra);
    t.args.c = matrix(s, "c", p.c_type, p.m, p.n, p.extra);
    struct tensor bias = matrix(s, "bias", p.dtype, 1, p.n, 0);
    if (p.bias)
        t.args.bias = tensor_1d(bias.data, p.dtype, p.n);
    return t;
}

static void run(struct trial *t)
{
    cr_assert_eq(gemm(t->fixture.stream, t->args), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(t->fixture.stream), OK);
}

/* Before the op runs, since it may accumulate into c. */
static void expect(struct trial *t)
{
    const struct matmul_case *p = &t->what;
    const struct gemm *g = &t->args;
    t->want = fixture_doubles(&t->fixture, p->m * p->n);
    t->bound = fixture_doubles(&t->fixture, p->m * p->n);
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->accumulate ? value(g->c, i, j) : 0.0, size = fabs(sum);
            if (p->bias) {
                double bias = narrow_value(p->dtype, ((const uint16_t *)g->bias.data)[j]);
                sum += bias, size += fabs(bias);
            }
            for (int64_t k = 0; k < p->k; k++) {
                double term = (p->transpose_a ? value(g->a, k, i) : value(g->a, i, k)) *
                              (p->transpose_b ? value(g->b, j, k) : value(g->b, k, j));
                sum += term, size += fabs(term);
            }
            double error = narrow_sum_error(p->k) * size + (double)FLT_MIN;
            if (p->c_type != F32)
                error += narrow_unit(p->dtype) * (fabs(sum) + error) + 0x1p-25; // f16's subnormal step
            t->want[i * p->n + j] = sum;
            t->bound[i * p->n + j] = error;
        }
    }
}

static int64_t outside(const struct trial *t)
{
    int64_t count = 0;
    for (int64_t i = 0; i < t->what.m * t->what.n; i++) {
        double error = fabs(value(t->args.c, i / t->what.n, i % t->what.n) - t->want[i]);
        count += !(error <= t->bound[i]);
    }
    return count;
}

/* The gaps between the rows of c equal those of an untouched c. */
static bool gaps_untouched(const struct trial *t, const struct trial *fresh)
{
    struct tensor c = t->args.c, before = fresh->args.c;
    size_t size = dtype_bytes(c.dtype), gap = (size_t)(c.stride[0] - c.dim[1]) * size;
    for (int64_t r = 0; r + 1 < c.dim[0]; r++) {
        size_t at = (size_t)(r * c.stride[0] + c.dim[1]) * size;
        if (memcmp((char *)c.data + at, (char *)before.data + at, gap) != 0)
            return false;
    }
    return true;
}

static void check(struct matmul_case p)
{
    struct trial t = trial_of(p, 2, 0), fresh = trial_of(p, 1, 0);
    expect(&t);
    run(&t);
    cr_expect_eq(outside(&t), 0, "%s -> %s, %ldx%ldx%ld ta %d tb %d accumulate %d bias %d",
                 dtype_name(p.dtype), dtype_name(p.c_type), (long)p.m, (long)p.n, (long)p.k, p.transpose_a,
                 p.transpose_b, p.accumulate, p.bias);
    cr_expect(gaps_untouched(&t, &fresh));
    fixture_close(&t.fixture);
    fixture_close(&fresh.fixture);
}

/* All permitted combinations: c narrow or f32, and only f32 is accumulated into. */
Test(gemm_narrow, every_form_and_odd_shapes)
{
    const int64_t shapes[][3] = {{1, 1, 1}, {5, 1, 9}, {1, 7, 3}, {33, 17, 65}, {48, 100, 31}, {9, 5, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int form = 0; form < 64; form++) {
            struct matmul_case p = {.dtype = (form & 1) != 0 ? F16 : BF16,
                                    .m = shapes[s][0],
                                    .n = shapes[s][1],
                                    .k = shapes[s][2],
                                    .transpose_a = (form & 2) != 0,
                                    .transpose_b = (form & 4) != 0,
                                    .bias = (form & 8) != 0,
                                    .accumulate = (form & 16) != 0,
                                    .extra = (form & 32) != 0 ? 3 : 0};
            p.c_type = F32;
            check(p);
            p.c_type = p.dtype;
            if (!p.accumulate)
                check(p);
        }
    }
}

/* Several panels, the last ones small. */
Test(gemm_narrow, many_panels)
{
    check((struct matmul_case){
        .dtype = BF16, .c_type = BF16, .m = 530, .n = 801, .k = 37, .transpose_b = true, .bias = true});
    if (UNDER_SANITIZER) // the reference is slow
        return;
    check((struct matmul_case){
        .dtype = BF16, .c_type = F32, .m = 801, .n = 530, .k = 40, .transpose_a = true, .accumulate = true});
    check((struct matmul_case){.dtype = F16, .c_type = F16, .m = 40, .n = 1803, .k = 20});
}

/* Also not 16-byte aligned, where cuBLASLt's epilogues could not read it. */
Test(gemm_narrow, bias_at_any_alignment)
{
    for (int shift = 0; shift <= 8; shift++) {
        struct matmul_case p = {
            .dtype = BF16, .c_type = BF16, .m = 5, .n = 9, .k = 16, .transpose_b = true, .bias = true};
        struct trial t = trial_of(p, 1, shift);
        expect(&t);
        run(&t);
        cr_expect_eq(outside(&t), 0, "misaligned by %d elements", shift);
        fixture_close(&t.fixture);
    }
}

Test(gemm_narrow, detects_injected_faults)
{
    struct matmul_case p = {.dtype = BF16, .c_type = BF16, .m = 20, .n = 30, .k = 40, .bias = true};
    for (int fault = 0; fault < 3; fault++) {
        struct trial t = trial_of(p, 1, 0);
        expect(&t);
        if (fault == 0) // one element of 40 of b
            ((uint16_t *)t.args.b.data)[7] = narrow_nearest(BF16, 9.0F);
        if (fault == 1)
            t.args.bias.data = NULL;
        run(&t);
        if (fault == 2) // the second-lowest bit
            ((uint16_t *)t.args.c.data)[77] ^= 2;
        cr_expect_gt(outside(&t), 0, "fault %d was not detected", fault);
        fixture_close(&t.fixture);
    }
}

Test(gemm_narrow, neither_threads_nor_alignment_change_bits)
{
    const int64_t shapes[][3] = {
        {768, 768, 1024}, {512, 768, 768}, {24, 1024, 64}, {1000, 700, 130}, {64, 3001, 96}};
    for (size_t s = UNDER_SANITIZER ? 4 : long_tests() ? 0 : 1; s < sizeof shapes / sizeof *shapes; s++) {
        for (int form = 0; form < 3; form++) {
            struct matmul_case p = {.dtype = BF16,
                                    .c_type = form == 2 ? F32 : BF16,
                                    .m = shapes[s][0],
                                    .n = shapes[s][1],
                                    .k = shapes[s][2],
                                    .transpose_a = form == 2,
                                    .transpose_b = form == 0,
                                    .accumulate = form == 2,
                                    .bias = form == 0};
            struct trial one = trial_of(p, 1, 0);
            run(&one);
            for (int other = 1; other <= 5; other++) { // 2 and 3 threads; misaligned by 1, 5 and 16 elements
                const int shifts[] = {0, 0, 0, 1, 5, 16};
                struct trial many = trial_of(p, other < 3 ? other + 1 : 2, shifts[other]);
                run(&many);
                cr_expect_eq(memcmp(one.args.c.data, many.args.c.data, tensor_bytes(one.args.c)), 0,
                             "%ldx%ldx%ld form %d, case %d", (long)p.m, (long)p.n, (long)p.k, form, other);
                fixture_close(&many.fixture);
            }
            fixture_close(&one.fixture);
        }
    }
}

Test(gemm_narrow, the_error_names_the_mismatch)
{
    struct fixture s = fixture_open(1);
    struct gemm g = {.a = matrix(&s, "a", BF16, 4, 4, 0), .b = matrix(&s, "b", BF16, 4, 4, 0)};
    g.c = matrix(&s, "c", BF16, 4, 4, 0);
    g.accumulate = true;
    cr_expect_eq(gemm(s.stream, g), BAD_ARGUMENT);
    cr_expect_str_eq(fail_text(), "gemm: c is bf16, but only f32 can be accumulated into");
    g.accumulate = false;
    g.b.dtype = F16;
    cr_expect_eq(gemm(s.stream, g), BAD_ARGUMENT);
    cr_expect_str_eq(fail_text(),
                     "gemm: b is f16[4, 4] with strides 4, 1, not bf16[4, 4] with dense rows (a bf16[4, "
                     "4], b f16[4, 4], c bf16[4, 4], bias none)");
    fixture_close(&s);
}

/* f16 overflows at 65504 and has steps of 2^-24; the fp32 sum before rounding does not, which an f32 gradient
 * shows. */
Test(gemm_narrow, f16_overflow)
{
    enum { N = 5 };
    static const float a[2] = {256.0F, 0x1p-12F};
    static const float b[2 * N] = {256.0F, 255.75F, -256.0F, 0.0F,     0.0F,
                                   0.0F,   0.0F,    0.0F,    0x1p-12F, 0x1p-13F};
    static const uint16_t want[N] = {0x7c00, 0x7bfe, 0xfc00, 0x0001, 0x0000};
    static const float want_wide[N] = {65536.0F, 65472.0F, -65536.0F, 0x1p-24F, 0x1p-25F};
    struct fixture fixture = fixture_open(1);
    uint16_t *row = fixture_shorts(&fixture, 2), *columns = fixture_shorts(&fixture, 2 * N),
             *c = fixture_shorts(&fixture, N);
    float *wide = fixture_floats(&fixture, N);
    for (int i = 0; i < 2; i++)
        row[i] = narrow_nearest(F16, a[i]);
    for (int i = 0; i < 2 * N; i++)
        columns[i] = narrow_nearest(F16, b[i]);
    struct gemm op = {.a = tensor_2d(row, F16, 1, 2), .b = tensor_2d(columns, F16, 2, N)};
    for (int into = 0; into < 2; into++) {
        op.c = into == 0 ? tensor_2d(c, F16, 1, N) : tensor_2d(wide, F32, 1, N);
        cr_assert_eq(gemm(fixture.stream, op), OK, "%s", fail_text());
    }
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int i = 0; i < N; i++) {
        cr_expect_eq(c[i], want[i], "column %d: %04x", i, (unsigned)c[i]);
        cr_expect_eq(wide[i], want_wide[i], "column %d: %g", i, (double)wide[i]);
    }
    fixture_close(&fixture);
}
