// SPDX-License-Identifier: Apache-2.0
/* Functions that a GPU computes less exactly than the C library, at their largest documented errors:
 *
 *     expf, tanhf       2 units in the last place    CUDA programming guide, "Mathematical Functions"
 *     logf              1 unit
 *     ex2.approx.ftz    2^-22 relative               PTX ISA, "ex2"
 *     rcp.approx.ftz    2^-23 relative               PTX ISA, "rcp"
 *
 * (Division and sqrtf() are rounded to nearest. Functions in double precision are off by a unit or two of
 * theirs, which vanishes when results are rounded to fp32.)
 *
 * EMULATOR_ERRORS=larger: results are too large in magnitude by that error; smaller: too small; mixed: either
 * one, depending on a hash of the result. Without it they are those of the C library. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum class emulated_errors { none, larger, smaller, mixed };

inline emulated_errors emulated_errors_wanted()
{
    const char *const wanted = getenv("EMULATOR_ERRORS");
    if (wanted == nullptr)
        return emulated_errors::none;
    return strcmp(wanted, "larger") == 0    ? emulated_errors::larger
           : strcmp(wanted, "smaller") == 0 ? emulated_errors::smaller
                                            : emulated_errors::mixed;
}

/* 1 or -1: the sign of the error, relative to the result; 0: none. */
inline int emulated_error_sign(float result)
{
    static const emulated_errors wanted = emulated_errors_wanted();
    uint32_t bits;
    memcpy(&bits, &result, sizeof bits);
    if (wanted == emulated_errors::none || result == 0.0F || !isfinite(result))
        return 0;
    if (wanted == emulated_errors::mixed)
        return (bits * 2654435761U & 0x80000000U) != 0 ? 1 : -1;
    return wanted == emulated_errors::larger ? 1 : -1;
}

/* `exact`, rounded to nearest, and moved by so many units in the last place. */
inline float emulated_units_off(double exact, int units)
{
    float result = static_cast<float>(exact);
    int32_t bits;
    memcpy(&bits, &result, sizeof bits);
    units *= emulated_error_sign(result);
    bits = (bits & 0x7fffffff) + units > 0 ? bits + units : 0; // not past 0
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* The same, by a relative error: half a unit less, because the result is then rounded. */
inline float emulated_off(double exact, double relative)
{
    const int sign = emulated_error_sign(static_cast<float>(exact));
    return static_cast<float>(exact * (1.0 + sign * (relative - 0x1p-24)));
}

inline float emulated_expf(float x)
{
    return emulated_error_sign(1.0F) == 0 ? expf(x) : emulated_units_off(exp(static_cast<double>(x)), 2);
}

inline float emulated_logf(float x)
{
    return emulated_error_sign(1.0F) == 0 ? logf(x) : emulated_units_off(log(static_cast<double>(x)), 1);
}

/* Never above 1. */
inline float emulated_tanhf(float x)
{
    if (emulated_error_sign(1.0F) == 0)
        return tanhf(x);
    return fminf(1.0F, fmaxf(-1.0F, emulated_units_off(tanh(static_cast<double>(x)), 2)));
}

inline float emulated_exp2(float x)
{
    return emulated_error_sign(1.0F) == 0 ? exp2f(x) : emulated_off(exp2(static_cast<double>(x)), 0x1p-22);
}

inline float emulated_reciprocal(float x)
{
    return emulated_error_sign(1.0F) == 0 ? 1.0F / x : emulated_off(1.0 / static_cast<double>(x), 0x1p-23);
}

#define expf(x)  emulated_expf(x)
#define logf(x)  emulated_logf(x)
#define tanhf(x) emulated_tanhf(x)
