// SPDX-License-Identifier: Apache-2.0
#include "kernels/tensor.h"

#include <stdio.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [F32] = {"f32", 4}, [F64] = {"f64", 8},   [I32] = {"i32", 4},
    [I64] = {"i64", 8}, [BF16] = {"bf16", 2}, [F16] = {"f16", 2},
};
_Static_assert(sizeof dtypes / sizeof *dtypes == DTYPE_COUNT, "one row for each dtype");

size_t dtype_bytes(enum dtype dtype)
{
    CHECK((int)dtype >= 0 && dtype < DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const char *dtype_name(enum dtype dtype)
{
    return (int)dtype >= 0 && dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

bool dtype_is_working(enum dtype dtype)
{
    return dtype == F32 || dtype == BF16 || dtype == F16;
}

struct tensor tensor_1d(void *data, enum dtype dtype, int64_t count)
{
    CHECK(count >= 0);
    return (struct tensor){.data = data, .dtype = dtype, .ndim = 1, .dim = {count}, .stride = {1}};
}

struct tensor tensor_2d(void *data, enum dtype dtype, int64_t rows, int64_t columns)
{
    CHECK(rows >= 0 && columns >= 0);
    return (struct tensor){
        .data = data, .dtype = dtype, .ndim = 2, .dim = {rows, columns}, .stride = {columns, 1}};
}

int64_t tensor_count(struct tensor t)
{
    int64_t count = t.data == NULL ? 0 : 1;
    for (int d = 0; d < t.ndim; d++)
        count *= t.dim[d];
    return count;
}

size_t tensor_bytes(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_bytes(t.dtype);
}

bool tensor_is_dense(struct tensor t)
{
    int64_t stride = 1;
    for (int d = t.ndim - 1; d >= 0; d--) {
        if (t.dim[d] > 1 && t.stride[d] != stride)
            return tensor_count(t) == 0;
        stride *= t.dim[d];
    }
    return true;
}

bool tensor_same_shape(struct tensor a, struct tensor b)
{
    if (a.ndim != b.ndim)
        return false;
    for (int d = 0; d < a.ndim; d++) {
        if (a.dim[d] != b.dim[d])
            return false;
    }
    return true;
}

/* Indices [begin, end) of dimension `d`. */
static struct tensor narrow(struct tensor t, int d, int64_t begin, int64_t end)
{
    CHECK(t.data != NULL && t.ndim == 2);
    CHECK(0 <= begin && begin <= end && end <= t.dim[d]);
    t.data = (char *)t.data + (size_t)(begin * t.stride[d]) * dtype_bytes(t.dtype);
    t.dim[d] = end - begin;
    return t;
}

struct tensor tensor_rows(struct tensor t, int64_t begin, int64_t end)
{
    return narrow(t, 0, begin, end);
}

struct tensor tensor_columns(struct tensor t, int64_t begin, int64_t end)
{
    return narrow(t, 1, begin, end);
}

const char *tensor_text(struct tensor t, char out[TENSOR_TEXT_CHARS])
{
    if (t.data == NULL) {
        snprintf(out, TENSOR_TEXT_CHARS, "none");
        return out;
    }
    // Four dimensions of twenty characters fit; a longer text would be truncated.
    size_t length = (size_t)snprintf(out, TENSOR_TEXT_CHARS, "%s[", dtype_name(t.dtype));
    for (int d = 0; d < t.ndim && d < TENSOR_MAX_DIMS && length < TENSOR_TEXT_CHARS; d++)
        length += (size_t)snprintf(out + length, TENSOR_TEXT_CHARS - length, "%s%lld", d > 0 ? ", " : "",
                                   (long long)t.dim[d]);
    if (length < TENSOR_TEXT_CHARS)
        snprintf(out + length, TENSOR_TEXT_CHARS - length, "]");
    return out;
}
