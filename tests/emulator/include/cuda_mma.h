// SPDX-License-Identifier: Apache-2.0
/* The functions of mma.h in software. The fragment layout documented there is implemented here a second time,
 * independently, and test_mma.cpp compares both with plain matrix multiplication. */
#pragma once

#include "tests/emulator/gpu/async.h"
#include "tests/emulator/gpu/tensor_core.h"

#define CALLED_FROM const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline float widen(bf16 x)
{
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

inline float widen(f16 x)
{
    const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    const float sign = x.bits >> 15 != 0 ? -1.0F : 1.0F;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * INFINITY;
    const uint32_t last_place = static_cast<uint32_t>((exponent > 0 ? exponent : 1) - 25 + 127) << 23;
    float unit; // a power of two
    memcpy(&unit, &last_place, sizeof unit);
    return sign * unit * static_cast<float>(exponent > 0 ? fraction + 1024 : fraction);
}

template <class T> T narrow(float x);

/* Rounds the upper half by adding half a unit of its last place, less one where that leaves a tie even. */
template <> inline bf16 narrow<bf16>(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}

/* rintf() rounds to even: in units of the last place, which below 2^-14 is 2^-24. */
template <> inline f16 narrow<f16>(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    if (isnan(x))
        return {0x7fff};
    frexpf(x, &exponent); // |x| < 2^exponent
    if (x == 0.0F)
        return {sign};
    const int last = exponent - 11 > -24 ? exponent - 11 : -24;
    const float units = isinf(x) ? 65536.0F : rintf(ldexpf(fabsf(x), -last));
    if (isinf(x) || ldexpf(units, last) > 65504.0F)
        return {static_cast<uint16_t>(sign | 0x7c00)};
    // 1024 units and more include the leading one, which adds to the exponent.
    return {static_cast<uint16_t>(sign | (static_cast<unsigned>(units) + ((last + 24) << 10)))};
}

template <class T> uint32_t narrow_pair(float first, float second)
{
    return narrow<T>(first).bits | static_cast<uint32_t>(narrow<T>(second).bits) << 16;
}

inline float exp2_fast(float x)
{
    const float y = emulated_exp2(x);
    return y < 0x1p-126F ? 0.0F : y;
}

inline float reciprocal_fast(float x)
{
    const float y = emulated_reciprocal(x);
    return fabsf(y) < 0x1p-126F ? copysignf(0.0F, x) : y;
}

inline void store_16_bytes(void *to, const uint32_t word[4])
{
    memcpy(to, word, 4 * sizeof *word);
}

inline unsigned shared_address(const void *data, CALLED_FROM)
{
    return emulator_shared_address(data, file, line);
}

/* One row of 16 bytes, and its address. */
struct emulated_row {
    uint16_t at[8];
    uint64_t address;
};

inline const emulator_deposit *emulated_rows(const void *row, const char *file, int line)
{
    emulated_row mine;
    emulator_expect_shared(row, sizeof mine.at, file, line);
    memcpy(mine.at, row, sizeof mine.at);
    mine.address = reinterpret_cast<uintptr_t>(row);
    const emulator_deposit *all = emulator_exchange(&mine, sizeof mine, file, line);
    if (threadIdx.x % 8 != 0)
        return all;
    // The first lane of each matrix checks its eight rows: 16 bytes are four of the 32 banks.
    unsigned banks = 0;
    for (unsigned r = 0; r < 8; r++)
        banks |= 1U << (all[threadIdx.x % 32 + r].word[2] / 16 % 8);
    if (banks != 0xff)
        emulator_bank_conflict();
    return all;
}

inline uint32_t emulated_pair(const emulator_deposit *all, unsigned row0, unsigned column0, unsigned row1,
                              unsigned column1)
{
    emulated_row x, y;
    memcpy(&x, &all[row0], sizeof x);
    memcpy(&y, &all[row1], sizeof y);
    return x.at[column0] | static_cast<uint32_t>(y.at[column1]) << 16;
}

inline void ldmatrix_x4(uint32_t out[4], const void *row, CALLED_FROM)
{
    const emulator_deposit *all = emulated_rows(row, file, line);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned i = 0; i < 4; i++)
        out[i] = emulated_pair(all, 8 * i + g, 2 * t, 8 * i + g, 2 * t + 1);
}

inline void ldmatrix_x4_trans(uint32_t out[4], const void *row, CALLED_FROM)
{
    const emulator_deposit *all = emulated_rows(row, file, line);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned i = 0; i < 4; i++)
        out[i] = emulated_pair(all, 8 * i + 2 * t, g, 8 * i + 2 * t + 1, g);
}

/* The two elements in register `index` of a lane. */
template <class T>
void emulated_widen(const emulator_deposit *all, unsigned lane, unsigned index, float out[2])
{
    uint16_t bits[2];
    memcpy(bits, reinterpret_cast<const char *>(&all[lane]) + sizeof bits * index, sizeof bits);
    out[0] = widen(T{bits[0]});
    out[1] = widen(T{bits[1]});
}

/* The sums as tensor_core.h adds them. */
template <class T> void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], CALLED_FROM)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const emulator_deposit *all = emulator_exchange(mine, sizeof mine, file, line);
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float left[2][16], right[2][16]; // rows g and g + 8 of a; columns 2t and 2t + 1 of b
    for (unsigned k = 0; k < 16; k += 2) {
        const unsigned from = k % 8 / 2, half = k / 8;
        for (unsigned i = 0; i < 2; i++) {
            emulated_widen<T>(all, 4 * g + from, 2 * half + i, left[i] + k);
            emulated_widen<T>(all, 4 * (2 * t + i) + from, 4 + half, right[i] + k);
        }
    }
    tensor_core_floats sum = {d[0], d[1], d[2], d[3]}, product[TENSOR_CORE_STEP];
    for (unsigned k = 0; k < 16; k++)
        product[k] = tensor_core_floats{left[0][k] * right[0][k], left[0][k] * right[1][k],
                                        left[1][k] * right[0][k], left[1][k] * right[1][k]};
    tensor_core_add(&sum, product);
    for (unsigned i = 0; i < 4; i++)
        d[i] = sum[i];
}

template <int BYTES> void cp_async(void *shared, const void *from, bool present, CALLED_FROM)
{
    emulator_copy(shared, from, BYTES, present, file, line);
}

inline void cp_async_commit()
{
    emulator_copy_commit();
}

template <int GROUPS> void cp_async_wait()
{
    emulator_copy_wait(GROUPS);
}
