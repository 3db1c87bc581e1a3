// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops_fixture.h"

#include "tests/support/mirror.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 80 }; // floats on either side; more than a vector, and a multiple of its alignment

#ifdef FIXTURE_EMULATED // the cuda device, on the emulated GPU
#include "kernels/cuda/runtime/device_cuda.h"
const bool fixture_is_emulated = true;
#else
const bool fixture_is_emulated = false;
#endif

static struct device_options options_of(const char *name, int threads)
{
    const char *attention = getenv("CUBOID_TEST_ATTENTION");
    const char *blocks = getenv("CUBOID_TEST_BLOCKS");
    struct device_options options = {.name = name, .threads = threads, .kernels.attention = ATTENTION_OWN};
    options.max_blocks = blocks != NULL ? (int)strtol(blocks, NULL, 10) : 0;
    if (attention != NULL && strcmp(attention, "own") != 0) {
        options.kernels.attention = strcmp(attention, "auto") == 0  ? ATTENTION_AUTO
                                    : strcmp(attention, "mma") == 0 ? ATTENTION_OWN_MMA
                                                                    : ATTENTION_CUDNN;
        options.nondeterministic = strcmp(attention, "cudnn") != 0 && strcmp(attention, "mma") != 0;
    }
    return options;
}

static struct device *device_with(int threads, enum matmul_epilogues epilogues)
{
    struct device *device;
#ifdef FIXTURE_EMULATED
    struct device_options options = options_of("cuda", threads);
    options.kernels.epilogues = epilogues;
    MUST(device_open_with(&device_cuda, &options, &device));
#else
    const char *name = getenv("CUBOID_TEST_DEVICE");
    struct device_options options = options_of(name != NULL ? name : "cpu", name != NULL ? 1 : threads);
    options.kernels.epilogues = epilogues;
    if (name != NULL)
        MUST(mirror_open(&options, &device));
    else
        MUST(device_open(&options, &device));
#endif
    return device;
}

struct device *fixture_device(int threads)
{
    return device_with(threads, EPILOGUES_APART);
}

struct device *fixture_tf32_device(void)
{
    struct device *device = NULL;
    struct device_options options = options_of("cuda", 1);
    options.kernels.tf32 = true;
#ifdef FIXTURE_EMULATED
    MUST(device_open_with(&device_cuda, &options, &device));
#else
    options.name = getenv("CUBOID_TEST_DEVICE");
    if (options.name != NULL && device_traits(options.name)->has_matmul_options)
        MUST(mirror_open(&options, &device));
#endif
    return device;
}

struct fixture fixture_open(int threads)
{
    return fixture_open_with(threads, EPILOGUES_APART);
}

struct fixture fixture_open_with(int threads, enum matmul_epilogues epilogues)
{
    struct fixture fixture = {.device = device_with(threads, epilogues)};
    MUST(stream_create(fixture.device, "test", &fixture.stream));
    return fixture;
}

void fixture_close(struct fixture *fixture)
{
    stream_destroy(fixture->stream);
    device_close(fixture->device);
    for (int i = 0; i < fixture->arrays; i++)
        free(fixture->array[i]);
}

void fixture_register(struct fixture *fixture, void *data, size_t bytes)
{
    mirror_register(fixture->device, data, bytes);
}

static void *keep(struct fixture *fixture, size_t bytes)
{
    CHECK(fixture->arrays < FIXTURE_ARRAYS);
    void *array = aligned_alloc(64, (bytes + 127) / 64 * 64);
    CHECK(array != NULL);
    fixture_register(fixture, array, bytes);
    fixture->array[fixture->arrays++] = array;
    return array;
}

float *fixture_floats(struct fixture *fixture, int64_t count)
{
    int64_t whole = count + 2 * GUARD + fixture->shift;
    float *array = keep(fixture, (size_t)whole * sizeof *array);
    for (int64_t i = 0; i < whole; i++)
        array[i] = NAN;
    return array + GUARD + fixture->shift;
}

bool fixture_is_guarded(const float *array, int64_t count)
{
    for (int64_t i = 1; i <= GUARD; i++)
        if (!isnan(array[-i]) || (i < GUARD && !isnan(array[count - 1 + i])))
            return false;
    return true;
}

uint16_t *fixture_shorts(struct fixture *fixture, int64_t count)
{
    int64_t whole = count + 2 * GUARD + fixture->shift;
    uint16_t *array = keep(fixture, (size_t)whole * sizeof *array);
    memset(array, 0xff, (size_t)whole * sizeof *array);
    return array + GUARD + fixture->shift;
}

bool fixture_shorts_are_guarded(const uint16_t *array, int64_t count)
{
    for (int64_t i = 1; i <= GUARD; i++)
        if (array[-i] != 0xffff || (i < GUARD && array[count - 1 + i] != 0xffff))
            return false;
    return true;
}

double *fixture_doubles(struct fixture *fixture, int64_t count)
{
    double *array = keep(fixture, (size_t)count * sizeof *array);
    for (int64_t i = 0; i < count; i++)
        array[i] = NAN;
    return array;
}

int32_t *fixture_ints(struct fixture *fixture, int64_t count)
{
    int32_t *array = keep(fixture, (size_t)count * sizeof *array);
    memset(array, 0, (size_t)count * sizeof *array);
    return array;
}

int64_t *fixture_longs(struct fixture *fixture, int64_t count)
{
    int64_t *array = keep(fixture, (size_t)count * sizeof *array);
    memset(array, 0, (size_t)count * sizeof *array);
    return array;
}

float *fixture_normals(struct fixture *fixture, const char *name, int64_t count, double spread)
{
    float *array = fixture_floats(fixture, count);
    philox_normal(philox_named(42, name), 0, 0, count, array);
    for (int64_t i = 0; i < count; i++)
        array[i] *= (float)spread;
    return array;
}

float *fixture_copy(struct fixture *fixture, const float *from, int64_t count)
{
    float *array = fixture_floats(fixture, count);
    memcpy(array, from, (size_t)count * sizeof *array);
    return array;
}

double *fixture_widen(struct fixture *fixture, const float *from, int64_t count)
{
    double *array = fixture_doubles(fixture, count);
    for (int64_t i = 0; i < count; i++)
        array[i] = (double)from[i];
    return array;
}

int64_t count_outside(const float *got, const double *want, const double *bound, int64_t count, double *worst)
{
    int64_t outside = 0;
    double most = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]);
        outside += !(error <= bound[i]);
        if (bound[i] > 0.0)
            most = fmax(most, error / bound[i]);
    }
    if (worst != NULL)
        *worst = most;
    return outside;
}

bool same_bits(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}
