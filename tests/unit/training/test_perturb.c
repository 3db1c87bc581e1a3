// SPDX-License-Identifier: Apache-2.0
/* Perturbed arithmetic (perturb.h) on every device: each element of an op's result is changed by the given
 * amount, up or down, and no memory next to it. The host cannot access the emulated GPU's memory, so that a
 * perturbation that dereferences a device address ends the test. */
#include "kernels/ops.h"
#include "tests/support/narrow/narrow_reference.h"
#include "trainer/verify/perturb.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The result is a slice of COLUMNS columns of a matrix of WIDE columns. */
enum { ROWS = 6, COLUMNS = 40, WIDE = 56, FIRST = 8, COUNT = ROWS * WIDE };
#define NEIGHBOR 3.0F   // the memory next to the result
#define TERMS    0x1p16 // so that an f32 element is off by 2^-16

static const char *const devices[] = {"cpu", "strict", "cuda"};
enum { DEVICES = sizeof devices / sizeof *devices };

/* Elements of any type. */
struct elements {
    _Alignas(64) char a[ROWS * 4], b[COLUMNS * 4], c[COUNT * 4];
};

/* Values that every type represents exactly: zeros and both signs. */
static float exact(int column)
{
    return (float)(column % 7 - 3) * 0.5F;
}

static void store(enum dtype dtype, char *to, int at, float x)
{
    const uint16_t narrow = narrow_nearest(dtype == F32 ? BF16 : dtype, x);
    if (dtype == F32)
        memcpy(to + (size_t)at * sizeof x, &x, sizeof x);
    else
        memcpy(to + (size_t)at * sizeof narrow, &narrow, sizeof narrow);
}

static struct elements inputs(enum dtype dtype)
{
    struct elements x = {.a = {0}};
    for (int i = 0; i < ROWS; i++)
        store(dtype, x.a, i, 1.0F);
    for (int i = 0; i < COLUMNS; i++)
        store(dtype, x.b, i, exact(i));
    for (int i = 0; i < COUNT; i++)
        store(dtype, x.c, i, NEIGHBOR);
    return x;
}

/* A column of ones times a row, so that the unperturbed result is exact. */
static struct elements multiply(const char *name, enum dtype dtype)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct buffer buffer = {0};
    struct perturbation perturbation = {.generator = philox_named(5, "test"), .terms = TERMS};
    struct elements x = inputs(dtype);
    setenv("EMULATOR_STREAMS", "late", 1);
    setenv("EMULATOR_MEMORY", "guarded", 1);
    cr_assert_eq(device_open(&(struct device_options){.name = name, .threads = 1}, &device), OK, "%s",
                 fail_text());
    cr_assert_eq(stream_create(device, "compute", &stream), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof x, &buffer), OK);
    perturb_device(&perturbation, device);
    struct elements *there = buffer.data;
    cr_assert_eq(copy_to_device(stream, there, &x, sizeof x), OK);
    const struct tensor c = tensor_2d(there->c, dtype, ROWS, WIDE);
    cr_assert_eq(gemm(stream, (struct gemm){.a = tensor_2d(there->a, dtype, ROWS, 1),
                                            .b = tensor_2d(there->b, dtype, 1, COLUMNS),
                                            .c = tensor_columns(c, FIRST, FIRST + COLUMNS)}),
                 OK, "%s", fail_text());
    cr_assert_eq(copy_to_host(stream, &x, there, sizeof x), OK);
    cr_assert_eq(stream_sync(stream), OK);
    cr_expect_eq(perturbation.count, 1);
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
    perturbation_free(&perturbation);
    return x;
}

/* +1 or -1: perturbed by one unit in the last place, or by 1 / TERMS, away from zero or towards it; 0:
 * neither. */
static int direction(enum dtype dtype, const struct elements *x, int at, float want)
{
    uint16_t narrow;
    float wide;
    memcpy(&narrow, x->c + (size_t)at * sizeof narrow, sizeof narrow);
    memcpy(&wide, x->c + (size_t)at * sizeof wide, sizeof wide);
    if (dtype != F32) {
        const int units = narrow - narrow_nearest(dtype, want);
        return abs(units) == 1 ? units : 0;
    }
    const double relative = ((double)wide - (double)want) / (double)want;
    return fabs(fabs(relative) - 0x1p-16) <= 0x1p-24 ? (relative > 0.0 ? 1 : -1) : 0;
}

static bool is_kept(enum dtype dtype, const struct elements *x, int at, float want)
{
    struct elements exact_numbers;
    const size_t bytes = dtype_bytes(dtype), offset = (size_t)at * bytes;
    store(dtype, exact_numbers.c, at, want);
    return memcmp(x->c + offset, exact_numbers.c + offset, bytes) == 0;
}

static void expect_perturbed(const char *device, enum dtype dtype)
{
    const struct elements x = multiply(device, dtype);
    int wrong = 0, up = 0, down = 0;
    for (int i = 0; i < COUNT; i++) {
        const int column = i % WIDE - FIRST;
        const bool inside = column >= 0 && column < COLUMNS;
        const float want = inside ? exact(column) : NEIGHBOR;
        const int moved = inside && want != 0.0F ? direction(dtype, &x, i, want) : 0;
        wrong += inside && want != 0.0F ? moved == 0 : !is_kept(dtype, &x, i, want);
        up += moved > 0;
        down += moved < 0;
    }
    cr_expect_eq(wrong, 0, "%s, %s: %d elements", device, dtype_name(dtype), wrong);
    cr_expect(up > ROWS * COLUMNS / 4 && down > ROWS * COLUMNS / 4, "%s, %s: %d up, %d down", device,
              dtype_name(dtype), up, down);
}

Test(perturb, perturbs_every_result_element_only)
{
    for (int i = 0; i < DEVICES; i++) {
        expect_perturbed(devices[i], F32);
        expect_perturbed(devices[i], BF16);
        expect_perturbed(devices[i], F16);
    }
}

/* The same draws on every device. */
Test(perturb, devices_agree)
{
    for (int i = 1; i < DEVICES; i++) {
        const struct elements cpu = multiply(devices[0], BF16), other = multiply(devices[i], BF16);
        cr_expect_eq(memcmp(cpu.c, other.c, sizeof cpu.c), 0, "%s", devices[i]);
    }
}
