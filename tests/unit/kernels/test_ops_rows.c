// SPDX-License-Identifier: Apache-2.0
/* The row-wise ops against the double-precision reference. Each bound is derived next to its use, from UNIT
 * (one rounding, relative) and the number of roundings of a value. */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const int64_t all_rows[] = {1, 7, 33, 130}, all_columns[] = {1, 3, 17, 64, 100, 768};
enum { ROW_KINDS = 4, COLUMN_KINDS = 6 };

/* The maximum number of additions of a value in a sum over a row: two chains of vectors of four lanes (the
 * smallest processor's), their tree (2 + 4), and one division. */
static double row_roundings(int64_t columns)
{
    return ceil((double)columns / 8.0) + 7.0;
}

/* The same for a sum over tokens: a block of 64 rows, then the blocks. */
static double token_roundings(int64_t rows)
{
    return fmin((double)rows, 64.0) + ceil((double)rows / 64.0) + 1.0;
}

static double mean_of_sizes(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs(x[i]);
    return sum / (double)n;
}

struct norm_case {
    struct fixture fixture;
    int64_t rows, columns;
    enum norm_kind kind;
    float *x, *weight, *bias, *y, *mean, *rstd;
    float epsilon;
    struct reference_norm reference;
};

static struct norm_case norm_case(enum norm_kind kind, int64_t rows, int64_t columns)
{
    struct norm_case c = {
        .fixture = fixture_open(2), .rows = rows, .columns = columns, .kind = kind, .epsilon = 1e-5F};
    c.x = fixture_normals(&c.fixture, "x", rows * columns, 0.01); // small, so that epsilon matters
    for (int64_t i = 0; i < rows * columns; i++)
        c.x[i] += 0.02F;
    c.weight = fixture_normals(&c.fixture, "weight", columns, 1.0);
    c.bias = fixture_normals(&c.fixture, "bias", columns, 1.0);
    c.y = fixture_floats(&c.fixture, rows * columns);
    c.mean = fixture_floats(&c.fixture, rows);
    c.rstd = fixture_floats(&c.fixture, rows);
    c.reference = (struct reference_norm){kind,
                                          rows,
                                          columns,
                                          (double)c.epsilon,
                                          fixture_widen(&c.fixture, c.x, rows * columns),
                                          fixture_widen(&c.fixture, c.weight, columns),
                                          fixture_widen(&c.fixture, c.bias, columns)};
    return c;
}

static void run_norm_forward(struct norm_case *c)
{
    struct norm_forward op = {.kind = c->kind, .epsilon = c->epsilon};
    op.x = tensor_2d(c->x, F32, c->rows, c->columns);
    op.y = tensor_2d(c->y, F32, c->rows, c->columns);
    op.weight = tensor_1d(c->weight, F32, c->columns);
    op.rstd = tensor_1d(c->rstd, F32, c->rows);
    if (c->kind == NORM_LAYER) {
        op.bias = tensor_1d(c->bias, F32, c->columns);
        op.mean = tensor_1d(c->mean, F32, c->rows);
    }
    cr_assert_eq(norm_forward(c->fixture.stream, op), OK, "%s", fail_text());
}

/* mean: error of k units of the mean of |x|, called e. The sum of squares: k + 3 relative, and n e^2 more,
 * since a shifted mean adds nothing at first order; rstd: half of that, and three roundings of its own. y =
 * (x - mean) rstd weight + bias: four roundings, and the errors of mean and rstd. */
static int64_t norm_forward_outside(struct norm_case *c, double *worst)
{
    int64_t n = c->columns, count = c->rows * n;
    double *y = fixture_doubles(&c->fixture, count), *bound = fixture_doubles(&c->fixture, count);
    double *mean = fixture_doubles(&c->fixture, c->rows), *rstd = fixture_doubles(&c->fixture, c->rows);
    reference_norm_forward(&c->reference, y);
    reference_norm_statistics(&c->reference, mean, rstd);
    double k = row_roundings(n);
    for (int64_t t = 0; t < c->rows; t++) {
        const double *x = c->reference.x + t * n;
        double e = c->kind == NORM_LAYER ? k * UNIT * mean_of_sizes(x, n) : 0.0;
        double rstd_error = (0.5 * (k + 3.0) + 3.0) * UNIT + 0.5 * e * e * rstd[t] * rstd[t];
        for (int64_t i = 0; i < n; i++) {
            double size = fabs((x[i] - mean[t]) * rstd[t] * c->reference.weight[i]);
            bound[t * n + i] = e * rstd[t] * fabs(c->reference.weight[i]) + size * (rstd_error + 4.0 * UNIT) +
                               UNIT * fabs(y[t * n + i]);
        }
    }
    return count_outside(c->y, y, bound, count, worst);
}

Test(ops_rows, norm_forward)
{
    for (int kind = 0; kind < 2; kind++) {
        for (int r = 0; r < ROW_KINDS; r++) {
            for (int n = 0; n < COLUMN_KINDS; n++) {
                struct norm_case c = norm_case((enum norm_kind)kind, all_rows[r], all_columns[n]);
                double worst;
                run_norm_forward(&c);
                cr_expect_eq(norm_forward_outside(&c, &worst), 0, "kind %d, %ld x %ld: %g", kind,
                             (long)c.rows, (long)c.columns, worst);
                cr_expect(fixture_is_guarded(c.y, c.rows * c.columns) && fixture_is_guarded(c.rstd, c.rows));
                fixture_close(&c.fixture);
            }
        }
    }
}

Test(ops_rows, norm_bounds_detect_injected_faults)
{
    for (int fault = 0; fault < 4; fault++) {
        struct norm_case c = norm_case(NORM_LAYER, 7, 100);
        run_norm_forward(&c);
        if (fault == 0)
            c.reference.epsilon *= 1.001; // of a variance of 1e-4, so 5e-5 of rstd
        if (fault == 1)
            c.reference.kind = NORM_RMS;
        if (fault == 2)
            c.reference.epsilon += 1e-4 / 99.0; // the variance of n - 1
        for (int i = 650; fault == 3 && i < 700; i++)
            c.y[i] *= 1.0F + 0x1p-16F;
        cr_expect_gt(norm_forward_outside(&c, NULL), 0, "fault %d was not detected", fault);
        fixture_close(&c.fixture);
    }
}

struct norm_gradients {
    float *dy, *dx, *dweight, *dbias;
    double *old_dx;
};

static struct norm_gradients run_norm_backward(struct norm_case *c)
{
    int64_t count = c->rows * c->columns;
    struct norm_gradients g = {.dy = fixture_normals(&c->fixture, "dy", count, 1.0),
                               .dx = fixture_normals(&c->fixture, "dx", count, 1.0),
                               .dweight = fixture_floats(&c->fixture, c->columns),
                               .dbias = fixture_floats(&c->fixture, c->columns)};
    g.old_dx = fixture_widen(&c->fixture, g.dx, count);
    struct norm_backward op = {.kind = c->kind,
                               .dy = tensor_2d(g.dy, F32, c->rows, c->columns),
                               .x = tensor_2d(c->x, F32, c->rows, c->columns),
                               .weight = tensor_1d(c->weight, F32, c->columns),
                               .rstd = tensor_1d(c->rstd, F32, c->rows),
                               .dx = tensor_2d(g.dx, F32, c->rows, c->columns),
                               .dweight = tensor_1d(g.dweight, F32, c->columns)};
    op.dresidual = op.dx;
    if (c->kind == NORM_LAYER) {
        op.mean = tensor_1d(c->mean, F32, c->rows);
        op.dbias = tensor_1d(g.dbias, F32, c->columns);
    }
    cr_assert_eq(norm_backward(c->fixture.stream, op), OK, "%s", fail_text());
    return g;
}

/* g = dy weight: one rounding; xhat: two. Their means: k and k + 4 (product, xhat). dx: the errors of these,
 * five roundings of each part, one of the sum with the previous dx. dweight: token roundings and three. */
static int64_t norm_backward_outside(struct norm_case *c, const struct norm_gradients *g, double *worst)
{
    int64_t n = c->columns, count = c->rows * n;
    double *dx = fixture_doubles(&c->fixture, count), *bound = fixture_doubles(&c->fixture, count);
    double *dw = fixture_doubles(&c->fixture, n), *db = fixture_doubles(&c->fixture, n);
    double *dw_size = fixture_doubles(&c->fixture, n), *db_size = fixture_doubles(&c->fixture, n);
    double *mean = fixture_widen(&c->fixture, c->mean, c->rows),
           *rstd = fixture_widen(&c->fixture, c->rstd, c->rows);
    double *dy = fixture_widen(&c->fixture, g->dy, count), k = row_roundings(n),
           tokens = token_roundings(c->rows);
    for (int64_t t = 0; c->kind == NORM_RMS && t < c->rows; t++)
        mean[t] = 0.0;
    reference_norm_backward(&c->reference, mean, rstd, dy, dx, dw, db);
    for (int64_t i = 0; i < n; i++)
        dw_size[i] = db_size[i] = 0.0;
    for (int64_t t = 0; t < c->rows; t++) {
        double g_mean = 0.0, product_mean = 0.0;
        for (int64_t i = 0; i < n; i++) {
            double size = fabs(dy[t * n + i] * c->reference.weight[i]) / (double)n;
            g_mean += c->kind == NORM_LAYER ? size : 0.0;
            product_mean += size * fabs((c->reference.x[t * n + i] - mean[t]) * rstd[t]);
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t at = t * n + i;
            double xhat = fabs((c->reference.x[at] - mean[t]) * rstd[t]);
            double parts = 6.0 * fabs(dy[at] * c->reference.weight[i]) + (k + 5.0) * g_mean +
                           (k + 11.0) * xhat * product_mean;
            dx[at] += g->old_dx[at];
            bound[at] = UNIT * (rstd[t] * parts + fabs(dx[at]));
            dw_size[i] += (tokens + 3.0) * UNIT * fabs(dy[at]) * xhat;
            db_size[i] += tokens * UNIT * fabs(dy[at]);
        }
    }
    int64_t outside =
        count_outside(g->dx, dx, bound, count, worst) + count_outside(g->dweight, dw, dw_size, n, NULL);
    return outside + (c->kind == NORM_LAYER ? count_outside(g->dbias, db, db_size, n, NULL) : 0);
}

Test(ops_rows, norm_backward)
{
    for (int kind = 0; kind < 2; kind++) {
        for (int r = 0; r < ROW_KINDS; r++) {
            for (int n = 0; n < COLUMN_KINDS - (r > 1); n++) { // the reference is quadratic in the columns
                struct norm_case c = norm_case((enum norm_kind)kind, all_rows[r], all_columns[n]);
                double worst;
                run_norm_forward(&c);
                struct norm_gradients g = run_norm_backward(&c);
                cr_expect_eq(norm_backward_outside(&c, &g, &worst), 0, "kind %d, %ld x %ld: %g", kind,
                             (long)c.rows, (long)c.columns, worst);
                cr_expect(fixture_is_guarded(g.dx, c.rows * c.columns) &&
                          fixture_is_guarded(g.dweight, c.columns));
                fixture_close(&c.fixture);
            }
        }
    }
}

Test(ops_rows, norm_backward_bounds_detect_injected_faults)
{
    for (int fault = 0; fault < 4; fault++) {
        struct norm_case c = norm_case(NORM_LAYER, 7, 100);
        run_norm_forward(&c);
        struct norm_gradients g = run_norm_backward(&c);
        if (fault == 0) // overwritten instead of accumulated
            memset(g.old_dx, 0, 700 * sizeof *g.old_dx);
        if (fault == 1) // a row missing from dbias
            for (int i = 0; i < 100; i++)
                g.dbias[i] -= g.dy[i];
        if (fault == 2) // the mean of g not subtracted
            for (int i = 0; i < 100; i++)
                g.dx[i] += c.rstd[0] * 1e-3F;
        if (fault == 3)
            g.dweight[99] *= 1.0001F;
        cr_expect_gt(norm_backward_outside(&c, &g, NULL), 0, "fault %d was not detected", fault);
        fixture_close(&c.fixture);
    }
}

/* Roundings of an activation's parts, in units, the larger of the cpu's (vector_math.h) and a GPU's
 * (kernels/cuda/memory_bound/activation.cu):
 *
 * - step of the normal: 4 of 1. Its density e^(-x^2/2): the exponent has 3 roundings, which change it by
 *   1.5 x^2; 2^x is off by 4, its factor, its product and that with x by 1 each
 * - sigmoid r or e r, r = 1 / (1 + e): e is off by 5 (2 ulp of a rounded result) and changes e r by less; the
 *   sum by 1, the reciprocal by 2, the product by 1: 9 of itself. 4 ulp on the cpu
 * - its slope e r r: 5 + 2 (1 + 2) + 2 = 13; with x 14; with gelu-tanh's 2u', of 7 roundings, and their
 *   product 22
 * - the inexact argument of gelu-tanh's sigmoid: 2u has 7 roundings with those of its constants, all of one
 *   sign, and moves the step by slope * error */
struct activation_error {
    double step, slope; // of step(x), and of x times the step's slope
};

static struct activation_error activation_error(enum activation kind, double x)
{
    if (kind == ACTIVATION_SQUARED_RELU) // exact
        return (struct activation_error){0.0, 0.0};
    if (kind == ACTIVATION_GELU || kind == ACTIVATION_GEGLU) {
        double density = exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
        return (struct activation_error){4.0, fabs(x) * density * (1.5 * x * x + 8.0)};
    }
    const bool tanh_form = kind == ACTIVATION_GELU_TANH || kind == ACTIVATION_GEGLU_TANH;
    double two_u = x, du = 1.0;
    if (tanh_form) {
        two_u = 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        du = 2.0 * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
    }
    double argument = tanh_form ? 7.0 * fabs(two_u) : 0.0;
    double s = 1.0 / (1.0 + exp(-two_u)), slope = s * (1.0 - s);
    return (struct activation_error){9.0 * s + slope * argument,
                                     fabs(x) * slope * du * ((tanh_form ? 22.0 : 14.0) + argument)};
}

static void check_activation(enum activation kind, int64_t rows, int64_t columns, double injected,
                             int64_t *forward_outside, int64_t *backward_outside)
{
    struct fixture fixture = fixture_open(2);
    int64_t count = rows * columns, width = activation_is_gated(kind) ? 2 * columns : columns;
    float *x = fixture_normals(&fixture, "x", rows * width, 3.0),
          *dy = fixture_normals(&fixture, "dy", count, 1.0);
    float *y = fixture_floats(&fixture, count), *dx = fixture_floats(&fixture, rows * width);
    struct activation_forward forward = {kind, tensor_2d(x, F32, rows, width),
                                         tensor_2d(y, F32, rows, columns)};
    struct activation_backward backward = {kind, forward.x, tensor_2d(dy, F32, rows, columns),
                                           tensor_2d(dx, F32, rows, width)};
    cr_assert_eq(activation_forward(fixture.stream, forward), OK, "%s", fail_text());
    cr_assert_eq(activation_backward(fixture.stream, backward), OK, "%s", fail_text());

    double *wide = fixture_widen(&fixture, x, rows * width), *wide_dy = fixture_widen(&fixture, dy, count);
    double *want = fixture_doubles(&fixture, count), *bound = fixture_doubles(&fixture, count);
    double *want_dx = fixture_doubles(&fixture, rows * width),
           *bound_dx = fixture_doubles(&fixture, rows * width);
    reference_activation_forward(kind, rows, columns, wide, want);
    reference_activation_backward(kind, rows, columns, wide, wide_dy, want_dx);
    for (int64_t at = 0; at < count; at++) {
        int64_t in = at / columns * width + at % columns;
        struct activation_error e = activation_error(kind, wide[in]);
        double up = activation_is_gated(kind) ? fabs(wide[in + columns]) : 1.0, g = fabs(wide_dy[at]);
        bound[at] =
            UNIT * (fabs(wide[in]) * e.step * up + 2.0 * fabs(want[at])) + 0x1p-50 * fabs(wide[in]) * up;
        bound_dx[in] = UNIT * (g * up * (e.step + e.slope) + 4.0 * fabs(want_dx[in])) + 0x1p-50 * g * up;
        if (activation_is_gated(kind))
            bound_dx[in + columns] =
                UNIT * (g * fabs(wide[in]) * e.step + 2.0 * fabs(want_dx[in + columns])) +
                0x1p-50 * g * fabs(wide[in]);
        want[at] *= 1.0 + injected;
        want_dx[in] *= 1.0 + injected;
    }
    *forward_outside = count_outside(y, want, bound, count, NULL);
    *backward_outside = count_outside(dx, want_dx, bound_dx, rows * width, NULL);
    cr_expect(fixture_is_guarded(y, count) && fixture_is_guarded(dx, rows * width));
    fixture_close(&fixture);
}

Test(ops_rows, activations)
{
    for (int kind = 0; kind < ACTIVATION_KINDS; kind++) {
        for (int r = 0; r < ROW_KINDS; r++) {
            for (int n = 0; n < COLUMN_KINDS; n++) {
                int64_t forward, backward;
                check_activation((enum activation)kind, all_rows[r], all_columns[n], 0.0, &forward,
                                 &backward);
                cr_expect(forward == 0 && backward == 0, "kind %d, %ld x %ld: %ld, %ld outside", kind,
                          (long)all_rows[r], (long)all_columns[n], (long)forward, (long)backward);
            }
        }
        int64_t forward, backward;
        check_activation((enum activation)kind, 33, 100, 1e-5, &forward, &backward);
        cr_expect(forward > 0 && backward > 0, "the injected fault was not detected");
    }
}

/* The two gelus differ by up to 5e-4: the bounds tell them apart. */
Test(ops_rows, gelu_differs_from_its_tanh_form)
{
    double x = 1.0, exact, tanh_form;
    reference_activation_forward(ACTIVATION_GELU, 1, 1, &x, &exact);
    reference_activation_forward(ACTIVATION_GELU_TANH, 1, 1, &x, &tanh_form);
    cr_expect_gt(fabs(exact - tanh_form), 100.0 * UNIT * (8.0 + 2.0));
}

static bool is_near(float got, float want, double relative)
{
    return got == want || fabs((double)got - (double)want) <= relative * fabs((double)want);
}

/* Values of 0 are exact, and of squared_relu; others are off by the step's error, at most 9 units of itself
 * (of the normal, 4 of 1), and four roundings. */
Test(ops_rows, activations_of_huge_arguments)
{
    struct fixture fixture = fixture_open(1);
    const float huge[] = {1e3F, -1e3F, 1e20F, -1e20F, 3e38F, -3e38F, 0.0F, -0.0F};
    for (int kind = 0; kind < ACTIVATION_KINDS; kind++) {
        float x[16], y[8], dx[16], dy[8];
        fixture_register(&fixture, x, sizeof x);
        fixture_register(&fixture, y, sizeof y);
        fixture_register(&fixture, dx, sizeof dx);
        fixture_register(&fixture, dy, sizeof dy);
        for (int i = 0; i < 8; i++) {
            x[i] = huge[i];
            x[8 + i] = dy[i] = 1.0F;
        }
        int64_t width = activation_is_gated(kind) ? 16 : 8;
        struct activation_forward f = {(enum activation)kind, tensor_2d(x, F32, 1, width),
                                       tensor_2d(y, F32, 1, 8)};
        struct activation_backward b = {f.kind, f.x, tensor_2d(dy, F32, 1, 8), tensor_2d(dx, F32, 1, width)};
        cr_assert_eq(activation_forward(fixture.stream, f), OK);
        cr_assert_eq(activation_backward(fixture.stream, b), OK);
        const bool square = kind == ACTIVATION_SQUARED_RELU;
        const double error = square ? 0.0 : 13.0 * UNIT;
        for (int i = 0; i < 8; i++) {
            const float positive = huge[i] > 0.0F ? huge[i] : 0.0F;
            const float slope = huge[i] > 0.0F ? 1.0F : huge[i] < 0.0F ? 0.0F : 0.5F;
            cr_expect(is_near(y[i], square ? positive * positive : positive, error), "kind %d: f(%g) = %g",
                      kind, (double)huge[i], (double)y[i]);
            cr_expect(is_near(dx[i], square ? 2.0F * positive : slope, error), "kind %d: f'(%g) = %g", kind,
                      (double)huge[i], (double)dx[i]);
        }
    }
    fixture_close(&fixture);
}

/* ---- soft-capping of logits, and the gradient of the loss through it ---- */

enum { V = 203, V_PADDED = 208, T = 12 };
static const float caps[] = {0.5F, 3.0F, 30.0F, 1e6F};

/* x / cap and the product with cap round once each, tanh to 3 ulp. */
Test(ops_rows, softcap)
{
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        struct fixture fixture = fixture_open(2);
        float *x = fixture_normals(&fixture, "logits", T * V_PADDED, 4.0);
        double *want = fixture_doubles(&fixture, T * V_PADDED),
               *bound = fixture_doubles(&fixture, T * V_PADDED);
        for (int64_t k = 0; k < T * V_PADDED; k++) {
            const bool capped = k % V_PADDED < V; // the rest is padding
            want[k] = capped ? reference_softcap((double)x[k], (double)caps[i]) : (double)x[k];
            bound[k] = capped ? 9.0 * UNIT * fabs(want[k]) : 0.0;
        }
        const struct tensor whole = tensor_2d(x, F32, T, V_PADDED);
        cr_assert_eq(softcap(fixture.stream, (struct softcap){tensor_columns(whole, 0, V), caps[i]}), OK,
                     "%s", fail_text());
        cr_assert_eq(stream_sync(fixture.stream), OK);
        cr_expect_eq(count_outside(x, want, bound, T * V_PADDED, NULL), 0, "cap %g", (double)caps[i]);
        cr_expect(fixture_is_guarded(x, T * V_PADDED));
        fixture_close(&fixture);
    }
}

struct capped_loss {
    struct fixture fixture;
    double *logits, *want; // before the cap, and the gradient
    float *capped, *mask;
    int32_t *label;
    struct loss_backward op;
};

/* The kernel has the capped logits, with the reference's maxima and sums. */
static struct capped_loss capped_loss(double cap)
{
    struct capped_loss c = {.fixture = fixture_open(2)};
    const float *raw = fixture_normals(&c.fixture, "logits", T * V, 4.0);
    float *max = fixture_floats(&c.fixture, T), *sum = fixture_floats(&c.fixture, T);
    double *wide = fixture_doubles(&c.fixture, T * V);
    c.logits = fixture_widen(&c.fixture, raw, T * V);
    c.want = fixture_doubles(&c.fixture, T * V);
    c.capped = fixture_floats(&c.fixture, T * V_PADDED);
    c.mask = fixture_floats(&c.fixture, T);
    c.label = fixture_ints(&c.fixture, T);
    for (int64_t t = 0; t < T; t++) {
        double all = 0.0;
        c.label[t] = (int32_t)(t * 31 % V);
        c.mask[t] = t % 5 == 0 ? 0.0F : t % 7 == 0 ? 0.5F : 1.0F;
        max[t] = (float)cap;
        for (int64_t i = 0; i < V_PADDED; i++)
            c.capped[t * V_PADDED + i] = NAN;
        for (int64_t i = 0; i < V; i++) {
            wide[t * V + i] = reference_softcap(c.logits[t * V + i], cap);
            c.capped[t * V_PADDED + i] = (float)wide[t * V + i];
            all += exp(wide[t * V + i] - (double)max[t]);
        }
        sum[t] = (float)all;
    }
    reference_loss_backward(T, V, wide, c.label, c.mask, c.want);
    c.op = (struct loss_backward){.logits = tensor_2d(c.capped, F32, T, V_PADDED),
                                  .max = tensor_1d(max, F32, T),
                                  .sum = tensor_1d(sum, F32, T),
                                  .label = c.label,
                                  .mask = c.mask,
                                  .columns = V,
                                  .softcap = (float)cap};
    return c;
}

/* The number of gradients that are not those of the loss times the derivative of the cap. Bounds: the
 * exponential's, as without a cap; and of the derivative 1 - t^2, the rounding of t and its own. */
static int64_t capped_outside(const struct capped_loss *c, double cap, bool derivative)
{
    int64_t count = 0;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < V; i++) {
            const int64_t at = t * V + i;
            const double slope = reference_softcap_slope(c->logits[at], cap);
            const double p = fabs(c->want[at]) + (i == c->label[t] ? 2.0 * (double)c->mask[t] : 0.0);
            const double want = c->want[at] * (derivative ? slope : 1.0);
            const double bound = UNIT * (p * slope * (2.0 * cap + 20.0) + p * 8.0);
            count += count_outside(c->capped + t * V_PADDED + i, &want, &bound, 1, NULL);
        }
        for (int64_t i = V; i < V_PADDED; i++)
            count += c->capped[t * V_PADDED + i] != 0.0F;
    }
    return count;
}

Test(ops_rows, loss_of_capped_logits)
{
    for (size_t i = 0; i < 3; i++) {
        const double cap = (double)caps[i];
        struct capped_loss c = capped_loss(cap);
        cr_assert_eq(loss_backward(c.fixture.stream, c.op), OK, "%s", fail_text());
        cr_assert_eq(stream_sync(c.fixture.stream), OK);
        cr_expect_eq(capped_outside(&c, cap, true), 0, "cap %g", cap);
        cr_expect_gt(capped_outside(&c, cap, false), 0, "a gradient without the derivative was not detected");
        fixture_close(&c.fixture);
    }
}
