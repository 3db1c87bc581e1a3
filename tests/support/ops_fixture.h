// SPDX-License-Identifier: Apache-2.0
/* What every test of an op needs: a device whose memory is the host's (the cpu; what the environment variable
 * CUBOID_TEST_DEVICE names, behind a mirror; or, where a test is compiled with FIXTURE_EMULATED, the
 * kernels of the cuda device under tests/emulator), guarded arrays, numbers, and two ways to compare.
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

#ifdef FIXTURE_EMULATED
enum { FIXTURE_IS_EMULATED = 1 }; // some hundred times slower: fewer large shapes
#else
enum { FIXTURE_IS_EMULATED = 0 };
#endif

enum { FIXTURE_ARRAYS = 96 };

struct fixture {
    struct device *device;
    struct stream *stream;
    int shift; // floats by which every array lies off its alignment
    void *array[FIXTURE_ARRAYS];
    int arrays;
};

struct device *fixture_device(int threads); // dies for want of one
/* The same with products in TF32; NULL where the device under test has none. */
struct device *fixture_tf32_device(void);
struct fixture fixture_open(int threads);
struct fixture fixture_open_with(int threads, enum matmul_epilogues epilogues); // where the device has any
void fixture_close(struct fixture *fixture);
/* A test's own memory that ops may name, until fixture_close. What the functions below give needs none. */
void fixture_lend(struct fixture *fixture, void *data, size_t bytes);

/* All die for want of memory: a test has no better idea. Freed by fixture_close. */
float *fixture_floats(struct fixture *fixture, int64_t count);    // poisoned: NaN
uint16_t *fixture_shorts(struct fixture *fixture, int64_t count); // of bf16 or f16: NaN in both
double *fixture_doubles(struct fixture *fixture, int64_t count);
int32_t *fixture_ints(struct fixture *fixture, int64_t count);
int64_t *fixture_longs(struct fixture *fixture, int64_t count);
/* NaN still lies around this array. */
bool fixture_is_guarded(const float *array, int64_t count);
bool fixture_shorts_are_guarded(const uint16_t *array, int64_t count);

/* Normals times `spread`, named, so that tests do not depend on each other's order. */
float *fixture_normals(struct fixture *fixture, const char *name, int64_t count, double spread);
float *fixture_copy(struct fixture *fixture, const float *from, int64_t count);
double *fixture_widen(struct fixture *fixture, const float *from, int64_t count);

/* How many elements are outside want +- bound; a NaN is. The largest error / bound goes to *worst when that
 * is not NULL. */
int64_t count_outside(const float *got, const double *want, const double *bound, int64_t count,
                      double *worst);
bool same_bits(const float *a, const float *b, int64_t count);
