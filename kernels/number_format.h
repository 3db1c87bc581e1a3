// SPDX-License-Identifier: Apache-2.0
/* Small number formats, bit for bit: which float a number becomes, and which eight bits stand for it.
 *
 *              bits s.e.m   bias  largest  smallest   infinity, NaN                    from
 *     e4m3     1.4.3        7     448      2^-9       none, s.1111.111                 OCP FP8 1.0
 *     e5m2     1.5.2        15    57344    2^-16      s.11111.00, s.11111.01 to 11     OCP FP8 1.0
 *     e2m1     1.2.1        1     6        0.5        none, none                       OCP MX 1.0
 *     int8     8, signed          127      1          none, none
 *     ternary  2, signed          1        1          none, none                       2402.17764
 *     e8m0     power of two       2^127    2^-127     none, 255                        OCP MX 1.0: a scale
 *
 * All round to the nearest, ties to even, and saturate: what is larger than the largest, infinity too,
 * becomes the largest, as NVIDIA's cvt.satfinite does. NaN stays NaN. int8 has no -128: it is symmetric. */
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

struct number_facts {
    const char *name;
    int exponent_bits, mantissa_bits, bias; // exponent_bits 0: an integer
    float largest;
    int largest_exponent; // of the largest: floor(log2(largest))
    int least_exponent;   // of a normal number; below it steps stay the same
};
const struct number_facts *number_facts(enum number_format format);

/* The bits of x in a format: its low bits, the others 0. NaN where there is none: 6 in e2m1, 0 in the
 * integers. */
uint8_t number_encode(enum number_format format, float x);
/* What they mean. NaN for those that mean nothing: ternary 2, bits above the format's. */
float number_decode(enum number_format format, uint8_t code);

/* The scales of Microscaling: 2^exponent, clamped to what there is. */
uint8_t e8m0_encode(int exponent);
float e8m0_decode(uint8_t code); // 255: NaN
