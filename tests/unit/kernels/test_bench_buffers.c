// SPDX-License-Identifier: Apache-2.0
/* The operands of bench_ops: larger than any cache, with random values. */
#include "tools/benchmarks/bench_buffers.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1000, COLUMNS = 600, MAX_CALLS = 100 };

static struct bench_memory open_memory(size_t rotate_bytes)
{
    struct bench_memory m = {.rotate_bytes = rotate_bytes};
    const struct device_options options = {.name = "cpu", .threads = 1};
    cr_assert_eq(device_open(&options, &m.device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(m.device, "test", &m.stream), OK);
    return m;
}

static void close_memory(struct bench_memory *m)
{
    bench_release(m);
    stream_destroy(m->stream);
    device_close(m->device);
}

/* Twice the size of every cache of today's GPUs. */
Test(bench_buffers, the_default_is_larger_than_any_cache)
{
    cr_expect_geq(1e6 * BENCH_ROTATE_MB, 2.0 * 126e6);
}

/* Between two calls with the same bytes of a matrix, at least rotate_bytes other bytes of it are used. */
Test(bench_buffers, calls_rotate_through_the_copies)
{
    struct bench_memory m = open_memory(10000000);
    const struct tensor x = bench_normals(&m, BF16, ROWS, COLUMNS), y = bench_normals(&m, F32, ROWS, COLUMNS),
                        small = bench_normals(&m, F32, 1, COLUMNS);
    struct norm_forward f = {.x = x, .y = y, .weight = small, .epsilon = 1e-5F};
    const char *seen[MAX_CALLS];
    int calls = 0;
    do {
        cr_assert_lt(calls, MAX_CALLS);
        seen[calls++] = f.x.data;
        bench_rotate(&m, &f, sizeof f);
        for (int i = 1; i < calls; i++)
            cr_expect_neq(seen[i], f.x.data);
        cr_expect_eq(f.weight.data, small.data);
        cr_expect_eq(f.x.dim[0], ROWS);
        cr_expect_eq(f.x.stride[0], COLUMNS);
    } while (f.x.data != x.data);
    cr_expect_geq(calls * ROWS * COLUMNS * 2, 10000000);
    close_memory(&m);
}

/* Two views of one matrix, and of a column of it, stay consistent. */
Test(bench_buffers, views_move_with_their_matrix)
{
    struct bench_memory m = open_memory(6000000);
    const struct tensor x = bench_normals(&m, F32, ROWS, COLUMNS);
    struct add a = {.in = tensor_columns(x, 5, 10), .out = x};
    for (int i = 0; i < 4; i++) {
        bench_rotate(&m, &a, sizeof a);
        cr_expect_eq((char *)a.in.data - (char *)a.out.data, 5 * (ptrdiff_t)sizeof(float));
    }
    close_memory(&m);
}

/* Copies differ, and so do neighbouring elements. */
Test(bench_buffers, values_are_random)
{
    struct bench_memory m = open_memory(4000000);
    const struct tensor x = bench_normals(&m, F32, ROWS, COLUMNS);
    struct add a = {.in = x, .out = x};
    const float *first = x.data;
    bench_rotate(&m, &a, sizeof a);
    const float *second = a.in.data;
    int same = 0;
    double sum = 0.0, squares = 0.0;
    cr_assert_neq(first, second);
    for (int i = 1; i < ROWS * COLUMNS; i++) {
        same += first[i] == second[i] || first[i] == first[i - 1];
        sum += (double)first[i];
        squares += (double)(first[i] * first[i]);
    }
    cr_expect_lt(same, 10);
    cr_expect_float_eq(sum / ROWS / COLUMNS, 0.0, 0.01);
    cr_expect_float_eq(squares / ROWS / COLUMNS, 1.0, 0.01);
    close_memory(&m);
}

/* The caller's data is in every copy. */
Test(bench_buffers, contents_are_in_every_copy)
{
    float *ones = malloc(400000 * sizeof *ones);
    cr_assert_not_null(ones);
    struct bench_memory m = open_memory(4000000);
    for (int i = 0; i < 400000; i++)
        ones[i] = 1.0F;
    struct tensor t = tensor_1d(bench_filled(&m, ones, 400000 * sizeof *ones), F32, 400000);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(memcmp(t.data, ones, 400000 * sizeof *ones), 0);
        bench_rotate(&m, &t, sizeof t);
    }
    free(ones);
    close_memory(&m);
}
