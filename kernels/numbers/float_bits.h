// SPDX-License-Identifier: Apache-2.0
/* Bit casts between float and uint32_t. Code for another processor (kernels/cuda) defines its function
 * qualifiers before it includes this. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifndef NUMBER_FUNCTION
#define NUMBER_FUNCTION static inline
#endif

NUMBER_FUNCTION float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

NUMBER_FUNCTION uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
