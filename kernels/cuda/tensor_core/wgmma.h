// SPDX-License-Identifier: Apache-2.0
/* Wrappers of the sm_90a (Hopper) instructions: warpgroup matmuls (wgmma), TMA copies, and their
 * synchronization. All inline PTX for sm_90a is here, one instruction per function; names in quotes are
 * sections of the PTX ISA (8.0 and newer). tests/emulator implements the same functions in software
 * (cuda_wgmma.h). Only files compiled for sm_90a alone may include this.
 *
 * Matmuls. A warpgroup is four warps, the first with an index that is a multiple of four. Together they
 * compute d[64][N] = a[64][16] b[16][N] (+ d), in fp32, from 16-bit elements; warp w holds rows 16 w to 16 w
 * + 15 in the fragment layout of mma.m16n8k16 (mma.h): g = lane / 4, t = lane % 4,
 *
 *     d[n][0..1] (g, 8 n + 2t..)   d[n][2..3] (g + 8, 8 n + 2t..)      n < N / 8
 *     a[0] (g, 2t..)  a[1] (g + 8, 2t..)  a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
 *
 * ("Register fragments for wgmma.mma_async.m64nNk16"), so that here, too, d rounded is an a. b is read from
 * shared memory, a from shared memory or registers.
 *
 *     wgmma_fence();  wgmma<bf16, 128>(d, a, b, false);  ... more of them, into d or elsewhere
 *     wgmma_commit(); ... other work ...  wgmma_wait<0>();  d is now valid, and a and b may be overwritten
 *
 * Shared-memory operands are tiles with rows of 64 elements, 128 bytes, in the layout of a tensor map with
 * 128-byte swizzle, the same as tile<T, 64> (tile.h): chunk c of row r at c ^ (r % 8). They are 1024-byte
 * aligned.
 *
 *     rows_operand(tile):     the rows are rows of a, or columns of b; k runs along them. K-major
 *     columns_operand(tile):  the rows are k; rows of a, or columns of b, run along them. MN-major,
 *                             TRANSPOSE_A or TRANSPOSE_B of wgmma
 *
 * Caution: instructions in flight read registers and shared memory until they are waited for, so their
 * arrays must stay alive and untouched until then; wgmma_fence() is required between any other access to
 * registers and the wgmma that uses them; data written by threads (generic proxy), and not by a copy, is
 * visible to wgmma and TMA only after the writer's async_fence() and then a barrier. All lanes of a warp, and
 * all four warps, must execute everything named wgmma. */
#pragma once

#include "kernels/cuda/tensor_core/mma.h"

#include <cuda.h>

constexpr int WARPGROUP = 128;
constexpr int OPERAND_ROW_BYTES = 128;                    // 64 elements
constexpr int OPERAND_ATOM_BYTES = 8 * OPERAND_ROW_BYTES; // period of the swizzle

/* Whether the register budget suffices, for a block in which one warpgroup releases registers and `others`
 * acquire some. Initially each thread has an equal share of the multiprocessor's, in multiples of eight:
 * acquiring more than were released blocks forever. */
constexpr bool registers_suffice(int others, int taken, int left)
{
    const int groups = 1 + others, each = 65536 / (groups * WARPGROUP) / 8 * 8;
    return left <= each && taken >= each && left + others * taken <= groups * each;
}

template <class T> inline constexpr bool IS_BF16 = false;
template <> inline constexpr bool IS_BF16<bf16> = true;

/* The descriptor of an operand ("Matrix-descriptor format"): bits 0-13 the address, 16-29 the leading and
 * 32-45 the stride byte offset, all in units of 16 bytes; 49-51 the base offset, 0 because tiles are
 * 1024-byte aligned; 62-63 the swizzle, 1: 128 bytes. `to_next_64`: bytes from 64 columns to the next, if
 * columns run along rows; otherwise the leading offset is not used. The stride offset is that of eight rows
 * in both cases. */
static __device__ __forceinline__ uint64_t operand_at(const void *tile, int to_next_64)
{
    return (shared_address(tile) & 0x3ffffU) >> 4 | static_cast<uint64_t>(to_next_64 / 16) << 16 |
           static_cast<uint64_t>(OPERAND_ATOM_BYTES / 16) << 32 | static_cast<uint64_t>(1) << 62;
}

static __device__ __forceinline__ uint64_t rows_operand(const void *tile)
{
    return operand_at(tile, 16);
}

static __device__ __forceinline__ uint64_t columns_operand(const void *tile, int to_next_64)
{
    return operand_at(tile, to_next_64);
}

/* The operand `bytes` further on: the next 16 of k are 32 bytes along rows, 16 OPERAND_ROW_BYTES across
 * them. */
static __device__ __forceinline__ uint64_t operand_after(uint64_t operand, int bytes)
{
    return operand + static_cast<uint64_t>(bytes / 16);
}

#ifdef __CUDACC__

/* Required before the first wgmma, and between other accesses to registers and the wgmma that uses them
 * ("wgmma.fence"). The compiler moves no access to d across it if wgmma_hold() names d. */
static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of the wgmma issued since the last commit ("wgmma.commit_group"). */
static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most the last `GROUPS` groups are in flight ("wgmma.wait_group"). Work that is to overlap
 * them must end in a branch before the wait: ptxas hoists the wait up to the last branch. */
template <int GROUPS> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/* No instruction: a compiler barrier for accesses to these registers. Place it before the wgmma_fence() and
 * after the wgmma_wait() of wgmma into d, and of operands in registers, so that the compiler does not move
 * their copies in between. */
template <int TILES> __device__ __forceinline__ void wgmma_hold(float (&d)[TILES][4])
{
    UNROLL_ALL
    for (int i = 0; i < 4 * TILES; i++)
        asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

template <int FRAGMENTS> __device__ __forceinline__ void wgmma_hold(uint32_t (&a)[FRAGMENTS][4])
{
    UNROLL_ALL
    for (int i = 0; i < 4 * FRAGMENTS; i++)
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

/* The names of a wgmma's registers in its instruction, and the registers. */
#define WGMMA_NAMES_64                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define WGMMA_NAMES_128                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_4(d, n)    "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_16(d, n)   WGMMA_4(d, n), WGMMA_4(d, (n) + 1), WGMMA_4(d, (n) + 2), WGMMA_4(d, (n) + 3)
#define WGMMA_OUT_64(d)  WGMMA_16(d, 0), WGMMA_16(d, 4)
#define WGMMA_OUT_128(d) WGMMA_OUT_64(d), WGMMA_16(d, 8), WGMMA_16(d, 12)

/* The instruction ("wgmma.mma_async"): d = a b, or d += a b if `accumulate`; 1, 1: no negation of the
 * operands. */
#define WGMMA_SHARED(N, TYPE, A, B, ACCUMULATE, TA, TB)                                               \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ACCUMULATE ", 0; "                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_##N \
                 "}, " A ", " B ", p, 1, 1, " TA ", " TB ";}"                                         \
                 : WGMMA_OUT_##N(d)                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TRANSPOSE_A ? 1 : 0),       \
                   "n"(TRANSPOSE_B ? 1 : 0))
#define WGMMA_REGISTERS(N, TYPE, A, B, ACCUMULATE, TB)                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ACCUMULATE ", 0; "                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_##N     \
                 "}, {" A "}, " B ", p, 1, 1, " TB ";}"                                                   \
                 : WGMMA_OUT_##N(d)                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), \
                   "n"(TRANSPOSE_B ? 1 : 0))

/* Both operands from shared memory. */
template <class T, int N, bool TRANSPOSE_A = false, bool TRANSPOSE_B = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool accumulate)
{
    static_assert(N == 64 || N == 128, "no case for this width");
    if constexpr (N == 64 && IS_BF16<T>)
        WGMMA_SHARED(64, "bf16", "%32", "%33", "%34", "%35", "%36");
    else if constexpr (N == 64)
        WGMMA_SHARED(64, "f16", "%32", "%33", "%34", "%35", "%36");
    else if constexpr (IS_BF16<T>)
        WGMMA_SHARED(128, "bf16", "%64", "%65", "%66", "%67", "%68");
    else
        WGMMA_SHARED(128, "f16", "%64", "%65", "%66", "%67", "%68");
}

/* a from registers. */
template <class T, int N, bool TRANSPOSE_B = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate)
{
    static_assert(N == 64 || N == 128, "no case for this width");
    if constexpr (N == 64 && IS_BF16<T>)
        WGMMA_REGISTERS(64, "bf16", "%32, %33, %34, %35", "%36", "%37", "%38");
    else if constexpr (N == 64)
        WGMMA_REGISTERS(64, "f16", "%32, %33, %34, %35", "%36", "%37", "%38");
    else if constexpr (IS_BF16<T>)
        WGMMA_REGISTERS(128, "bf16", "%64, %65, %66, %67", "%68", "%69", "%70");
    else
        WGMMA_REGISTERS(128, "f16", "%64, %65, %66, %67", "%68", "%69", "%70");
}

/* Barriers in shared memory ("mbarrier"), 8 bytes each. A phase completes after the number of arrivals given
 * to init and the announced number of bytes; then the next begins. Phases are numbered from 0, and a wait for
 * parity n % 2 returns when phase n is complete: a wait for parity 1 on a fresh barrier, which is in phase 0,
 * returns at once. A waiting thread must not miss two phases. */
static __device__ __forceinline__ void mbarrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

/* Makes the inits visible to copies; to be called after them, by the same thread, before a barrier of the
 * block ("membar / fence", fence.mbarrier_init and fence.proxy.async). */
static __device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* Arrives, and announces the bytes that copies will write in this phase ("mbarrier.arrive.expect_tx"). */
static __device__ __forceinline__ void mbarrier_arrive_expecting(uint64_t *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* Waits until the phase of this parity is complete; everything written and copied before that is then visible
 * ("mbarrier.try_wait", which suspends for a limited time). */
static __device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, unsigned parity)
{
    uint32_t over;
    do {
        asm volatile("{.reg .pred p; "
                     "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; "
                     "selp.b32 %0, 1, 0, p;}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (over == 0);
}

/* One thread starts a TMA copy of the box at these coordinates, innermost first, to 128-byte aligned shared
 * memory; zero-filled outside the tensor. All bytes of the box arrive at `barrier` ("cp.async.bulk.tensor").
 * The map must be a __grid_constant__ parameter of the kernel. */
static __device__ __forceinline__ void tensor_load(void *to, const CUtensorMap *map, uint64_t *barrier,
                                                   int c0, int c1, int c2, int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* One thread starts a copy of `bytes`, a multiple of 16, between 16-byte aligned addresses; they arrive at
 * `barrier` ("cp.async.bulk"). */
static __device__ __forceinline__ void bulk_load(void *to, const void *from, int bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/* Prefetches the map ("prefetch.tensormap"). */
static __device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Makes this thread's writes to shared memory visible to wgmma and copies issued after the next barrier
 * ("fence.proxy.async"). */
static __device__ __forceinline__ void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Synchronizes `threads` threads of the block, full warps, at barrier `number`, 1 to 15 (0 is
 * __syncthreads()); arrive does not wait ("bar.sync", "bar.arrive"). */
static __device__ __forceinline__ void named_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Sets the registers per thread of this warpgroup, all of which must execute it: fewer, which releases
 * registers; or more, which waits until others have released them ("setmaxnreg"). Multiples of 8 from 24 to
 * 256. */
template <int REGISTERS> __device__ __forceinline__ void release_registers()
{
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void acquire_registers()
{
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#else
#include <cuda_wgmma.h>
#endif
