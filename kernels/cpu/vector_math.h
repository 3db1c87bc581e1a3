// SPDX-License-Identifier: Apache-2.0
/* One register of floats at a time: sixteen with AVX-512, eight with AVX, four elsewhere. Each lane executes
 * the same IEEE operations in the same order, so an element's bits do not depend on its lane or on the row's
 * tail (a partial vector is zero-padded and follows the same code path).
 *
 *     sum of a row:   lane l adds elements l, l + LANES, l + 2 LANES ...;  then halves, to one: 8 4 2 1
 *
 * The tree depends on the index in the row alone, so equal values have equal sums at any address.
 *
 * The functions have no branches. Bounds, over every float, in units in the last place of the result (checked
 * by tests/unit/kernels/test_vector_math.c, against libm in double precision):
 *     vec_exp            2 ulp; results below 2^-126 are 0; -inf gives 0, +inf and overflow inf, NaN NaN
 *     vec_sigmoid        4 ulp, its slope 5; as exp
 *     vec_tanh           3 ulp; NaN gives NaN
 *     vec_normal_cdf     7 ulp down to x = -1; absolute 2^-22 everywhere (a tail's relative error grows
 *                        with x*x/2, as the rounding of the exponent does)
 *     vecd_sincos        2^-40 absolute for angles up to 2^20; with FMA, to 2^31
 *
 * Caution: the number of lanes and the rounding of vec_fma depend on the processor. Two builds may differ in
 * the last bits; one build never does. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#define VECTOR_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { LANES = 16 };
#define EACH_LANE(x) \
    x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7), x(8), x(9), x(10), x(11), x(12), x(13), x(14), x(15)
#elif defined(__AVX__)
enum { LANES = 8 };
#define EACH_LANE(x) x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)
#else
enum { LANES = 4 };
#define EACH_LANE(x) x(0), x(1), x(2), x(3)
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t veci __attribute__((vector_size(LANES * 4)));
typedef uint32_t vecu __attribute__((vector_size(LANES * 4)));
/* A register of half as many doubles, their bits, and the floats they are converted from. */
typedef double vecd __attribute__((vector_size(LANES * 4)));
typedef int64_t vecl __attribute__((vector_size(LANES * 4)));
typedef float vech __attribute__((vector_size(LANES * 2)));
enum { LANES_DOUBLE = LANES / 2 };

VECTOR_INLINE vec vec_all(float x)
{
#define THE_SAME(l) x
    return (vec){EACH_LANE(THE_SAME)};
}

VECTOR_INLINE veci veci_all(int32_t x)
{
    return (veci){EACH_LANE(THE_SAME)};
#undef THE_SAME
}

/* Lane l holds l. */
VECTOR_INLINE veci veci_lanes(void)
{
#define ITS_INDEX(l) l
    return (veci){EACH_LANE(ITS_INDEX)};
#undef ITS_INDEX
}

VECTOR_INLINE vec vec_load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

VECTOR_INLINE void vec_store(float *to, vec x)
{
    memcpy(to, &x, sizeof x);
}

/* Prefetches one page ahead: hardware prefetching stops at page boundaries, and passes over large arrays gain
 * a third to a half. Harmless past an array's end. */
VECTOR_INLINE void vec_ahead(const float *x)
{
    enum { AHEAD = 1024 };
    __builtin_prefetch((const char *)x + AHEAD * sizeof *x);
}

/* Loads the first `count` lanes, 0 < count <= LANES, without touching memory after them; the other lanes are
 * 0. */
VECTOR_INLINE vec vec_load_part(const float *from, int64_t count)
{
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1U << count) - 1U), from);
#elif defined(__AVX__)
    return (vec)_mm256_maskload_ps(from, (__m256i)(veci_lanes() < (int32_t)count));
#else
    float lane[LANES] = {0};
    for (int64_t l = 0; l < count; l++)
        lane[l] = from[l];
    return vec_load(lane);
#endif
}

VECTOR_INLINE void vec_store_part(float *to, vec x, int64_t count)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1U << count) - 1U), (__m512)x);
#elif defined(__AVX__)
    _mm256_maskstore_ps(to, (__m256i)(veci_lanes() < (int32_t)count), (__m256)x);
#else
    float lane[LANES];
    vec_store(lane, x);
    for (int64_t l = 0; l < count; l++)
        to[l] = lane[l];
#endif
}

/* a * b + c. */
VECTOR_INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* mask ? yes : no, for a mask from a comparison. */
VECTOR_INLINE vec vec_select(veci mask, vec yes, vec no)
{
#if defined(__AVX__) && !defined(__AVX512F__)
    return (vec)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vec)(((veci)yes & mask) | ((veci)no & ~mask));
#endif
}

/* a < b ? yes : no. A NaN is not less. */
VECTOR_INLINE vec vec_select_less(vec a, vec b, vec yes, vec no)
{
#if defined(__AVX512F__)
    return (vec)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no,
                                     (__m512)yes);
#else
    return vec_select(a < b, yes, no);
#endif
}

/* b < a ? a : b: NaN in b propagates, NaN in a is dropped. */
VECTOR_INLINE vec vec_max(vec a, vec b)
{
    return vec_select_less(b, a, a, b);
}

VECTOR_INLINE vec vec_abs(vec x)
{
    return (vec)((veci)x & veci_all(INT32_MAX));
}

/* x clamped to [-limit, limit]; NaN propagates. */
VECTOR_INLINE vec vec_clamp(vec x, float limit)
{
    x = vec_select_less(vec_all(limit), x, vec_all(limit), x);
    return vec_select_less(x, vec_all(-limit), vec_all(-limit), x);
}

/* The first `count` lanes of x, 0 in the others. */
VECTOR_INLINE vec vec_first(vec x, int64_t count)
{
    return (vec)((veci)x & (veci)(veci_lanes() < veci_all((int32_t)count)));
}

/* Interleaves the lanes of a and b, from the first halves or from the second. */
VECTOR_INLINE vec vec_interleave_first(vec a, vec b)
{
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX__)
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}

VECTOR_INLINE vec vec_interleave_second(vec a, vec b)
{
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX__)
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* The tree: lanes LANES/2 apart, then half of that, down to 1. */
VECTOR_INLINE float vec_sum(vec x)
{
    float lane[LANES];
    vec_store(lane, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

VECTOR_INLINE float vec_largest(vec x)
{
    float lane[LANES];
    vec_store(lane, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] = lane[l] > lane[l + width] ? lane[l] : lane[l + width];
    return lane[0];
}

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln(2)/2, and e^r = 1 + r + r^2 q(r) with q of degree 4
 * (minimax, 3e-9). Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits; ln 2 is subtracted in
 * two parts, the first short enough for n times it to be exact. */
VECTOR_INLINE vec vec_exp(vec x)
{
    const vec magic = vec_all(0x1.8p23F);
    vec shifted = vec_fma(x, vec_all(0x1.715476p0F), magic);
    vec n = shifted - magic;
    vec r = vec_fma(n, vec_all(-0.693359375F), x);
    r = vec_fma(n, vec_all(2.12194440e-4F), r);

    vec q = vec_all(0x1.6a240ep-10F);
    q = vec_fma(q, r, vec_all(0x1.123a10p-7F));
    q = vec_fma(q, r, vec_all(0x1.5558f2p-5F));
    q = vec_fma(q, r, vec_all(0x1.555492p-3F));
    q = vec_fma(q, r, vec_all(0x1.fffffcp-2F));
    vec e = vec_fma(r * r, q, r) + 1.0F;

    // n is added to the exponent field; the two ends of the range, where it does not fit, are handled
    // separately.
    e = (vec)((vecu)e + ((vecu)shifted << 23));
    e = vec_select_less(x, vec_all(-87.33654F), vec_all(0.0F), e);
    return vec_select_less(x, vec_all(88.72284F), e, x * 0x1p127F);
}

/* 1 / (1 + e^-x), and its slope s (1 - s), neither with cancellation. */
VECTOR_INLINE vec vec_sigmoid(vec x, vec *slope)
{
    vec e = vec_exp(-vec_abs(x));
    vec r = 1.0F / (1.0F + e);
    *slope = e * r * r;
    return vec_select_less(x, vec_all(0.0F), e * r, r);
}

/* With a = |x|: for a < 0.625 an odd polynomial (Cephes), else (1 - e^-2a) / (1 + e^-2a). */
VECTOR_INLINE vec vec_tanh(vec x)
{
    vec a = vec_abs(x), z = x * x, e = vec_exp(-2.0F * a);
    vec p = vec_all(-5.70498872745e-3F);
    p = vec_fma(p, z, vec_all(2.06390887954e-2F));
    p = vec_fma(p, z, vec_all(-5.37397155531e-2F));
    p = vec_fma(p, z, vec_all(1.33314422036e-1F));
    p = vec_fma(p, z, vec_all(-3.33332819422e-1F));
    vec t = vec_select_less(a, vec_all(0.625F), vec_fma(p * z, a, a), (1.0F - e) / (1.0F + e));
    return (vec)((veci)t | ((veci)x & veci_all(INT32_MIN)));
}

/* The cumulative distribution of the standard normal, 1/2 (1 + erf(x/sqrt 2)), and its density.
 * With a = |x|, r = 1/(a + 3), t = (a - 3) r:  cdf(-a) = e^(-a^2/2) r P(t), P of degree 8 (minimax,
 * 4e-8): the exponential serves both. */
VECTOR_INLINE vec vec_normal_cdf(vec x, vec *density)
{
    vec a = vec_abs(vec_clamp(x, 14.0F)); // beyond 13.2 the exponential is 0
    vec e = vec_exp(-0.5F * a * a);
    vec r = 1.0F / (a + 3.0F), t = (a - 3.0F) * r;
    vec p = vec_all(-0.000270633066209F);
    p = vec_fma(p, t, vec_all(-0.000909029548959F));
    p = vec_fma(p, t, vec_all(0.0010771200869F));
    p = vec_fma(p, t, vec_all(0.00692789725074F));
    p = vec_fma(p, t, vec_all(-0.0104796620577F));
    p = vec_fma(p, t, vec_all(-0.0472569045659F));
    p = vec_fma(p, t, vec_all(0.230019286984F));
    p = vec_fma(p, t, vec_all(-0.509332243475F));
    p = vec_fma(p, t, vec_all(0.729083670202F));
    vec tail = e * r * p;
    *density = e * 0.398942280401F;
    return vec_select_less(x, vec_all(0.0F), tail, 1.0F - tail);
}

VECTOR_INLINE vecd vecd_all(double x)
{
    vecd all;
    for (int l = 0; l < LANES_DOUBLE; l++)
        all[l] = x;
    return all;
}

/* Converts half a vector of floats to doubles. */
VECTOR_INLINE vecd vecd_widen(const float *from)
{
    vech x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, vecd);
}

VECTOR_INLINE vecd vecd_fma(vecd a, vecd b, vecd c)
{
#if defined(__AVX512F__)
    return (vecd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (vecd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

/* angle = n pi/2 + r, |r| <= pi/4, with pi/2 in three parts, so that n times the first two is exact for n up
 * to 2^20 even without FMA; Taylor series of sin r and cos r to r^13 and r^14, far more accurate than fp32
 * needs; n mod 4 selects between them and their signs. */
VECTOR_INLINE void vecd_sincos(vecd angle, vecd *sine, vecd *cosine)
{
    const vecd magic = vecd_all(0x1.8p52);
    vecd shifted = vecd_fma(angle, vecd_all(0x1.45f306dc9c883p-1), magic);
    vecd n = shifted - magic;
    vecd r = vecd_fma(n, vecd_all(-0x1.921fb544p0), angle);
    r = vecd_fma(n, vecd_all(-0x1.0b4611a6p-34), r);
    r = vecd_fma(n, vecd_all(-0x1.3198a2e037073p-69), r);
    vecd r2 = r * r;
    vecd s = vecd_all(1.0 / 6227020800.0), c = vecd_all(-1.0 / 87178291200.0);
    const double s_terms[] = {-1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0};
    const double c_terms[] = {
        1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0};
    for (int i = 0; i < 6; i++)
        s = vecd_fma(s, r2, vecd_all(s_terms[i]));
    for (int i = 0; i < 7; i++)
        c = vecd_fma(c, r2, vecd_all(c_terms[i]));
    s *= r;

    vecl quarter = (vecl)shifted;
    vecl odd = (vecl)((quarter & 1) != 0);
    vecl sine_sign = (quarter & 2) << 62, cosine_sign = ((quarter + 1) & 2) << 62;
    *sine = (vecd)((((vecl)c & odd) | ((vecl)s & ~odd)) ^ sine_sign);
    *cosine = (vecd)((((vecl)s & odd) | ((vecl)c & ~odd)) ^ cosine_sign);
}
