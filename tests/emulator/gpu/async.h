// SPDX-License-Identifier: Apache-2.0
/* What happens beside a block's threads on a GPU of compute capability 9.0 (wgmma.h): copies of
 * boxes of a tensor, products of warpgroups, and the barriers that they are waited for with. Everything
 * happens as late as it may:
 *
 *     a copy       when no thread can go on without one; until then its place is NaN
 *     a product    when a warp waits for it: what it reads then is what it takes. Until then its sums are NaN
 *
 * Products and copies see shared memory through a proxy of their own, here a second copy of it: copies write
 * both, a thread's writes come there by its async_fence(). So a forgotten fence is NaN, too. What a GPU would
 * answer with luck or a hang ends the program with one line. */
#pragma once

#include "tests/emulator/gpu/emulator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For emulator.c: one for each emulator, NULL until a kernel wants it. */
struct async;
void async_destroy(struct async *async); // takes NULL
/* The oldest copy under way arrives, or another one, by `order`. False: there is none. */
bool async_move(struct async *async, uint32_t order);
/* What this thread's warp has fenced is seen by products and copies: before anything of it is known to
 * others. */
void async_settle(struct async *async, unsigned thread); // takes NULL
/* The block is done: ends the program if something is left under way. */
void async_end_block(struct async *async);

/* Where dynamic shared memory is to an instruction that takes a number of 32 bits. */
uint32_t emulator_shared_address(const void *data, const char *file, int line);
/* 16 bytes of it as products and copies see them. */
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

/* A product of one warp: its 16 rows of d[64][n]. */
enum { EMULATOR_LANES = 32 };
struct emulator_product {
    void (*multiply)(const struct emulator_product *product);
    uint64_t a, b; // operands in shared memory
    int n;
    bool transpose_a, transpose_b, accumulate;
    int warp, group, number;
    float *d[EMULATOR_LANES];             // n / 2 of each lane
    const uint32_t *left[EMULATOR_LANES]; // a in registers, or NULL
    float *before; // what d was, of all lanes; NULL: an earlier product that is under way leaves it
    const char *file;
    int line;
};
/* What all lanes say alike stands in `product`; d and left are this lane's. */
void emulator_product_begin(const struct emulator_product *product, float *d, const uint32_t *left,
                            const char *file, int line);
/* What a warp reads of all 64 rows of a in shared memory: which warp of the four reads which of them CUDA
 * does not say, so nobody may change any before all have waited. Ends the program when they differ from those
 * of another warp. */
void emulator_product_left(const struct emulator_product *product, const void *rows, size_t bytes);
void emulator_product_fence(void);
void emulator_product_commit(void);
void emulator_product_wait(int groups, const char *file, int line);
/* From now on so many registers for this thread. */
void emulator_registers(int count);
_Noreturn void emulator_product_die(const struct emulator_product *product, const char *why);

#ifdef __cplusplus
}
#endif
