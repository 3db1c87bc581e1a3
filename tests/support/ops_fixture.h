// SPDX-License-Identifier: Apache-2.0
/* The fixture of the op tests: a device whose memory is the host's (the cpu; the device in the environment
 * variable CUBOID_TEST_DEVICE, through a mirror; or, if the fixture is compiled with FIXTURE_EMULATED, the
 * kernels of the cuda device under tests/emulator), guarded arrays, random values, and two ways to compare.
 *
 * CUBOID_TEST_ATTENTION selects the attention kernels: own (the default), mma, cudnn, cudnn-nondeterministic
 * or auto. CUBOID_TEST_BLOCKS is device_options.max_blocks.
 *
 *     [ NaN NaN NaN | x0 x1 ... xn | NaN NaN NaN ]     an array: accesses out of bounds are detected
 *
 * Caution: an error bound is derived from rounding (so many operations, each off by half a unit), next to
 * the test. A bound found by trial and error is not a bound. */
#pragma once

#include "kernels/ops.h"
#include "tests/support/sanitized.h"

/* Half a unit in the last place of 1, in fp32: the largest relative error of one rounding. */
#define UNIT 0x1p-24

/* The emulator is some hundred times slower: use fewer large shapes. */
extern const bool fixture_is_emulated;

/* Whether tests run a sample of their cases: under a sanitizer, and on the emulator in tools/test. */
static inline bool fixture_runs_few(void)
{
    return UNDER_SANITIZER || (fixture_is_emulated && !long_tests());
}

enum { FIXTURE_ARRAYS = 96 };

struct fixture {
    struct device *device;
    struct stream *stream;
    int shift; // misalignment of every array, in floats
    void *array[FIXTURE_ARRAYS];
    int arrays;
};

struct device *fixture_device(int threads); // ends the program if it is not available
/* The same with TF32 matmuls; NULL if the device under test does not support them. */
struct device *fixture_tf32_device(void);
struct fixture fixture_open(int threads);
struct fixture fixture_open_with(int threads, enum matmul_epilogues epilogues); // if the device has any
void fixture_close(struct fixture *fixture);
/* Makes a test's own memory usable by ops, until fixture_close. Arrays from the functions below already
 * are. */
void fixture_register(struct fixture *fixture, void *data, size_t bytes);

/* All end the program when out of memory. Freed by fixture_close. */
float *fixture_floats(struct fixture *fixture, int64_t count);    // poisoned: NaN
uint16_t *fixture_shorts(struct fixture *fixture, int64_t count); // of bf16 or f16: NaN in both
double *fixture_doubles(struct fixture *fixture, int64_t count);
int32_t *fixture_ints(struct fixture *fixture, int64_t count);
int64_t *fixture_longs(struct fixture *fixture, int64_t count);
/* Whether the array's guards still contain NaN. */
bool fixture_is_guarded(const float *array, int64_t count);
bool fixture_shorts_are_guarded(const uint16_t *array, int64_t count);

/* Normally distributed, times `spread`; keyed by name, so that tests do not depend on each other's order. */
float *fixture_normals(struct fixture *fixture, const char *name, int64_t count, double spread);
float *fixture_copy(struct fixture *fixture, const float *from, int64_t count);
double *fixture_widen(struct fixture *fixture, const float *from, int64_t count);

/* Counts the elements outside want +- bound; NaN is outside. *worst, unless NULL, receives the largest error
 * / bound. */
int64_t count_outside(const float *got, const double *want, const double *bound, int64_t count,
                      double *worst);
bool same_bits(const float *a, const float *b, int64_t count);
