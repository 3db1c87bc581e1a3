// SPDX-License-Identifier: Apache-2.0
/* The asynchronous units of a GPU of compute capability 9.0 (wgmma.h): TMA copies, warpgroup matmuls, and
 * mbarriers. Everything happens as late as permitted:
 *
 *     a copy       when no thread can proceed without one; until then its destination is NaN
 *     a wgmma      when a warp waits for it, with the operands of that time. Until then its sums are NaN
 *
 * wgmma and copies access shared memory through the async proxy, here a second copy of it: copies write both,
 * a thread's writes reach it by async_fence(). A missing fence therefore also reads NaN. Races and hangs of a
 * real GPU end the program here with one line. */
#pragma once

#include "tests/emulator/gpu/emulator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For emulator.c: one per emulator, NULL until a kernel needs it. */
struct async;
/* Completes the oldest copy in flight, or another one, by `order`. False: there is none. */
bool async_move(struct async *async, uint32_t order);
/* Makes the writes that this thread's warp has fenced visible to the async proxy, before it synchronizes with
 * other threads. */
void async_settle(struct async *async, unsigned thread); // takes NULL
/* At the end of a block: ends the program if anything is in flight. */
void async_end_block(struct async *async);

/* The 32-bit shared-memory address for an instruction. */
uint32_t emulator_shared_address(const void *data, const char *file, int line);
/* 16 bytes of shared memory, as seen by the async proxy. */
const void *emulator_seen(uint32_t address);

void emulator_mbarrier_init(uint64_t *barrier, int arrivals, const char *file, int line);
void emulator_mbarrier_init_fence(void);
void emulator_mbarrier_arrive(uint64_t *barrier, int bytes, const char *file, int line);
void emulator_mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line);
void emulator_async_fence(void);
void emulator_tensor_load(void *to, const void *map, uint64_t *barrier, const int *at, int rank,
                          const char *file, int line);
void emulator_bulk_load(void *to, const void *from, int bytes, uint64_t *barrier, const char *file, int line);
void emulator_named_barrier(int number, int threads, bool waits, const char *file, int line);

/* The part of a wgmma that one warp computes: its 16 rows of d[64][n]. */
enum { EMULATOR_LANES = 32 };
struct emulator_wgmma {
    void (*multiply)(const struct emulator_wgmma *wgmma);
    uint64_t a, b; // operands in shared memory
    int n;
    bool transpose_a, transpose_b, accumulate;
    int warp, group, number;
    float *d[EMULATOR_LANES];             // n / 2 per lane
    const uint32_t *left[EMULATOR_LANES]; // a in registers, or NULL
    float *before; // previous d of all lanes; NULL: the result of an earlier wgmma in flight
    const char *file;
    int line;
};
/* `wgmma` has the parameters that all lanes share; d and left are this lane's. */
void emulator_wgmma_begin(const struct emulator_wgmma *wgmma, float *d, const uint32_t *left,
                          const char *file, int line);
/* Records a warp's read of all 64 rows of a in shared memory: CUDA does not specify which of the four warps
 * reads which rows, so none may be modified before all have waited. Ends the program when they differ from
 * those of another warp. */
void emulator_wgmma_left(const struct emulator_wgmma *wgmma, const void *rows, size_t bytes);
void emulator_wgmma_fence(void);
void emulator_wgmma_commit(void);
void emulator_wgmma_wait(int groups, const char *file, int line);
/* Sets this thread's register count. */
void emulator_registers(int count);
_Noreturn void emulator_wgmma_fail(const struct emulator_wgmma *wgmma, const char *why);

#ifdef __cplusplus
}
#endif
