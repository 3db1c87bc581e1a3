// SPDX-License-Identifier: Apache-2.0
/* Wrappers of the tensor-core, asynchronous-copy and conversion instructions: all inline PTX up to sm_80, one
 * instruction per function. tests/emulator implements the same functions in software (cuda_mma.h), so that
 * kernels built on them run there too.
 *
 * mma.m16n8k16 multiplies 16 x 16 by 16 x 8 16-bit elements and accumulates in fp32. The fragments are
 * distributed over the 32 lanes; with g = lane / 4 and t = lane % 4, and two neighbours of a row in each
 * register (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"):
 *
 *     a[16][16]: a[0] (g, 2t..)  a[1] (g + 8, 2t..)  a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
 *     b[16][8]:  b[0] (2t.., g)  b[1] (2t + 8.., g)                      here neighbours are in a column
 *     d[16][8]:  d[0..1] (g, 2t..)   d[2..3] (g + 8, 2t..)
 *
 * Two adjacent d, rounded, form an a: the result of one matmul is an operand of the next without data
 * movement between lanes. ldmatrix loads four 8 x 8 matrices, lane 8 i + r supplying the address of row r of
 * matrix i, 16 bytes; out[i] is (g, 2t..) of matrix i, or transposed, (2t.., g).
 *
 * Caution: all lanes of the warp must execute ldmatrix and mma; and a wait makes a copy visible only to the
 * waiting thread, so a barrier must follow. */
#pragma once

#include "kernels/cuda/runtime/launch.h"

/* 16-bit storage types. */
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

#ifdef __CUDACC__

static __device__ __forceinline__ float widen(bf16 x)
{
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

static __device__ __forceinline__ float widen(f16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

/* Rounds to nearest, ties to even: `first` into the lower half. */
template <class T> __device__ uint32_t narrow_pair(float first, float second);

template <> __device__ __forceinline__ uint32_t narrow_pair<bf16>(float first, float second)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

template <> __device__ __forceinline__ uint32_t narrow_pair<f16>(float first, float second)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* 2^x, relative error at most 2^-22; results below 2^-126 are flushed to 0. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1/x, relative error at most 2^-23; results below 2^-126 are flushed to 0. */
static __device__ __forceinline__ float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* One 16-byte store. Next to a branch of element-wise stores the compiler may split even a plain 16-byte
 * store. */
static __device__ __forceinline__ void store_16_bytes(void *to, const uint32_t word[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word[0]),
                 "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
}

static __device__ __forceinline__ unsigned shared_address(const void *data)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(data));
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* d += a b. */
template <class T> __device__ void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<f16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Copies 4, 8 or 16 bytes, both addresses aligned to that, from global to shared memory, or zero-fills if not
 * present: `from` is then not read, but must still be an address within the array. */
template <int BYTES> __device__ __forceinline__ void cp_async(void *shared, const void *from, bool present)
{
    const int bytes = present ? BYTES : 0;
    if (BYTES == 16) // bypasses L1: there is no reuse
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
                     "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(from),
                     "n"(BYTES), "r"(bytes)
                     : "memory");
}

/* Closes a group of this thread's copies since the last commit. */
static __device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the last `GROUPS` of this thread's groups are in flight. */
template <int GROUPS> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

#else
#include <cuda_mma.h>
#endif
