// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/reduce.h"

#include "kernels/numbers/narrow.h"

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

// "Not at most" is true for NaN in x; the second test keeps NaN in acc.
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

static bool is_narrow(enum dtype dtype)
{
    return dtype == BF16 || dtype == F16;
}

void *reduce_begin(enum dtype dtype, void *out, const void *first, float *buffer, int64_t count)
{
    if (is_narrow(dtype)) {
        widen_floats(dtype, first, buffer, count);
        return buffer;
    }
    if (out != first)
        memcpy(out, first, (size_t)count * dtype_bytes(dtype));
    return out;
}

void reduce_end(enum dtype dtype, const void *acc, void *out, int64_t count)
{
    if (is_narrow(dtype))
        narrow_floats(dtype, acc, out, count);
}

/* Converts and reduces x tile by tile in fp32. */
static void reduce_narrow(enum dtype dtype, bool add, float *acc, const uint16_t *x, int64_t count)
{
    enum { CHUNK = 512 };
    float wide[CHUNK];
    for (int64_t i = 0; i < count; i += CHUNK) {
        int64_t n = count - i < CHUNK ? count - i : CHUNK;
        widen_floats(dtype, x + i, wide, n);
        if (add)
            add_f32(acc + i, wide, n);
        else
            max_f32(acc + i, wide, n);
    }
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
    case BF16:
    case F16:
        return reduce_narrow(dtype, add, acc, x, count);
    case DTYPE_COUNT:
        break;
    }
    CHECK(dtype < DTYPE_COUNT);
}
