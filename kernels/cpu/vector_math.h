// SPDX-License-Identifier: Apache-2.0
/* Sixteen floats at a time, on every processor. The compiler's vector types become one AVX-512
 * register, two of AVX2, four of SSE or NEON; each lane sees the same IEEE operations in the same
 * order, so an element's bits do not depend on the lane it sits in, nor on a row's tail (a partial
 * vector is loaded with zeros behind it and goes through the same code).
 *
 *     sum of a row:   lane l adds elements l, l + 16, l + 32 ...;  then 16 -> 8 -> 4 -> 2 -> 1
 *
 * That tree is a function of the index in the row alone, so equal numbers have equal sums wherever
 * the row lies.
 *
 * The functions take no branches. Bounds, over every float, in units in the last place of the result
 * (tests/unit/test_vector_math.c holds them to it, against libm in double precision):
 *     v16_exp            2 ulp; results below 2^-126 are 0; -inf gives 0, +inf and overflow inf, NaN NaN
 *     v16_sigmoid        4 ulp, its slope 5; as exp
 *     v16_normal_cdf     7 ulp down to x = -1; absolute 2^-22 everywhere (a tail's relative error grows
 *                        with x*x/2, as the rounding of the exponent does)
 *     v8d_sincos         2^-40 absolute for angles up to 2^20; with FMA, to 2^31
 *
 * The trap: v16_fma is one rounding where the processor has it and two where not. So two builds may
 * differ in the last bit; one build never does. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

// Vectors never cross a compiled call here (everything is inlined), so their calling convention is moot.
#pragma GCC diagnostic ignored "-Wpsabi"

#define VECTOR_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef double v8d __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));
typedef int64_t v8i __attribute__((vector_size(64)));

VECTOR_INLINE v16 v16_all(float x)
{
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VECTOR_INLINE v16i v16i_all(int32_t x)
{
    return (v16i){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* Lane l holds l. */
VECTOR_INLINE v16i v16i_lanes(void)
{
    return (v16i){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

VECTOR_INLINE v16 v16_load(const float *from)
{
    v16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

VECTOR_INLINE void v16_store(float *to, v16 x)
{
    memcpy(to, &x, sizeof x);
}

/* Asks for what will be read a page later: the hardware's own prefetching stops at the end of a page, and
 * passes over large arrays gain a third to a half. Beyond an array's end it does no harm. */
VECTOR_INLINE void v16_ahead(const float *x)
{
    enum { AHEAD = 1024 };
    __builtin_prefetch((const char *)x + AHEAD * sizeof *x);
}

/* The first `count` lanes, 0 < count <= 16; nothing behind them is touched, and the other lanes are 0. */
VECTOR_INLINE v16 v16_load_part(const float *from, int64_t count)
{
#if defined(__AVX512F__)
    return (v16)_mm512_maskz_loadu_ps((__mmask16)((1U << count) - 1U), from);
#else
    float lane[LANES] = {0};
    for (int64_t l = 0; l < count; l++)
        lane[l] = from[l];
    return v16_load(lane);
#endif
}

VECTOR_INLINE void v16_store_part(float *to, v16 x, int64_t count)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1U << count) - 1U), (__m512)x);
#else
    float lane[LANES];
    v16_store(lane, x);
    for (int64_t l = 0; l < count; l++)
        to[l] = lane[l];
#endif
}

/* a * b + c. */
VECTOR_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
#if defined(__AVX512F__)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union halves {
        v16 whole;
        __m256 half[2];
    } x = {a}, y = {b}, z = {c};
    z.half[0] = _mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]);
    z.half[1] = _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1]);
    return z.whole;
#else
    return a * b + c;
#endif
}

/* mask ? yes : no, where a comparison made the mask. */
VECTOR_INLINE v16 v16_select(v16i mask, v16 yes, v16 no)
{
    return (v16)(((v16i)yes & mask) | ((v16i)no & ~mask));
}

/* a < b ? yes : no. A NaN is not less. */
VECTOR_INLINE v16 v16_select_less(v16 a, v16 b, v16 yes, v16 no)
{
#if defined(__AVX512F__)
    return (v16)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no,
                                     (__m512)yes);
#else
    return v16_select(a < b, yes, no);
#endif
}

/* b < a ? a : b: so a NaN in b stays, and one in a is dropped. */
VECTOR_INLINE v16 v16_max(v16 a, v16 b)
{
    return v16_select_less(b, a, a, b);
}

VECTOR_INLINE v16 v16_abs(v16 x)
{
    return (v16)((v16i)x & v16i_all(INT32_MAX));
}

/* x within [-limit, limit]; NaN stays. */
VECTOR_INLINE v16 v16_clamp(v16 x, float limit)
{
    x = v16_select_less(v16_all(limit), x, v16_all(limit), x);
    return v16_select_less(x, v16_all(-limit), v16_all(-limit), x);
}

/* The first `count` lanes of x, 0 in the others. */
VECTOR_INLINE v16 v16_first(v16 x, int64_t count)
{
    return (v16)((v16i)x & (v16i)(v16i_lanes() < v16i_all((int32_t)count)));
}

/* The tree: lanes 8 apart, then 4, 2, 1. */
VECTOR_INLINE float v16_sum(v16 x)
{
    float lane[LANES];
    v16_store(lane, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

VECTOR_INLINE float v16_largest(v16 x)
{
    float lane[LANES];
    v16_store(lane, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] = lane[l] > lane[l + width] ? lane[l] : lane[l + width];
    return lane[0];
}

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln(2)/2, and e^r = 1 + r + r^2 q(r) with q of degree 4
 * (minimax, 3e-9). Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits; ln 2 is taken
 * off in two pieces, the first short enough for n times it to be exact. */
VECTOR_INLINE v16 v16_exp(v16 x)
{
    const v16 magic = v16_all(0x1.8p23F);
    v16 shifted = v16_fma(x, v16_all(0x1.715476p0F), magic);
    v16 n = shifted - magic;
    v16 r = v16_fma(n, v16_all(-0.693359375F), x);
    r = v16_fma(n, v16_all(2.12194440e-4F), r);

    v16 q = v16_all(0x1.6a240ep-10F);
    q = v16_fma(q, r, v16_all(0x1.123a10p-7F));
    q = v16_fma(q, r, v16_all(0x1.5558f2p-5F));
    q = v16_fma(q, r, v16_all(0x1.555492p-3F));
    q = v16_fma(q, r, v16_all(0x1.fffffcp-2F));
    v16 e = v16_fma(r * r, q, r) + 1.0F;

    // n goes straight into the exponent; the two ends, where it does not fit, are put right by hand.
    e = (v16)((v16u)e + ((v16u)shifted << 23));
    e = v16_select_less(x, v16_all(-87.33654F), v16_all(0.0F), e);
    return v16_select_less(x, v16_all(88.72284F), e, x * 0x1p127F);
}

/* 1 / (1 + e^-x), and its slope s (1 - s), neither with cancellation. */
VECTOR_INLINE v16 v16_sigmoid(v16 x, v16 *slope)
{
    v16 e = v16_exp(-v16_abs(x));
    v16 r = 1.0F / (1.0F + e);
    *slope = e * r * r;
    return v16_select_less(x, v16_all(0.0F), e * r, r);
}

/* The cumulative distribution of the standard normal, 1/2 (1 + erf(x/sqrt 2)), and its density.
 * With a = |x|, r = 1/(a + 3), t = (a - 3) r:  cdf(-a) = e^(-a^2/2) r P(t), P of degree 8 (minimax,
 * 4e-8): the exponential serves both. */
VECTOR_INLINE v16 v16_normal_cdf(v16 x, v16 *density)
{
    v16 a = v16_abs(v16_clamp(x, 14.0F)); // beyond 13.2 the exponential is 0
    v16 e = v16_exp(-0.5F * a * a);
    v16 r = 1.0F / (a + 3.0F), t = (a - 3.0F) * r;
    v16 p = v16_all(-0.000270633066209F);
    p = v16_fma(p, t, v16_all(-0.000909029548959F));
    p = v16_fma(p, t, v16_all(0.0010771200869F));
    p = v16_fma(p, t, v16_all(0.00692789725074F));
    p = v16_fma(p, t, v16_all(-0.0104796620577F));
    p = v16_fma(p, t, v16_all(-0.0472569045659F));
    p = v16_fma(p, t, v16_all(0.230019286984F));
    p = v16_fma(p, t, v16_all(-0.509332243475F));
    p = v16_fma(p, t, v16_all(0.729083670202F));
    v16 tail = e * r * p;
    *density = e * 0.398942280401F;
    return v16_select_less(x, v16_all(0.0F), tail, 1.0F - tail);
}

VECTOR_INLINE v8d v8d_all(double x)
{
    return (v8d){x, x, x, x, x, x, x, x};
}

/* Eight floats as doubles. */
VECTOR_INLINE v8d v8d_widen(const float *from)
{
    v8f x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, v8d);
}

VECTOR_INLINE v8d v8d_fma(v8d a, v8d b, v8d c)
{
#if defined(__AVX512F__)
    return (v8d)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    union halves {
        v8d whole;
        __m256d half[2];
    } x = {a}, y = {b}, z = {c};
    z.half[0] = _mm256_fmadd_pd(x.half[0], y.half[0], z.half[0]);
    z.half[1] = _mm256_fmadd_pd(x.half[1], y.half[1], z.half[1]);
    return z.whole;
#else
    return a * b + c;
#endif
}

/* angle = n pi/2 + r, |r| <= pi/4, with pi/2 in three pieces, so that n times the first two is exact for n
 * up to 2^20 even without FMA; Taylor's series of sin r and cos r to r^13 and r^14, far below
 * fp32's need; n mod 4 says which of them is which, and their signs. */
VECTOR_INLINE void v8d_sincos(v8d angle, v8d *sine, v8d *cosine)
{
    const v8d magic = v8d_all(0x1.8p52);
    v8d shifted = v8d_fma(angle, v8d_all(0x1.45f306dc9c883p-1), magic);
    v8d n = shifted - magic;
    v8d r = v8d_fma(n, v8d_all(-0x1.921fb544p0), angle);
    r = v8d_fma(n, v8d_all(-0x1.0b4611a6p-34), r);
    r = v8d_fma(n, v8d_all(-0x1.3198a2e037073p-69), r);
    v8d r2 = r * r;
    v8d s = v8d_all(1.0 / 6227020800.0), c = v8d_all(-1.0 / 87178291200.0);
    const double s_terms[] = {-1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0};
    const double c_terms[] = {
        1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0};
    for (int i = 0; i < 6; i++)
        s = v8d_fma(s, r2, v8d_all(s_terms[i]));
    for (int i = 0; i < 7; i++)
        c = v8d_fma(c, r2, v8d_all(c_terms[i]));
    s *= r;

    v8i quarter = (v8i)shifted;
    v8i odd = (v8i)((quarter & 1) != 0);
    v8i sine_sign = (quarter & 2) << 62, cosine_sign = ((quarter + 1) & 2) << 62;
    *sine = (v8d)((((v8i)c & odd) | ((v8i)s & ~odd)) ^ sine_sign);
    *cosine = (v8d)((((v8i)s & odd) | ((v8i)c & ~odd)) ^ cosine_sign);
}
