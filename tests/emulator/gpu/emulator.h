// SPDX-License-Identifier: Apache-2.0
/* Runs a CUDA kernel on the CPU, for tests: one block after the other, the threads of a block as fibers that
 * give way at barriers and warp operations.
 *
 *     thread 0:  load ─ write shared ─ barrier |                     | read shared ─ ...
 *     thread 1:                                | load ─ ... ─ barrier |                  read shared ─ ...
 *
 * Between two meeting points a thread runs without interruption, so a missing barrier gives the wrong result
 * in one order of the threads or another: run the same test in several (emulator_order()). What a GPU would
 * punish with a hang or luck ends the program here: threads of a block at different barriers, a warp
 * operation that a lane does not take part in. Shared memory is of its exact size and begins as NaN, so
 * AddressSanitizer sees who leaves it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emulator; // the stacks and shared memory of one stream

struct emulator *emulator_create(void);
void emulator_destroy(struct emulator *emulator);

struct emulator_index {
    unsigned x, y, z;
};

/* body(context) is one thread; `threads` in one dimension. Returns when every block is done. */
void emulator_launch(struct emulator *emulator, const char *kernel, struct emulator_index grid,
                     unsigned threads, size_t shared_bytes, void (*body)(const void *context),
                     const void *context);

/* In which order the threads of a block, and the blocks, take their turns: "forward", "reverse", or a number,
 * the seed of a random order. NULL: what the environment variable EMULATOR_ORDER says, or forward. */
void emulator_order(struct emulator *emulator, const char *order);

/* For the running thread. */
const struct emulator_index *emulator_thread_index(void);
const struct emulator_index *emulator_block_index(void);
const struct emulator_index *emulator_block_size(void);
const struct emulator_index *emulator_grid_size(void);

/* Every thread of the block meets here. */
void emulator_barrier(const char *file, int line);
/* Every lane of the warp meets here; then the value of lane `from` of this warp. */
uint64_t emulator_shuffle(uint64_t value, unsigned from, const char *file, int line);

/* The same with more than one word: each lane lays down up to EMULATOR_DEPOSIT_BYTES. Lane i's are at [i],
 * until this lane's next but one operation of the warp. */
enum { EMULATOR_DEPOSIT_BYTES = 32 };
struct emulator_deposit {
    uint64_t word[EMULATOR_DEPOSIT_BYTES / 8];
};
const struct emulator_deposit *emulator_exchange(const void *mine, size_t bytes, const char *file, int line);

/* This thread waits for `kind`: until ready(what), which is asked whenever nobody can run. */
void emulator_wait_for(bool (*ready)(const void *what), const void *what, const char *kind, const char *file,
                       int line);
const char *emulator_kernel(void); // the name of the one that runs

/* Of a block: without asking, and after cudaFuncSetAttribute(). */
enum { EMULATOR_SHARED_BYTES = 48 * 1024 };
size_t emulator_most_shared_bytes(void);
/* The block's piece of shared memory that belongs to `site`; NULL: the dynamic one. */
void *emulator_shared(const void *site, size_t bytes);
/* Ends the program unless these bytes are shared memory of the block, and `data` a multiple of `bytes`. */
void emulator_expect_shared(const void *data, size_t bytes, const char *file, int line);

/* The dynamic piece. It begins EMULATOR_SHARED_SHIFT bytes past a multiple of 1024: CUDA promises 16. */
enum { EMULATOR_SHARED_SHIFT = 128 };
struct emulator_piece {
    void *data;
    size_t bytes;
};
struct emulator_piece emulator_dynamic_shared(void);
/* Where async.c keeps its own. */
struct async;
struct async **emulator_async(void);

/* Copies beside the arithmetic (cp.async): they are done as late as they may be, when this thread waits for
 * them, and until then the memory that they go to is NaN. `present` false: zeros. */
void emulator_copy(void *to, const void *from, size_t bytes, bool present, const char *file, int line);
void emulator_copy_commit(void);     // what was begun since the last time is a group
void emulator_copy_wait(int groups); // for all groups but the last so many

/* How often, since it was created, eight lanes of an ldmatrix did not find their eight rows in different
 * banks. */
void emulator_bank_conflict(void);
uint64_t emulator_bank_conflicts(const struct emulator *emulator);

#ifdef __cplusplus
}
#endif
