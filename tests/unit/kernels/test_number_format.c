// SPDX-License-Identifier: Apache-2.0
/* Every code of every low-precision format, and every rounding boundary.
 *
 * The reference shares nothing with kernels/number_format.c: it decodes by the tables of the specifications,
 * in double precision, and rounds by searching all codes for the nearest. Between two neighbours the result
 * changes only at their midpoint. So testing each value, each midpoint, and the adjacent floats covers all
 * 2^32 inputs, provided that rounding is monotonic, which a scan of all exponents tests. */
#include "kernels/numbers/number_round.h"

#include "base/philox.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <math.h>

enum { CODES = 256 };

/* A format, from its specification. */
struct format {
    enum number_format format;
    int bits;
    double (*value)(int code); // NaN: the code is not a number
    int numbers;               // count of finite codes
    double largest, smallest;  // positive
};

static double of_fields(int code, int exponent_bits, int mantissa_bits, int bias)
{
    int e = (code >> mantissa_bits) % (1 << exponent_bits), m = code % (1 << mantissa_bits);
    double sign = code >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0,
           part = (double)m / (1 << mantissa_bits);
    return sign * (e == 0 ? pow(2.0, 1 - bias) * part : pow(2.0, e - bias) * (1.0 + part));
}

static double e4m3_value(int code)
{
    return code == 0x7F || code == 0xFF ? NAN : of_fields(code, 4, 3, 7);
}

static double e5m2_value(int code)
{
    int magnitude = code & 0x7F;
    double infinite = magnitude == 0x7C ? INFINITY : NAN;
    return magnitude >= 0x7C ? (code > 0x7F ? -infinite : infinite) : of_fields(code, 5, 2, 15);
}

static double e2m1_value(int code)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    return values[code];
}

static double int8_value(int code)
{
    return code == 128 ? (double)NAN : (double)(code < 128 ? code : code - 256); // -128 is never produced
}

static double ternary_value(int code)
{
    static const double values[] = {0, 1, NAN, -1};
    return values[code];
}

static const struct format formats[] = {
    {NUMBER_E4M3, 8, e4m3_value, 254, 448.0, 0x1p-9}, {NUMBER_E5M2, 8, e5m2_value, 248, 57344.0, 0x1p-16},
    {NUMBER_E2M1, 4, e2m1_value, 16, 6.0, 0.5},       {NUMBER_INT8, 8, int8_value, 255, 127.0, 1.0},
    {NUMBER_TERNARY, 2, ternary_value, 3, 1.0, 1.0},
};
_Static_assert(sizeof formats / sizeof *formats == NUMBER_FORMAT_COUNT, "each format");

/* The nearest code, saturating; of two equally near, the one whose last bit is 0. */
static int nearest(const struct format *f, double x)
{
    int best = -1;
    double clamped = fmax(-f->largest, fmin(f->largest, x)), distance = INFINITY;
    for (int code = 0; code < 1 << f->bits; code++) {
        double value = f->value(code), d = fabs(value - clamped);
        if (!isfinite(value) || (value == 0.0 && f->format < NUMBER_INT8 && signbit(value) != signbit(x)))
            continue; // a zero keeps its sign, if there are two
        if (d < distance || (d == distance && (code & 1) == 0)) {
            best = code;
            distance = d;
        }
    }
    return best;
}

static int64_t mistakes(const struct format *f, float x)
{
    int want = nearest(f, (double)x);
    float rounded = number_round(number_rounder(f->format), x);
    double value = f->value(want);
    bool right = (double)rounded == value && number_encode(f->format, x) == want &&
                 (signbit(rounded) != 0) == (signbit(x) != 0);
    return !right;
}

/* x, its neighbours, and all negated. */
static int64_t mistakes_around(const struct format *f, float x)
{
    int64_t wrong = 0;
    for (int sign = -1; sign <= 1; sign += 2)
        wrong += mistakes(f, (float)sign * x) + mistakes(f, (float)sign * nextafterf(x, INFINITY)) +
                 mistakes(f, (float)sign * nextafterf(x, 0.0F));
    return wrong;
}

Test(number_format, codes_match_the_specification)
{
    for (size_t i = 0; i < NUMBER_FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        int numbers = 0;
        double largest = 0.0, smallest = INFINITY;
        for (int code = 0; code < CODES; code++) {
            float got = number_decode(f->format, (uint8_t)code);
            if (code >= 1 << f->bits) {
                cr_expect(isnan(got), "%s %d", number_traits(f->format)->name, code);
                continue;
            }
            double want = f->value(code);
            if (f->format == NUMBER_INT8 && code == 128)
                want = -128.0; // a valid code that is never produced
            cr_expect((double)got == want || (isnan(want) && isnan(got)), "%s %d is %g, not %g",
                      number_traits(f->format)->name, code, (double)got, want);
            if (!isfinite(f->value(code)))
                continue;
            numbers++;
            largest = fmax(largest, want);
            smallest = want > 0.0 ? fmin(smallest, want) : smallest;
            cr_expect_eq(number_encode(f->format, got), code);
            cr_expect_eq(number_round(number_rounder(f->format), got), got);
        }
        cr_expect_eq(numbers, f->numbers);
        cr_expect(largest == f->largest && smallest == f->smallest);
        cr_expect_eq((double)number_traits(f->format)->largest, largest);
        cr_expect_eq(number_traits(f->format)->largest_exponent, (int)floor(log2(largest)));
    }
}

Test(number_format, rounds_to_nearest_at_every_midpoint)
{
    for (size_t i = 0; i < NUMBER_FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        int64_t wrong = 0, looked = 0;
        for (int code = 0; code < 1 << f->bits; code++) {
            double value = f->value(code);
            if (!(value >= 0.0 && value <= f->largest) || (value == 0.0 && signbit(value)))
                continue;
            // The next larger value; above the largest, the value that would follow it.
            double above = INFINITY;
            for (int other = 0; other < 1 << f->bits; other++)
                if (f->value(other) > value && f->value(other) < above)
                    above = f->value(other);
            if (!isfinite(above))
                above = value * 1.25;
            float middle = (float)((value + above) / 2.0);
            wrong += mistakes_around(f, (float)value) + mistakes_around(f, middle);
            looked += 12;
        }
        cr_expect_eq(wrong, 0, "%s: %lld of %lld", number_traits(f->format)->name, (long long)wrong,
                     (long long)looked);
    }
}

Test(number_format, rounds_floats_of_every_exponent)
{
    const struct philox any = philox_named(7, "floats");
    const int64_t draws = UNDER_SANITIZER ? 4096 : 65536;
    for (size_t i = 0; i < NUMBER_FORMAT_COUNT; i++) {
        int64_t wrong = 0;
        struct rounder r = number_rounder(formats[i].format);
        for (int64_t n = 0; n < draws; n++) {
            float x = float_of_bits(philox_word(any, 0, (uint64_t)n));
            wrong += isnan(x) ? !isnan(number_round(r, x)) : mistakes(&formats[i], x);
        }
        // Monotonic over each exponent: only the midpoints decide.
        float before = 0.0F;
        for (uint32_t bits = 0; bits < 0x7F800000U; bits += 0x20000U) {
            float now = number_round(r, float_of_bits(bits));
            wrong += now < before;
            before = now;
        }
        cr_expect_eq(wrong, 0, "%s", number_traits(formats[i].format)->name);
    }
}

Test(number_format, infinities_saturate_and_nan_stays)
{
    for (size_t i = 0; i < NUMBER_FORMAT_COUNT; i++) {
        struct rounder r = number_rounder(formats[i].format);
        cr_expect_eq(number_round(r, INFINITY), (float)formats[i].largest);
        cr_expect_eq(number_round(r, -INFINITY), -(float)formats[i].largest);
        cr_expect(isnan(number_round(r, NAN)) && isnan(number_round_stochastic(r, NAN, 5)));
        cr_expect_eq(number_round_stochastic(r, INFINITY, ~0U), (float)formats[i].largest);
    }
    cr_expect(number_encode(NUMBER_E4M3, NAN) == 0x7F && number_encode(NUMBER_E5M2, -NAN) == 0xFF);
    cr_expect(number_encode(NUMBER_E2M1, NAN) == 7 && number_encode(NUMBER_INT8, NAN) == 0);
}

/* x is `part` 64ths of the way from one value to the next: that fraction of all words must round up. */
Test(number_format, stochastic_rounding_has_the_right_probability)
{
    for (size_t i = 0; i < NUMBER_FORMAT_COUNT; i++) {
        const struct format *f = &formats[i];
        struct rounder r = number_rounder(f->format);
        int64_t wrong = 0;
        for (int code = 0; code < 1 << (f->bits - 1); code++) {
            double value = f->value(code), above = code + 1 < 1 << f->bits ? f->value(code + 1) : NAN;
            if (!(above > value) || !isfinite(above))
                continue;
            for (int part = 0; part < 64; part += 3) {
                float x = (float)(value + (above - value) * part / 64.0);
                for (int sign = -1; sign <= 1; sign += 2) {
                    float low = (float)sign * (float)value, high = (float)sign * (float)above;
                    float signed_x = (float)sign * x;
                    uint32_t first_up = 0U - ((uint32_t)part << 26); // 2^32 (1 - part / 64)
                    wrong += number_round_stochastic(r, signed_x, 0) != low;
                    wrong += number_round_stochastic(r, signed_x, first_up - 1) != low;
                    wrong += number_round_stochastic(r, signed_x, first_up) != (part > 0 ? high : low);
                    wrong += number_round_stochastic(r, signed_x, ~0U) != (part > 0 ? high : low);
                }
            }
        }
        cr_expect_eq(wrong, 0, "%s: %lld", number_traits(f->format)->name, (long long)wrong);
    }
}

Test(number_format, scales_are_powers_of_two)
{
    for (int exponent = -127; exponent <= 127; exponent++)
        cr_expect(e8m0_encode(exponent) == exponent + 127 &&
                  (double)e8m0_decode((uint8_t)(exponent + 127)) == pow(2.0, exponent));
    cr_expect(e8m0_encode(-200) == 0 && e8m0_encode(128) == 254 && isnan(e8m0_decode(255)));
}
