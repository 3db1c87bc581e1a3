// SPDX-License-Identifier: Apache-2.0
/* A float as the bits it is made of, and back. Who compiles these for another processor (kernels/cuda) says
 * how, before it includes them. */
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
