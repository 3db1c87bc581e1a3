// SPDX-License-Identifier: Apache-2.0
/* Tests of the references: each backward function against finite differences of its forward function.
 *
 * With fixed random weights c, f(x) = sum c y(x) is a scalar, and its gradient is the result of backward for
 * dy = c. Central differences with step h have an error of h^2/6 f''' plus rounding, about 1e-16 |f| / h.
 * With h = 1e-4 and f''' up to some tens, 1e-7 relative to the gradient's size is above both, and far below
 * any mistake: the injected fault is a hundredth of a per cent. */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define STEP      1e-4
#define TOLERANCE 1e-7

/* f of a case, at the current values of its arrays. */
struct function {
    double (*value)(const void *context);
    const void *context;
};

/* The largest |finite difference - gradient| over x's elements, relative to the gradient's largest. */
static double gradient_error(struct function f, double *x, int64_t count, const double *gradient)
{
    double worst = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double kept = x[i];
        x[i] = kept + STEP;
        double above = f.value(f.context);
        x[i] = kept - STEP;
        double below = f.value(f.context);
        x[i] = kept;
        worst = fmax(worst, fabs((above - below) / (2.0 * STEP) - gradient[i]));
        size = fmax(size, fabs(gradient[i]));
    }
    return worst / fmax(size, 1.0);
}

static double *normals(struct fixture *fixture, const char *name, int64_t count)
{
    return fixture_widen(fixture, fixture_normals(fixture, name, count, 1.0), count);
}

static double weighted_sum(const double *y, const double *c, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += y[i] * c[i];
    return sum;
}

enum { ROWS = 3, COLUMNS = 7 };

struct norm_case {
    struct reference_norm op;
    const double *c;
};

static double norm_value(const void *context)
{
    const struct norm_case *n = context;
    double y[ROWS * COLUMNS];
    reference_norm_forward(&n->op, y);
    return weighted_sum(y, n->c, ROWS * COLUMNS);
}

static void check_norm(enum norm_kind kind)
{
    struct fixture fixture = fixture_open(1);
    double *x = normals(&fixture, "x", ROWS * COLUMNS), *w = normals(&fixture, "w", COLUMNS);
    double *b = normals(&fixture, "b", COLUMNS), *c = normals(&fixture, "c", ROWS * COLUMNS);
    struct norm_case n = {{kind, ROWS, COLUMNS, 0.1, x, w, b}, c};
    struct function f = {norm_value, &n};
    double mean[ROWS], rstd[ROWS], dx[ROWS * COLUMNS], dw[COLUMNS], db[COLUMNS];
    reference_norm_statistics(&n.op, mean, rstd);
    reference_norm_backward(&n.op, mean, rstd, c, dx, dw, db);
    cr_expect_lt(gradient_error(f, x, ROWS * COLUMNS, dx), TOLERANCE);
    cr_expect_lt(gradient_error(f, w, COLUMNS, dw), TOLERANCE);
    if (kind == NORM_LAYER)
        cr_expect_lt(gradient_error(f, b, COLUMNS, db), TOLERANCE);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        dx[i] *= 1.0001;
    cr_expect_gt(gradient_error(f, x, ROWS * COLUMNS, dx), TOLERANCE, "the injected fault was not detected");
    fixture_close(&fixture);
}

Test(reference, layer_norm)
{
    check_norm(NORM_LAYER);
}

Test(reference, rms_norm)
{
    check_norm(NORM_RMS);
}

struct activation_case {
    enum activation kind;
    const double *x, *c;
};

static double activation_value(const void *context)
{
    const struct activation_case *a = context;
    double y[ROWS * COLUMNS];
    reference_activation_forward(a->kind, ROWS, COLUMNS, a->x, y);
    return weighted_sum(y, a->c, ROWS * COLUMNS);
}

Test(reference, activations)
{
    struct fixture fixture = fixture_open(1);
    for (int k = 0; k < ACTIVATION_KINDS; k++) {
        const enum activation kind = (enum activation)k;
        int64_t count = (activation_is_gated(kind) ? 2 : 1) * ROWS * COLUMNS;
        double *x = normals(&fixture, "x", count), *c = normals(&fixture, "c", ROWS * COLUMNS);
        struct activation_case a = {kind, x, c};
        struct function f = {activation_value, &a};
        double dx[2 * ROWS * COLUMNS];
        reference_activation_backward(kind, ROWS, COLUMNS, x, c, dx);
        cr_expect_lt(gradient_error(f, x, count, dx), TOLERANCE, "kind %d", kind);
        dx[3] += 1e-4;
        cr_expect_gt(gradient_error(f, x, count, dx), TOLERANCE, "the injected fault was not detected");
    }
    fixture_close(&fixture);
}

/* A rotation is linear and preserves norms, so its gradient is its inverse. */
Test(reference, rope_forward_and_inverse)
{
    struct fixture fixture = fixture_open(1);
    const int32_t position[ROWS] = {0, 5, 1000};
    double *x = normals(&fixture, "x", ROWS * 2 * 6), kept[ROWS * 2 * 6];
    memcpy(kept, x, sizeof kept);
    reference_rope(ROWS, 2, 6, position, 1e4, false, x);
    cr_expect_lt(fabs(x[0] - kept[0]), 1e-15, "position 0 is not rotated");
    cr_expect_gt(fabs(x[12] - kept[12]), 1e-3);
    for (int h = 0; h < ROWS * 2; h++) // pairs (i, i + D/2)
        for (int i = 6 * h; i < 6 * h + 3; i++)
            cr_expect_lt(fabs(hypot(x[i], x[i + 3]) - hypot(kept[i], kept[i + 3])), 1e-14);
    reference_rope(ROWS, 2, 6, position, 1e4, true, x);
    for (int i = 0; i < ROWS * 2 * 6; i++)
        cr_expect_lt(fabs(x[i] - kept[i]), 1e-14);
    fixture_close(&fixture);
}

enum { B = 2, S = 5, A = 4, G = 2, D = 3, TOKENS = B * S };

struct attention_case {
    struct reference_attention op;
    const double *c;
};

static double attention_value(const void *context)
{
    const struct attention_case *a = context;
    double out[TOKENS * A * D];
    reference_attention_forward(&a->op, out);
    return weighted_sum(out, a->c, TOKENS * A * D);
}

Test(reference, attention)
{
    struct fixture fixture = fixture_open(1);
    const int32_t document[TOKENS] = {0, 0, 1, 1, 1, 2, 2, 2, 2, 2};
    double *q = normals(&fixture, "q", TOKENS * A * D), *k = normals(&fixture, "k", TOKENS * G * D);
    double *v = normals(&fixture, "v", TOKENS * G * D), *c = normals(&fixture, "c", TOKENS * A * D);
    double factor[B * A * S * S], dq[TOKENS * A * D], dk[TOKENS * G * D], dv[TOKENS * G * D];
    for (int i = 0; i < B * A * S * S; i++)
        factor[i] = i % 5 == 0 ? 0.0 : 1.25;
    struct reference_attention plain = {.batch = B,
                                        .sequence = S,
                                        .heads = A,
                                        .groups = G,
                                        .head_dim = D,
                                        .scale = 0.7,
                                        .q = q,
                                        .k = k,
                                        .v = v},
                               variants[] = {plain, plain, plain, plain, plain};
    variants[1].document = document;
    variants[1].factor = factor;
    variants[2].variant.window = 2;
    variants[3].variant.alibi_heads = A;
    variants[4].variant.softcap = 0.8F;
    for (size_t variant = 0; variant < sizeof variants / sizeof *variants; variant++) {
        struct attention_case a = {variants[variant], c};
        struct function f = {attention_value, &a};
        reference_attention_backward(&a.op, c, dq, dk, dv);
        cr_expect_lt(gradient_error(f, q, TOKENS * A * D, dq), TOLERANCE);
        cr_expect_lt(gradient_error(f, k, TOKENS * G * D, dk), TOLERANCE);
        cr_expect_lt(gradient_error(f, v, TOKENS * G * D, dv), TOLERANCE);
        dk[0] += 1e-4;
        cr_expect_gt(gradient_error(f, k, TOKENS * G * D, dk), TOLERANCE,
                     "the injected fault was not detected");
    }
    fixture_close(&fixture);
}

struct loss_case {
    const double *logits;
    const int32_t *label;
    const float *mask;
};

static double loss_value(const void *context)
{
    const struct loss_case *l = context;
    return reference_loss_forward(ROWS, COLUMNS, l->logits, l->label, l->mask);
}

Test(reference, loss)
{
    struct fixture fixture = fixture_open(1);
    const int32_t label[ROWS] = {6, 0, 3};
    const float mask[ROWS] = {1.0F, 0.0F, 0.5F};
    double *logits = normals(&fixture, "logits", ROWS * COLUMNS), dlogits[ROWS * COLUMNS];
    struct loss_case l = {logits, label, mask};
    struct function f = {loss_value, &l};
    reference_loss_backward(ROWS, COLUMNS, logits, label, mask, dlogits);
    cr_expect_lt(gradient_error(f, logits, ROWS * COLUMNS, dlogits), TOLERANCE);
    dlogits[2] *= 1.0001;
    cr_expect_gt(gradient_error(f, logits, ROWS * COLUMNS, dlogits), TOLERANCE,
                 "the injected fault was not detected");
    fixture_close(&fixture);
}

/* The first step from zero moments is lr against the gradient's sign, whatever its size, plus the decay:
 * m/correction1 = g and v/correction2 = g^2. */
Test(reference, adamw_first_step)
{
    struct reference_adamw hyper = {0.01, 0.9, 0.99, 0.0, 0.1, 0.01, 1.0, 0.5};
    double w = 2.0, m = 0.0, v = 0.0;
    reference_adamw(&hyper, -37.0, &w, &m, &v);
    cr_expect_lt(fabs(w - (2.0 + 0.01 - 0.01 * 0.5 * 2.0)), 1e-14);
    cr_expect_lt(fabs(m - -3.7), 1e-13);
    cr_expect_lt(fabs(v - 13.69), 1e-13);
}
