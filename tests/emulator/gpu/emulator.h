// SPDX-License-Identifier: Apache-2.0
/* Runs a CUDA kernel on the CPU, for tests: one block after another, the threads of a block as fibers that
 * yield at barriers and warp operations.
 *
 *     thread 0:  load ─ write shared ─ barrier |                     | read shared ─ ...
 *     thread 1:                                | load ─ ... ─ barrier |                  read shared ─ ...
 *
 * Between two synchronization points a thread runs without interruption, so a missing barrier gives a wrong
 * result in one thread order or another: run a test in several (emulator_order()). Hangs and undefined
 * behaviour of a real GPU end the program here: threads of a block at different barriers, a warp operation
 * without all lanes. Shared memory has its exact size and is initialized to NaN, so that AddressSanitizer
 * detects accesses out of bounds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emulator; // stacks and shared memory of one stream

struct emulator *emulator_create(void);
void emulator_destroy(struct emulator *emulator);

struct emulator_index {
    unsigned x, y, z;
};

/* body(context) is one thread; `threads` in one dimension. Returns when all blocks are complete. */
void emulator_launch(struct emulator *emulator, const char *kernel, struct emulator_index grid,
                     unsigned threads, size_t shared_bytes, void (*body)(const void *context),
                     const void *context);

/* The order of threads within a block, and of blocks: "forward", "reverse", or a number, the seed of a random
 * order. NULL: from the environment variable EMULATOR_ORDER, or forward. */
void emulator_order(struct emulator *emulator, const char *order);

/* Of the running thread. (Each thread of a kernel calls them with one result, so a compiler may keep it.) */
__attribute__((const)) const struct emulator_index *emulator_thread_index(void);
__attribute__((const)) const struct emulator_index *emulator_block_index(void);
__attribute__((const)) const struct emulator_index *emulator_block_size(void);
__attribute__((const)) const struct emulator_index *emulator_grid_size(void);

/* __syncthreads(). */
void emulator_barrier(const char *file, int line);
/* Synchronizes the warp; returns the value of lane `from`. */
uint64_t emulator_shuffle(uint64_t value, unsigned from, const char *file, int line);

/* The same with several words: each lane deposits up to EMULATOR_DEPOSIT_BYTES. Lane i's are at [i], until
 * this lane's second next warp operation. */
enum { EMULATOR_DEPOSIT_BYTES = 32 };
struct emulator_deposit {
    uint64_t word[EMULATOR_DEPOSIT_BYTES / 8];
};
const struct emulator_deposit *emulator_exchange(const void *mine, size_t bytes, const char *file, int line);

/* Suspends this thread, for `kind`, until ready(what), which is polled when no thread is ready. */
void emulator_wait_for(bool (*ready)(const void *what), const void *what, const char *kind, const char *file,
                       int line);
const char *emulator_kernel(void); // name of the running kernel

/* Per block: the default limit, and the limit after cudaFuncSetAttribute(). */
enum { EMULATOR_SHARED_BYTES = 48 * 1024 };
size_t emulator_most_shared_bytes(void);
/* The block's shared memory of the declaration `site`; NULL: the dynamic one. */
void *emulator_shared(const void *site, size_t bytes);
/* Ends the program unless these bytes are shared memory of the block, and `data` is aligned to `bytes`. */
void emulator_expect_shared(const void *data, size_t bytes, const char *file, int line);

/* The base of dynamic shared memory is EMULATOR_SHARED_SHIFT bytes past a multiple of 1024: CUDA guarantees
 * an alignment of 16. */
enum { EMULATOR_SHARED_SHIFT = 128 };
struct emulator_memory {
    void *data;
    size_t bytes;
};
struct emulator_memory emulator_dynamic_shared(void);
/* The state of async.c. */
struct async;
struct async **emulator_async(void);

/* Asynchronous copies (cp.async): executed as late as permitted, when this thread waits for them; until then
 * the destination is NaN. `present` false: zero-fill. */
void emulator_copy(void *to, const void *from, size_t bytes, bool present, const char *file, int line);
void emulator_copy_commit(void);     // closes a group
void emulator_copy_wait(int groups); // for all but the last `groups` groups

/* How often, since creation, the eight rows of an ldmatrix were not in different banks. */
void emulator_bank_conflict(void);
uint64_t emulator_bank_conflicts(const struct emulator *emulator);

#ifdef __cplusplus
}
#endif
