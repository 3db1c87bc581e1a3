// SPDX-License-Identifier: Apache-2.0
#include "kernels/numbers/number_format.h"

#include "base/status.h"
#include "kernels/numbers/number_round.h"

#include <math.h>

static const struct number_traits all_traits[] = {
    [NUMBER_E4M3] = {"e4m3", 4, 3, 7, 448.0F, 8, -6},
    [NUMBER_E5M2] = {"e5m2", 5, 2, 15, 57344.0F, 15, -14},
    [NUMBER_E2M1] = {"e2m1", 2, 1, 1, 6.0F, 2, 0},
    [NUMBER_INT8] = {"int8", 0, 6, 0, 127.0F, 6, 6},
    [NUMBER_TERNARY] = {"ternary", 0, 0, 0, 1.0F, 0, 0},
};
_Static_assert(sizeof all_traits / sizeof *all_traits == NUMBER_FORMAT_COUNT, "one row per format");

const struct number_traits *number_traits(enum number_format format)
{
    CHECK((int)format >= 0 && format < NUMBER_FORMAT_COUNT);
    return &all_traits[format];
}

struct rounder number_rounder(enum number_format format)
{
    const struct number_traits *f = number_traits(format);
    return (struct rounder){
        .largest = f->largest,
        .least = (uint32_t)(f->least_exponent + 127) << 23,
        .steps = (uint32_t)(23 - f->mantissa_bits) << 23,
    };
}

static uint8_t nan_code(enum number_format format, bool negative)
{
    switch (format) {
    case NUMBER_E4M3:
    case NUMBER_E5M2:
        return negative ? 0xFF : 0x7F;
    case NUMBER_E2M1:
        return 0x7; // as cvt.satfinite
    case NUMBER_INT8:
    case NUMBER_TERNARY:
    case NUMBER_FORMAT_COUNT:
        break;
    }
    return 0;
}

uint8_t number_encode(enum number_format format, float x)
{
    const struct number_traits *f = number_traits(format);
    if (isnan(x))
        return nan_code(format, signbit(x) != 0);
    float rounded = number_round(number_rounder(format), x);
    if (f->exponent_bits == 0)
        return (uint8_t)((int)rounded & (format == NUMBER_TERNARY ? 0x3 : 0xFF));
    // Subnormals in steps of the least exponent, then exponent by exponent: each has 2^m codes.
    int exponent;
    float magnitude = fabsf(rounded);
    frexpf(magnitude, &exponent);
    int above = exponent - 1 - f->least_exponent;
    if (magnitude == 0.0F || above < 0)
        above = 0;
    int steps = (int)ldexpf(magnitude, f->mantissa_bits - f->least_exponent - above);
    int sign = signbit(rounded) != 0 ? 1 << (f->exponent_bits + f->mantissa_bits) : 0;
    return (uint8_t)(sign | ((above << f->mantissa_bits) + steps));
}

float number_decode(enum number_format format, uint8_t code)
{
    const struct number_traits *f = number_traits(format);
    if (format == NUMBER_INT8)
        return (float)(int8_t)code;
    if (format == NUMBER_TERNARY)
        return code <= 1 ? (float)code : code == 3 ? -1.0F : NAN;
    int bits = f->exponent_bits + f->mantissa_bits;
    if (code >> (bits + 1) != 0)
        return NAN;
    int field = code >> f->mantissa_bits & ((1 << f->exponent_bits) - 1);
    int mantissa = code & ((1 << f->mantissa_bits) - 1);
    float sign = (code >> bits & 1) != 0 ? -1.0F : 1.0F;
    if (format == NUMBER_E5M2 && field == 31)
        return mantissa == 0 ? sign * INFINITY : NAN;
    if (format == NUMBER_E4M3 && field == 15 && mantissa == 7)
        return NAN;
    int whole = field > 0 ? mantissa + (1 << f->mantissa_bits) : mantissa;
    return sign * ldexpf((float)whole, (field > 0 ? field : 1) - f->bias - f->mantissa_bits);
}

uint8_t e8m0_encode(int exponent)
{
    int clamped = exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
    return (uint8_t)(clamped + 127);
}

float e8m0_decode(uint8_t code)
{
    return code == 255 ? NAN : ldexpf(1.0F, (int)code - 127);
}
