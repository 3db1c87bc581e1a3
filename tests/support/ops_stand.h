// SPDX-License-Identifier: Apache-2.0
/* What every test of an op needs: a device whose memory is the host's (the cpu; what the environment variable
 * CUBOID_TEST_DEVICE names, behind a mirror; or, where a test is compiled with STAND_EMULATED, the kernels of
 * the cuda device under tests/emulator), guarded arrays, numbers, and two
 * ways to compare.
 *
 * CUBOID_TEST_ATTENTION says whose attention: own (unless it says else), mma, cudnn, cudnn-any-order, auto.
 * CUBOID_TEST_BLOCKS is device_options.most_blocks.
 *
 *     [ NaN NaN NaN | x0 x1 ... xn | NaN NaN NaN ]     an array: what is read or written beside it shows
 *
 * The trap: a bound is a sentence about rounding (so many operations, each off by half a unit), worked out
 * beside the test. One that was found by trying is no bound. */
#pragma once

#include "kernels/ops.h"

/* Half a unit in the last place of 1, in fp32: what one rounding can do, relatively. */
#define UNIT 0x1p-24

#ifdef STAND_EMULATED
enum { STAND_IS_EMULATED = 1 }; // some hundred times slower: fewer large shapes
#else
enum { STAND_IS_EMULATED = 0 };
#endif

enum { STAND_ARRAYS = 96 };

struct stand {
    struct device *device;
    struct stream *stream;
    int shift; // floats by which every array lies off its alignment
    void *array[STAND_ARRAYS];
    int arrays;
};

struct device *stand_device(int threads); // dies for want of one
/* The same with products in TF32; NULL where the device under test has none. */
struct device *stand_tf32_device(void);
struct stand stand_open(int threads);
struct stand stand_open_with(int threads, enum matmul_epilogues epilogues); // where the device has any
void stand_close(struct stand *stand);
/* A test's own memory that ops may name, until stand_close. What the functions below give needs none. */
void stand_lend(struct stand *stand, void *data, size_t bytes);

/* All die for want of memory: a test has no better idea. Freed by stand_close. */
float *stand_floats(struct stand *stand, int64_t count);    // poisoned: NaN
uint16_t *stand_shorts(struct stand *stand, int64_t count); // of bf16 or f16: NaN in both
double *stand_doubles(struct stand *stand, int64_t count);
int32_t *stand_ints(struct stand *stand, int64_t count);
int64_t *stand_longs(struct stand *stand, int64_t count);
/* NaN still lies around this array. */
bool stand_is_guarded(const float *array, int64_t count);
bool stand_shorts_are_guarded(const uint16_t *array, int64_t count);

/* Normals times `spread`, named, so that tests do not depend on each other's order. */
float *stand_normals(struct stand *stand, const char *name, int64_t count, double spread);
float *stand_copy(struct stand *stand, const float *from, int64_t count);
double *stand_widen(struct stand *stand, const float *from, int64_t count);

/* How many elements are outside want +- bound; a NaN is. The largest error / bound goes to *worst when that
 * is not NULL. */
int64_t count_outside(const float *got, const double *want, const double *bound, int64_t count,
                      double *worst);
bool same_bits(const float *a, const float *b, int64_t count);
