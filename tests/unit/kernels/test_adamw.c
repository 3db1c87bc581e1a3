// SPDX-License-Identifier: Apache-2.0
/* AdamW over many steps against float64, with a run's scalars (optimizer_hyper). A slightly wrong constant,
 * such as a 1 - beta computed in fp32, is far below the rounding error of one element in one step, so there
 * are two tests:
 *
 *     the first 20 steps   weight, m and v of each element, within the rounding of the steps so far
 *     thousands of steps   the mean of v / exact v over elements, whose rounding errors average out: if decay
 *                          and share do not add up to 1, it drifts over 1 / (1 - beta) steps */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"
#include "trainer/optimizer/optimizer.h"

#include <criterion/criterion.h>
#include <math.h>

enum { ELEMENTS = 256 };

struct state {
    float *weight, *gradient, *m, *v;
    struct adamw_hyper *hyper;
};
struct exact {
    double w, m, v, w_error, m_error, v_error;
};

static const double betas[][2] = {{0.9, 0.999},    {0.9, 0.9999},          {0.9, 0.95},
                                  {0.99, 0.99999}, {0.875, 1.0 - 0x1p-10}, {0.0, 0.0}};
enum { BETAS = sizeof betas / sizeof *betas };

static struct recipe_optimizer recipe_of(const double beta[2])
{
    return (struct recipe_optimizer){.lr = 1e-3,
                                     .lr_decay_style = LR_CONSTANT,
                                     .adam_beta1 = beta[0],
                                     .adam_beta2 = beta[1],
                                     .adam_eps = 1e-8,
                                     .weight_decay = 0.1};
}

static struct state state_of(struct fixture *fixture, struct adamw_hyper *hyper)
{
    struct state s = {fixture_normals(fixture, "weight", ELEMENTS, 1.0), fixture_floats(fixture, ELEMENTS),
                      fixture_floats(fixture, ELEMENTS), fixture_floats(fixture, ELEMENTS), hyper};
    fixture_register(fixture, hyper, sizeof *hyper);
    for (int i = 0; i < ELEMENTS; i++)
        s.m[i] = s.v[i] = 0.0F;
    return s;
}

/* Of either sign, and of different sizes per element and step: from 2^-19 to 2. */
static void draw_gradients(int64_t step, float *out)
{
    struct philox generator = philox_named(7, "gradients");
    philox_normal(generator, (uint64_t)step, 0, ELEMENTS, out);
    for (int i = 0; i < ELEMENTS; i++)
        out[i] = ldexpf(out[i], -(i % 17));
}

static void take_step(struct fixture *fixture, const struct state *s, const struct recipe_optimizer *recipe,
                      int64_t step)
{
    *s->hyper = optimizer_hyper(recipe, step);
    s->hyper->gradient_scale = 1.0F;
    draw_gradients(step, s->gradient);
    struct adamw op = {.weight = tensor_1d(s->weight, F32, ELEMENTS),
                       .gradient = tensor_1d(s->gradient, F32, ELEMENTS),
                       .m = tensor_1d(s->m, F32, ELEMENTS),
                       .v = tensor_1d(s->v, F32, ELEMENTS),
                       .hyper = s->hyper,
                       .decay = true};
    cr_assert_eq(adamw(fixture->stream, op), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture->stream), OK, "%s", fail_text());
}

static struct reference_adamw reference_of(const struct recipe_optimizer *o, int64_t step)
{
    return (struct reference_adamw){.lr = o->lr,
                                    .beta1 = o->adam_beta1,
                                    .beta2 = o->adam_beta2,
                                    .epsilon = o->adam_eps,
                                    .correction1 = 1.0 - pow(o->adam_beta1, (double)step),
                                    .correction2 = 1.0 - pow(o->adam_beta2, (double)step),
                                    .gradient_scale = 1.0,
                                    .weight_decay = o->weight_decay};
}

/* The bounds: each constant and each operation has a relative error of UNIT, to first order. */
static void exact_step(struct exact *e, const struct reference_adamw *o, double g)
{
    double r1 = 1.0 - o->beta1, r2 = 1.0 - o->beta2, m = e->m, v = e->v;
    reference_adamw(o, g, &e->w, &e->m, &e->v);
    e->m_error = o->beta1 * e->m_error + UNIT * ((1.0 + r1) * fabs(m) + 2.0 * r1 * fabs(g) + fabs(e->m));
    e->v_error = o->beta2 * e->v_error + UNIT * ((1.0 + r2) * v + 3.0 * r2 * g * g + e->v);
    double root = sqrt(e->v / o->correction2) + o->epsilon, update = fabs(e->m / o->correction1 / root);
    double update_error = e->m_error / o->correction1 / root +
                          update * (e->v > 0.0 ? e->v_error / (2.0 * e->v) : 0.0) + UNIT * 6.0 * update;
    double decayed = fabs(o->weight_decay * e->w);
    e->w_error = (1.0 + o->lr * o->weight_decay) * e->w_error +
                 o->lr * (update_error + UNIT * (3.0 * update + 5.0 * decayed)) + UNIT * fabs(e->w);
}

static int outside(double got, double want, double error)
{
    return !(fabs(got - want) <= error);
}

Test(adamw, twenty_steps_against_float64)
{
    for (int b = 0; b < BETAS; b++) {
        struct fixture fixture = fixture_open(1);
        const struct recipe_optimizer recipe = recipe_of(betas[b]);
        struct adamw_hyper hyper;
        const struct state s = state_of(&fixture, &hyper);
        struct exact exact[ELEMENTS] = {0};
        int wrong = 0, undetected = 0;
        for (int i = 0; i < ELEMENTS; i++)
            exact[i].w = (double)s.weight[i];
        for (int64_t step = 1; step <= 20; step++) {
            const struct reference_adamw reference = reference_of(&recipe, step);
            take_step(&fixture, &s, &recipe, step);
            for (int i = 0; i < ELEMENTS; i++) {
                struct exact *e = &exact[i];
                exact_step(e, &reference, (double)s.gradient[i]);
                wrong += outside((double)s.weight[i], e->w, e->w_error);
                wrong += outside((double)s.m[i], e->m, e->m_error);
                wrong += outside((double)s.v[i], e->v, e->v_error);
                // The error of a 1 - beta2 from an fp32 0.999, in every step.
                undetected +=
                    recipe.adam_beta2 > 0.5 && !outside((double)s.v[i] * (1.0 - 1.29e-5), e->v, e->v_error);
            }
        }
        cr_expect_eq(wrong, 0, "betas %g, %g: %d values outside", recipe.adam_beta1, recipe.adam_beta2,
                     wrong);
        cr_expect_eq(undetected, 0, "betas %g, %g: a v that is 1.29e-5 too small is not detected",
                     recipe.adam_beta1, recipe.adam_beta2);
        fixture_close(&fixture);
    }
}

/* The mean over elements of v / exact v - 1. */
static double drift(struct fixture *fixture, const struct recipe_optimizer *recipe, int64_t steps)
{
    struct adamw_hyper hyper;
    const struct state s = state_of(fixture, &hyper);
    double v[ELEMENTS] = {0.0}, sum = 0.0;
    for (int64_t step = 1; step <= steps; step++) {
        take_step(fixture, &s, recipe, step);
        for (int i = 0; i < ELEMENTS; i++)
            v[i] = recipe->adam_beta2 * v[i] +
                   (1.0 - recipe->adam_beta2) * (double)s.gradient[i] * (double)s.gradient[i];
    }
    for (int i = 0; i < ELEMENTS; i++)
        sum += (double)s.v[i] / v[i] - 1.0;
    return sum / ELEMENTS;
}

/* The rounding errors of an element's v are independent between steps: at most 2 UNIT each, 0.6 UNIT root
 * mean square, over 1 / (2 (1 - beta2)) steps; for the mean over elements 1/16 of that. */
Test(adamw, does_not_drift)
{
    const struct {
        double beta2;
        int64_t steps;
    } cases[] = {{0.999, fixture_is_emulated ? 1000 : 4000}, {1.0 - 0x1p-10, 4000}};
    for (int c = 0; c < 2 - fixture_is_emulated; c++) {
        const struct recipe_optimizer recipe = recipe_of((double[]){0.9, cases[c].beta2});
        struct fixture fixture = fixture_open(1);
        double mean = drift(&fixture, &recipe, cases[c].steps);
        fixture_close(&fixture);
        double deviation = 0.6 * UNIT * sqrt(0.5 / (1.0 - cases[c].beta2)) / 16.0;
        printf("beta2 %g: v is off by %.2g on average, deviation %.2g\n", cases[c].beta2, mean, deviation);
        cr_expect_leq(fabs(mean), 8.0 * deviation, "beta2 %g: %g, more than 8 deviations of %g",
                      cases[c].beta2, mean, deviation);
    }
}

/* Each scalar is a double, rounded once; also after so many steps that beta^t is 0. */
Test(adamw, scalars_of_a_step)
{
    for (int b = 0; b < BETAS; b++)
        for (int64_t step = 1; step <= 1000000000000; step *= 10) {
            const struct recipe_optimizer o = recipe_of(betas[b]);
            const struct adamw_hyper hyper = optimizer_hyper(&o, step);
            long double power1 = powl((long double)o.adam_beta1, (long double)step),
                        power2 = powl((long double)o.adam_beta2, (long double)step);
            const struct {
                const char *name;
                float got;
                long double want;
            } scalars[] = {{"lr", hyper.lr, 1e-3L},
                           {"1 - beta1", hyper.one_minus_beta1, 1.0L - (long double)o.adam_beta1},
                           {"1 - beta2", hyper.one_minus_beta2, 1.0L - (long double)o.adam_beta2},
                           {"epsilon", hyper.epsilon, 1e-8L},
                           {"correction1", hyper.correction1, 1.0L - power1},
                           {"correction2", hyper.correction2, 1.0L - power2},
                           {"weight_decay", hyper.weight_decay, 0.1L}};
            for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++)
                cr_expect(fabsl((long double)scalars[i].got / scalars[i].want - 1.0L) <= 1.001L * UNIT,
                          "%s at step %lld of betas %g, %g: %.9g, not %.9Lg", scalars[i].name,
                          (long long)step, o.adam_beta1, o.adam_beta2, (double)scalars[i].got,
                          scalars[i].want);
        }
}
