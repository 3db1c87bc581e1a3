// SPDX-License-Identifier: Apache-2.0
#include "parallel/reduce.h"

static void add_f32(float *restrict acc, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

static void add_f64(double *restrict acc, const double *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

static void add_i32(uint32_t *restrict acc, const uint32_t *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

static void add_i64(uint64_t *restrict acc, const uint64_t *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

// Written with "not at most", which is true for a NaN in x; one in acc is kept by the second test.
static void max_f32(float *restrict acc, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] = !(x[i] <= acc[i]) && acc[i] == acc[i] ? x[i] : acc[i];
}

static void max_f64(double *restrict acc, const double *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] = !(x[i] <= acc[i]) && acc[i] == acc[i] ? x[i] : acc[i];
}

static void max_i32(int32_t *restrict acc, const int32_t *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] = x[i] > acc[i] ? x[i] : acc[i];
}

static void max_i64(int64_t *restrict acc, const int64_t *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] = x[i] > acc[i] ? x[i] : acc[i];
}

void reduce_into(enum dtype dtype, enum reduction how, void *acc, const void *x, int64_t count)
{
    bool add = how == REDUCE_SUM;
    switch (dtype) {
    case F32:
        return add ? add_f32(acc, x, count) : max_f32(acc, x, count);
    case F64:
        return add ? add_f64(acc, x, count) : max_f64(acc, x, count);
    case I32:
        return add ? add_i32(acc, x, count) : max_i32(acc, x, count);
    case I64:
        return add ? add_i64(acc, x, count) : max_i64(acc, x, count);
    case DTYPE_COUNT:
        break;
    }
    CHECK(dtype < DTYPE_COUNT);
}
