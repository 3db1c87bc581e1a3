// SPDX-License-Identifier: Apache-2.0
/* Op tests on a GPU (tests/support/mirror.h) open hundreds of fixtures: the GPU itself is opened once per
 * process. The emulator counts the calls. */
#include "tests/emulator/include/cuda_runtime_api.h"
#include "tests/support/mirror.h"
#include "tests/support/ops_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { COUNT = 1000 };

/* One op of a fixture, from opening to closing. */
static void add_once(const char *attention)
{
    setenv("CUBOID_TEST_DEVICE", "cuda", 1);
    setenv("CUBOID_TEST_ATTENTION", attention, 1);
    struct fixture fixture = fixture_open(1);
    struct add a = {.in = tensor_1d(fixture_normals(&fixture, "in", COUNT, 1.0), F32, COUNT),
                    .out = tensor_1d(fixture_normals(&fixture, "out", COUNT, 1.0), F32, COUNT)};
    const float before = ((float *)a.out.data)[7], added = ((float *)a.in.data)[7];
    cr_assert_eq(add(fixture.stream, a), OK, "%s", fail_text());
    cr_expect_eq(((float *)a.out.data)[7], before + added);
    fixture_close(&fixture);
}

/* Neither pinned nor device memory is allocated again. */
Test(mirror, a_gpu_is_opened_once)
{
    add_once("own");
    const struct emulator_calls first = emulator_calls();
    setenv("EMULATOR_FAIL", "cudaMallocHost", 1); // opening it again would fail
    for (int i = 0; i < 100; i++)
        add_once("own");
    unsetenv("EMULATOR_FAIL");
    cr_expect_eq(emulator_calls().allocations, first.allocations);
    cr_expect_eq(emulator_calls().device_allocs, first.device_allocs);
}

/* Other options use another device; the first stays open. */
Test(mirror, each_set_of_options_has_its_own_device)
{
    add_once("own");
    add_once("mma");
    setenv("EMULATOR_FAIL", "cudaMallocHost", 1);
    add_once("own");
    add_once("mma");
    unsetenv("EMULATOR_FAIL");
}

/* Two fixtures open at the same time do not share arrays, and closing one leaves the other intact. */
Test(mirror, fixtures_share_a_device)
{
    setenv("CUBOID_TEST_DEVICE", "cuda", 1);
    struct fixture one = fixture_open(1), other = fixture_open(1);
    float *x = fixture_normals(&one, "x", COUNT, 1.0), *y = fixture_normals(&other, "y", COUNT, 1.0);
    const float before = x[3] + x[3], also = y[3] + y[3];
    cr_assert_eq(add(one.stream, (struct add){tensor_1d(x, F32, COUNT), tensor_1d(x, F32, COUNT)}), OK);
    cr_expect_eq(x[3], before);
    fixture_close(&one);
    cr_assert_eq(add(other.stream, (struct add){tensor_1d(y, F32, COUNT), tensor_1d(y, F32, COUNT)}), OK);
    cr_expect_eq(y[3], also);
    fixture_close(&other);
}
