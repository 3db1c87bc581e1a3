// SPDX-License-Identifier: Apache-2.0
/* GEMM epilogues against double precision on the same values, on devices with and without fusion.
 *
 * The matmul has an error of e, narrow_sum_error() times the sum of the absolute values, plus u if it was
 * rounded in between. GELU, whose slope is below 1.13, propagates that; its own error is derived in
 * test_ops_rows.c. cuBLASLt does not document how it computes GELU: on a GPU a tanh of 11 bits is accepted,
 * as PTX has (tanh.approx.f32). */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum form { AFTER, AFTER_BIAS, BEFORE, GRADIENT, GRADIENT_ADDED, FORMS };

struct epilogue_case {
    enum form form;
    enum dtype dtype;
    enum activation kind;
    int64_t m, n, k, extra; // added to the row strides
};

struct trial {
    struct fixture fixture;
    struct epilogue_case what;
    struct gemm args;
    struct tensor out; // the epilogue's output
};

static double at(struct tensor t, int64_t row, int64_t column)
{
    int64_t i = t.ndim == 1 ? column : row * t.stride[0] + column;
    return t.dtype == F32 ? (double)((const float *)t.data)[i]
                          : narrow_value(t.dtype, ((const uint16_t *)t.data)[i]);
}

static struct tensor matrix(struct fixture *s, const char *name, enum dtype dtype, int64_t rows,
                            int64_t columns, int64_t extra)
{
    int64_t count = rows * (columns + extra);
    float *wide = fixture_normals(s, name, count, 1.0);
    uint16_t *narrow = fixture_shorts(s, count);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = narrow_nearest(dtype, wide[i]);
    return tensor_columns(tensor_2d(dtype == F32 ? (void *)wide : narrow, dtype, rows, columns + extra), 0,
                          columns);
}

static struct tensor row(struct fixture *s, const char *name, enum dtype dtype, int64_t columns)
{
    return tensor_1d(matrix(s, name, dtype, 1, columns, 0).data, dtype, columns);
}

static bool makes_gradient(enum form form)
{
    return form == GRADIENT || form == GRADIENT_ADDED;
}

static struct trial trial_of(struct epilogue_case w, enum matmul_epilogues epilogues)
{
    struct trial t = {.fixture = fixture_open_with(2, epilogues), .what = w};
    struct fixture *s = &t.fixture;
    bool gradient = makes_gradient(w.form);
    t.args = (struct gemm){.transpose_a = gradient, .accumulate = w.form == GRADIENT_ADDED};
    t.args.a = matrix(s, "a", w.dtype, gradient ? w.k : w.m, gradient ? w.m : w.k, w.extra);
    t.args.b = matrix(s, "b", w.dtype, w.k, w.n, w.extra);
    t.args.c = matrix(s, "c", gradient ? F32 : w.dtype, w.m, w.n, w.extra);
    t.args.epilogue.activation = w.kind;
    if (w.form == AFTER_BIAS)
        t.args.bias = row(s, "bias", w.dtype, w.n);
    if (w.form == AFTER || w.form == AFTER_BIAS)
        t.out = t.args.epilogue.after = matrix(s, "after", w.dtype, w.m, w.n, w.extra);
    if (w.form == BEFORE) {
        t.args.epilogue.before = matrix(s, "before", w.dtype, w.m, w.n, w.extra);
        t.out = t.args.c;
    }
    if (gradient)
        t.out = t.args.epilogue.bias_gradient = row(s, "sum", F32, w.m);
    return t;
}

static void run(struct trial *t)
{
    cr_assert_eq(gemm(t->fixture.stream, t->args), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(t->fixture.stream), OK);
}

/* The matmul: its value, and its error before and after rounding. */
struct bounded {
    double value, bound, rounded;
};

static double narrowing(enum dtype dtype, double size)
{
    return dtype == F32 ? 0.0 : narrow_unit(dtype) * size + 0x1p-25; // f16's subnormal step
}

static struct bounded matmul_value(const struct trial *t, double before, int64_t i, int64_t j)
{
    const struct gemm *g = &t->args;
    double sum = g->accumulate ? before : 0.0, size = fabs(sum);
    if (g->bias.data != NULL) {
        sum += at(g->bias, 0, j);
        size += fabs(at(g->bias, 0, j));
    }
    for (int64_t k = 0; k < t->what.k; k++) {
        double term = (g->transpose_a ? at(g->a, k, i) : at(g->a, i, k)) * at(g->b, k, j);
        sum += term;
        size += fabs(term);
    }
    double bound = narrow_sum_error(t->what.k) * size + (double)FLT_MIN;
    return (struct bounded){sum, bound, bound + narrowing(g->c.dtype, fabs(sum) + bound)};
}

/* Errors of GELU's step and slope at x, in units in the last place; derived in test_ops_rows.c. */
static double step_units(const struct epilogue_case *w, double x)
{
    double two_u = 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), s = 1.0 / (1.0 + exp(-two_u));
    double of_library = getenv("CUBOID_TEST_DEVICE") != NULL ? 0x1p13 : 0.0; // 2^-11, in units
    return of_library + (w->kind == ACTIVATION_GELU ? 4.0 : 8.0 * s + s * (1.0 - s) * 6.0 * fabs(two_u));
}

static double slope_units(const struct epilogue_case *w, double x)
{
    double two_u = 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), s = 1.0 / (1.0 + exp(-two_u));
    double du = 2.0 * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x), density = exp(-0.5 * x * x);
    return w->kind == ACTIVATION_GELU ? fabs(x) * density * (x * x + 8.0)
                                      : fabs(x) * s * (1.0 - s) * du * (16.0 + 6.0 * fabs(two_u));
}

static struct bounded expected(const struct trial *t, struct bounded p, int64_t i, int64_t j)
{
    const struct epilogue_case *w = &t->what;
    double value, error, one = 1.0;
    if (w->form == BEFORE) {
        double x = at(t->args.epilogue.before, i, j), slope;
        reference_activation_backward(w->kind, 1, 1, &x, &one, &slope);
        value = p.value * slope;
        error = (fabs(slope) + 1e-3) * p.rounded +
                fabs(p.value) * UNIT * (step_units(w, x) * (1.0 + fabs(x)) + slope_units(w, x)) +
                4.0 * UNIT * fabs(value);
    } else {
        reference_activation_forward(w->kind, 1, 1, &p.value, &value);
        error = 1.13 * p.rounded + UNIT * (fabs(p.value) * step_units(w, p.value) + 2.0 * fabs(value));
    }
    error += 0x1p-50;
    return (struct bounded){value, error, error + narrowing(w->dtype, fabs(value) + error)};
}

static struct bounded bias_gradient(const struct trial *t, double before, int64_t m)
{
    double sum = before, size = fabs(before);
    for (int64_t k = 0; k < t->what.k; k++) {
        sum += at(t->args.a, k, m);
        size += fabs(at(t->args.a, k, m));
    }
    double bound = narrow_sum_error(t->what.k) * size + (double)FLT_MIN;
    return (struct bounded){sum, bound, bound};
}

static bool is_within(double got, struct bounded want)
{
    return fabs(got - want.value) <= want.rounded;
}

/* Counts the elements outside their bounds: of c, and of the epilogue's output. */
static int64_t outside(const struct trial *t, const struct trial *fresh, double injected)
{
    int64_t count = 0;
    for (int64_t i = 0; i < t->what.m; i++) {
        for (int64_t j = 0; j < t->what.n; j++) {
            struct bounded p = matmul_value(t, at(fresh->args.c, i, j), i, j);
            if (t->what.form != BEFORE)
                count += !is_within(at(t->args.c, i, j), p);
            if (makes_gradient(t->what.form))
                continue;
            struct bounded want = expected(t, p, i, j);
            want.value *= 1.0 + injected;
            count += !is_within(at(t->out, i, j), want);
        }
        if (!makes_gradient(t->what.form))
            continue;
        struct bounded want = bias_gradient(t, at(fresh->out, 0, i), i);
        want.value *= 1.0 + injected;
        count += !is_within(at(t->out, 0, i), want);
    }
    return count;
}

/* Whether the gaps between the rows of t equal those of an untouched tensor. */
static bool gaps_are_untouched(struct tensor t, struct tensor fresh)
{
    size_t size = dtype_bytes(t.dtype);
    for (int64_t r = 0; t.ndim == 2 && r + 1 < t.dim[0]; r++) {
        size_t begin = (size_t)(r * t.stride[0] + t.dim[1]) * size;
        if (memcmp((char *)t.data + begin, (char *)fresh.data + begin,
                   (size_t)(t.stride[0] - t.dim[1]) * size) != 0)
            return false;
    }
    return true;
}

static void check(struct epilogue_case w, enum matmul_epilogues epilogues, double injected)
{
    struct trial t = trial_of(w, epilogues), fresh = trial_of(w, EPILOGUES_APART);
    run(&t);
    int64_t bad = outside(&t, &fresh, injected);
    cr_expect(injected == 0.0 ? bad == 0 : bad > 0,
              "%s, form %d, kind %d, %ldx%ldx%ld + %ld, %d: %ld outside", dtype_name(w.dtype), w.form, w.kind,
              (long)w.m, (long)w.n, (long)w.k, (long)w.extra, epilogues, (long)bad);
    cr_expect(gaps_are_untouched(t.args.c, fresh.args.c) && gaps_are_untouched(t.out, fresh.out));
    fixture_close(&t.fixture);
    fixture_close(&fresh.fixture);
}

/* Multiples of 8, and shapes that a library rejects: odd columns, a leading dimension that is not a multiple
 * of 8, K = 0. */
static const int64_t shapes[][4] = {{24, 16, 40, 0}, {8, 8, 8, 8},   {16, 32, 5, 3},
                                    {9, 17, 33, 0},  {33, 24, 3, 0}, {5, 8, 0, 0}};

Test(gemm_epilogue, against_double_precision)
{
    static const enum dtype dtypes[] = {F32, BF16, F16};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < FORMS; form++)
            for (int d = 0; d < 3; d++) {
                struct epilogue_case w = {(enum form)form, dtypes[d],    ACTIVATION_GELU_TANH, shapes[s][0],
                                          shapes[s][1],    shapes[s][2], shapes[s][3]};
                check(w, EPILOGUES_FUSED, 0.0);
                check(w, s % 2 == 0 ? EPILOGUES_APART : EPILOGUES_AUTO, 0.0);
                w.kind = ACTIVATION_GELU;
                check(w, EPILOGUES_FUSED, 0.0);
            }
}

Test(gemm_epilogue, detects_an_injected_fault)
{
    for (int form = 0; form < FORMS; form++)
        check((struct epilogue_case){(enum form)form, F32, ACTIVATION_GELU_TANH, 24, 16, 40, 0},
              EPILOGUES_FUSED, getenv("CUBOID_TEST_DEVICE") != NULL ? 1e-2 : 1e-4);
}

/* Bit-identical to running the named op next. */
static bool is_as_two_ops(struct epilogue_case w, enum matmul_epilogues epilogues)
{
    struct trial one = trial_of(w, epilogues), two = trial_of(w, EPILOGUES_APART);
    struct gemm alone = two.args;
    run(&one);
    alone.epilogue = (struct epilogue){0};
    cr_assert_eq(gemm(two.fixture.stream, alone), OK, "%s", fail_text());
    cr_assert_eq(gemm_epilogue(two.fixture.stream, two.args), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(two.fixture.stream), OK);
    bool same = true;
    for (int64_t i = 0; i < w.m; i++)
        for (int64_t j = 0; j < w.n; j++)
            same = same && at(one.args.c, i, j) == at(two.args.c, i, j) &&
                   (makes_gradient(w.form) ? at(one.out, 0, i) == at(two.out, 0, i)
                                           : at(one.out, i, j) == at(two.out, i, j));
    fixture_close(&one.fixture);
    fixture_close(&two.fixture);
    return same;
}

/* Fused epilogues give other bits: there is no rounding in between, and a column sum has another order. */
Test(gemm_epilogue, where_the_epilogue_runs)
{
    for (int form = 0; form < FORMS; form++) {
        const enum dtype dtype = makes_gradient((enum form)form) ? F32 : BF16; // a short bf16 sum is exact
        const struct epilogue_case w = {(enum form)form, dtype, ACTIVATION_GELU_TANH, 24, 16, 40, 0};
        struct epilogue_case odd = w, erf = w, strided = w;
        odd.n = 17;
        erf.kind = ACTIVATION_GELU;
        strided.extra = 3;
        cr_expect(is_as_two_ops(w, EPILOGUES_APART), "form %d", form);
        cr_expect(is_as_two_ops(w, EPILOGUES_AUTO), "form %d: auto without timing", form);
        if (!fixture_is_emulated)
            continue; // the shapes that a real library supports are not specified
        cr_expect_not(is_as_two_ops(w, EPILOGUES_FUSED), "form %d", form);
        cr_expect(is_as_two_ops(odd, EPILOGUES_FUSED), "form %d: an unsupported shape", form);
        cr_expect(makes_gradient(w.form) || is_as_two_ops(erf, EPILOGUES_FUSED), "form %d: another GELU",
                  form);
        cr_expect(makes_gradient(w.form) || is_as_two_ops(strided, EPILOGUES_FUSED),
                  "form %d: an aux whose stride is not a multiple of 8", form);
    }
}
