// SPDX-License-Identifier: Apache-2.0
#include "tests/support/narrow/narrow_reference.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct format {
    int fraction_bits, exponent_bits;
};

static struct format format_of(enum dtype dtype)
{
    return dtype == BF16 ? (struct format){7, 8} : (struct format){10, 5};
}

/* 2^exponent, of a normal number. (ldexp() takes most of the time of some tests.) */
static double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

double narrow_value(enum dtype dtype, uint16_t bits)
{
    struct format f = format_of(dtype);
    int fraction = bits & ((1 << f.fraction_bits) - 1), most = (1 << f.exponent_bits) - 1;
    int exponent = bits >> f.fraction_bits & most, bias = most / 2;
    double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == most)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * fraction * power_of_two(1 - bias - f.fraction_bits);
    return sign * ((1 << f.fraction_bits) + fraction) * power_of_two(exponent - bias - f.fraction_bits);
}

uint16_t narrow_nearest(enum dtype dtype, float x)
{
    struct format f = format_of(dtype);
    int most = (1 << f.exponent_bits) - 1, bias = most / 2, exponent;
    uint16_t sign = signbit(x) ? 0x8000 : 0, infinite = (uint16_t)(most << f.fraction_bits);
    if (isnan(x))
        return (uint16_t)(sign | infinite | 1);
    if (isinf(x))
        return (uint16_t)(sign | infinite);
    frexp((double)x, &exponent); // x = fraction * 2^exponent, the fraction from 1/2 to 1
    if (x == 0.0F || exponent - 1 < 1 - bias)
        exponent = 2 - bias; // subnormal: steps of the smallest exponent
    // rint() rounds to nearest even; steps of 2^(exponent - 1 - fraction_bits).
    double steps = rint(fabs((double)x) * power_of_two(f.fraction_bits + 1 - exponent));
    double encoded = steps + (exponent - 2 + bias) * power_of_two(f.fraction_bits);
    return (uint16_t)(sign | (encoded < (double)infinite ? (uint16_t)encoded : infinite));
}

double narrow_unit(enum dtype dtype)
{
    return power_of_two(-1 - format_of(dtype).fraction_bits);
}

double narrow_sum_error(int64_t count)
{
    return ((double)count + (double)count / 8.0 + 2.0) * (double)FLT_EPSILON;
}
