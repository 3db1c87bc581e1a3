// SPDX-License-Identifier: Apache-2.0
/* The vector functions against libm in double precision, over all floats: every 601st bit pattern, which
 * visits each exponent of either sign some fourteen thousand times. */
#include "kernels/cpu/vector_math.h"

#include <criterion/criterion.h>
#include <math.h>

enum { PATTERN_STEP = 601 };

/* One unit in the last place of a float of this size. */
static double ulp(double value)
{
    int exponent;
    frexp(fmax(fabs(value), 0x1p-126), &exponent);
    return ldexp(1.0, exponent - 24);
}

struct function {
    vec (*lanes)(vec x);
    double (*exact)(double x);
    double ulps;  // allowed if the result is above `floor`
    double floor; // below it, `absolute` is allowed
    double absolute;
};

/* *where: the first float that is out of bounds, or the number of lost NaNs. */
static double worst_over_all_floats(const struct function *f, float *where)
{
    double worst = 0.0;
    for (uint64_t begin = 0; begin < UINT64_C(1) << 32; begin += (uint64_t)LANES * PATTERN_STEP) {
        vecu pattern;
        for (unsigned l = 0; l < LANES; l++)
            pattern[l] = (uint32_t)(begin + (uint64_t)l * PATTERN_STEP);
        vec x = (vec)pattern, y = f->lanes(x);
        for (int l = 0; l < LANES; l++) {
            if (isnan(x[l])) {
                worst = isnan(y[l]) ? worst : INFINITY;
                continue;
            }
            double want = f->exact((double)x[l]), got = (double)y[l];
            if (got == want || (want > 0x1.fffffep127 && isinf(got)))
                continue;
            double allowed = fabs(want) < f->floor ? f->absolute : f->ulps * ulp(want);
            double ratio = fabs(got - want) / allowed;
            if (!(ratio <= worst)) {
                worst = ratio;
                *where = x[l];
            }
        }
    }
    return worst;
}

static vec sigmoid_lanes(vec x)
{
    vec slope;
    return vec_sigmoid(x, &slope);
}

static vec sigmoid_slope_lanes(vec x)
{
    vec slope;
    vec_sigmoid(x, &slope);
    return slope;
}

static vec cdf_lanes(vec x)
{
    vec density;
    return vec_normal_cdf(x, &density);
}

static vec density_lanes(vec x)
{
    vec density;
    vec_normal_cdf(x, &density);
    return density;
}

static vec exp_lanes(vec x)
{
    return vec_exp(x);
}

static vec exp_off_lanes(vec x)
{
    return vec_exp(x) * (1.0F + 0x1p-21F);
}

static vec tanh_lanes(vec x)
{
    return vec_tanh(x);
}

static double sigmoid_exact(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double sigmoid_slope_exact(double x)
{
    double e = exp(-fabs(x));
    return e / ((1.0 + e) * (1.0 + e));
}

static double cdf_exact(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

static double density_exact(double x)
{
    return exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
}

/* The documented bounds of vector_math.h. */
static const struct function functions[] = {
    {exp_lanes, exp, 2.0, 0x1p-126, 0x1p-126},
    {sigmoid_lanes, sigmoid_exact, 4.0, 0x1p-125, 0x1p-125},
    {sigmoid_slope_lanes, sigmoid_slope_exact, 5.0, 0x1p-125, 0x1p-125},
    {tanh_lanes, tanh, 3.0, 0x1p-126, 0x1p-126},
    {cdf_lanes, cdf_exact, 7.0, 0.158, 0x1p-22}, // 0.158: at x = -1
    {density_lanes, density_exact, 7.0, 0.24, 0x1p-23},
};

Test(vector_math, every_function_is_within_its_bound)
{
    for (int i = 0; i < (int)(sizeof functions / sizeof *functions); i++) {
        float where = 0.0F;
        double worst = worst_over_all_floats(&functions[i], &where);
        cr_expect_leq(worst, 1.0, "function %d: %g times its bound at %a", i, worst, (double)where);
    }
}

Test(vector_math, detects_an_injected_fault)
{
    struct function f = functions[0];
    f.lanes = exp_off_lanes;
    float where;
    cr_expect_gt(worst_over_all_floats(&f, &where), 1.0);
}

/* f of one value; all lanes agree. */
static float at(vec (*lanes)(vec x), float x)
{
    vec y = lanes(vec_all(x));
    for (int l = 1; l < LANES; l++)
        cr_assert(y[l] == y[0] || isnan(y[0]));
    return y[0];
}

Test(vector_math, range_limits)
{
    cr_expect(isinf(at(exp_lanes, INFINITY)) && at(exp_lanes, -INFINITY) == 0.0F &&
              isnan(at(exp_lanes, NAN)));
    cr_expect(at(exp_lanes, 0.0F) == 1.0F && at(exp_lanes, -0.0F) == 1.0F);
    cr_expect(isfinite(at(exp_lanes, 88.7228F)) && isinf(at(exp_lanes, 88.73F)) &&
              isinf(at(exp_lanes, 1e30F)));
    cr_expect(at(exp_lanes, -87.3F) > 0.0F && at(exp_lanes, -87.4F) == 0.0F && at(exp_lanes, -1e30F) == 0.0F);
    cr_expect(at(tanh_lanes, INFINITY) == 1.0F && at(tanh_lanes, -INFINITY) == -1.0F &&
              isnan(at(tanh_lanes, NAN)) && at(tanh_lanes, 1e30F) == 1.0F);
    cr_expect(at(cdf_lanes, INFINITY) == 1.0F && at(cdf_lanes, -INFINITY) == 0.0F &&
              isnan(at(cdf_lanes, NAN)));
    cr_expect(at(cdf_lanes, 0.0F) == 0.5F && at(cdf_lanes, 1e30F) == 1.0F);
    cr_expect(at(density_lanes, INFINITY) == 0.0F && at(density_lanes, -1e30F) == 0.0F &&
              isnan(at(density_lanes, NAN)));
    cr_expect(at(sigmoid_lanes, INFINITY) == 1.0F && at(sigmoid_lanes, -INFINITY) == 0.0F &&
              isnan(at(sigmoid_lanes, NAN)));
}

Test(vector_math, sines_and_cosines)
{
    for (double angle = 0.0; angle < 0x1p20; angle = angle * 1.0001 + 0.01) {
        vecd x, sine, cosine;
        for (int l = 0; l < LANES_DOUBLE; l++)
            x[l] = angle * (l % 2 == 0 ? 1.0 : -0.77) / (1.0 + l);
        vecd_sincos(x, &sine, &cosine);
        for (int l = 0; l < LANES_DOUBLE; l++) {
            cr_assert_lt(fabs(sine[l] - sin(x[l])), 0x1p-40, "sin %.17g is %.17g", x[l], sine[l]);
            cr_assert_lt(fabs(cosine[l] - cos(x[l])), 0x1p-40, "cos %.17g is %.17g", x[l], cosine[l]);
        }
    }
}

/* Each tail length: the valid lanes are loaded, the others are 0 and not accessed. */
Test(vector_math, tails)
{
    float line[3 * LANES], out[LANES];
    for (int i = 0; i < 3 * LANES; i++)
        line[i] = (float)(i + 1);
    for (int count = 1; count <= LANES; count++) {
        vec x = vec_load_part(line + 5, count), cut = vec_first(vec_load(line + 5), count);
        float sum = 0.0F;
        for (int l = 0; l < LANES; l++) {
            cr_assert_eq(x[l], l < count ? line[5 + l] : 0.0F);
            cr_assert_eq(cut[l], x[l]);
            sum += x[l]; // small integers: exact in any order
            out[l] = -1.0F;
        }
        cr_assert_eq(vec_sum(x), sum);
        cr_assert_eq(vec_largest(x), line[5 + count - 1]);
        vec_store_part(out, x, count);
        for (int l = 0; l < LANES; l++)
            cr_assert_eq(out[l], l < count ? x[l] : -1.0F);
    }
}
