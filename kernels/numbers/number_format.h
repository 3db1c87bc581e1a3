// SPDX-License-Identifier: Apache-2.0
/* Low-precision formats, bit for bit: rounding, encoding and decoding.
 *
 *              bits s.e.m   bias  largest  smallest   infinity, NaN                    from
 *     e4m3     1.4.3        7     448      2^-9       none, s.1111.111                 OCP FP8 1.0
 *     e5m2     1.5.2        15    57344    2^-16      s.11111.00, s.11111.01 to 11     OCP FP8 1.0
 *     e2m1     1.2.1        1     6        0.5        none, none                       OCP MX 1.0
 *     int8     8, signed          127      1          none, none
 *     ternary  2, signed          1        1          none, none                       2402.17764
 *     e8m0     power of two       2^127    2^-127     none, 255                        OCP MX 1.0: a scale
 *
 * All round to nearest, ties to even, and saturate: larger values, including infinity, become the largest, as
 * with NVIDIA's cvt.satfinite. NaN stays NaN. int8 has no -128: it is symmetric. */
#pragma once

#include <stdint.h>

enum number_format {
    NUMBER_E4M3,
    NUMBER_E5M2,
    NUMBER_E2M1,
    NUMBER_INT8,
    NUMBER_TERNARY,
    NUMBER_FORMAT_COUNT
};

struct number_traits {
    const char *name;
    int exponent_bits, mantissa_bits, bias; // exponent_bits 0: an integer
    float largest;
    int largest_exponent; // of the largest: floor(log2(largest))
    int least_exponent;   // of a normal number; the step size is constant below it
};
const struct number_traits *number_traits(enum number_format format);

/* Encodes x: the format's bits in the low bits, the others 0. NaN in a format without NaN: 6 in e2m1, 0 in
 * the integers. */
uint8_t number_encode(enum number_format format, float x);
/* Decodes. NaN for invalid codes: ternary 2, bits above the format's. */
float number_decode(enum number_format format, uint8_t code);

/* Microscaling scales: 2^exponent, clamped to the range. */
uint8_t e8m0_encode(int exponent);
float e8m0_decode(uint8_t code); // 255: NaN
