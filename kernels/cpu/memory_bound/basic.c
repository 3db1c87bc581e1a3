// SPDX-License-Identifier: Apache-2.0
/* The elementary memory ops: fill, copy, cast, transfer, add, init_normal. All work in blocks of rows, or of
 * elements, of fixed size. */
#include "kernels/cpu/cpu.h"

#include "base/normal.h"
#include "kernels/numbers/narrow.h"

#include <string.h>

enum { SEGMENT_ELEMENTS = 1024 }; // floats on the stack
enum { BLOCK_ELEMENTS = 32768 };  // 128 KiB of fp32: some microseconds, well above the overhead of a task

/* Rows of a view with any number of dimensions: all but the last are folded into one, which validation has
 * ensured to be possible. */
struct rows {
    char *data;
    int64_t count, columns;
    size_t stride_bytes;
};

static struct rows rows_of(struct tensor t)
{
    size_t size = dtype_bytes(t.dtype);
    if (t.ndim == 2)
        return (struct rows){t.data, t.dim[0], t.dim[1], (size_t)t.stride[0] * size};
    int64_t count = tensor_count(t);
    return (struct rows){t.data, 1, count, (size_t)count * size};
}

/* One task is a range of complete rows, or, for long rows, a segment of one row. */
struct task_split {
    int64_t rows_each, columns_each, segments; // segments: per row
    int64_t tasks;
};

static struct task_split split_rows(struct rows rows)
{
    struct task_split split = {.rows_each = 1, .columns_each = rows.columns, .segments = 1};
    if (rows.columns > BLOCK_ELEMENTS) {
        split.columns_each = BLOCK_ELEMENTS;
        split.segments = (rows.columns + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    } else if (rows.columns > 0) {
        split.rows_each = BLOCK_ELEMENTS / rows.columns;
    }
    split.tasks = (rows.count + split.rows_each - 1) / split.rows_each * split.segments;
    return split;
}

struct rows_task {
    struct task_split split;
    struct rows in, out;
    enum dtype dtype, in_dtype; // of out and of in; they differ only in cast
    float value;
    const struct init_normal *normal;
    void (*row)(const struct rows_task *args, int64_t row, int64_t column, int64_t columns);
};

static void run_task(void *context, int64_t task)
{
    const struct rows_task *args = context;
    int64_t first = task / args->split.segments * args->split.rows_each;
    int64_t column = task % args->split.segments * args->split.columns_each;
    int64_t columns = args->out.columns - column;
    if (columns > args->split.columns_each)
        columns = args->split.columns_each;
    for (int64_t r = first; r < first + args->split.rows_each && r < args->out.count; r++)
        args->row(args, r, column, columns);
}

static void run_rows(struct device *device, struct rows_task *args)
{
    args->split = split_rows(args->out);
    cpu_parallel(device, args->split.tasks, run_task, args);
}

static char *at(struct rows rows, enum dtype dtype, int64_t row, int64_t column)
{
    return rows.data + (size_t)row * rows.stride_bytes + (size_t)column * dtype_bytes(dtype);
}

/* One loop per type: a switch within the loop would prevent vectorization. */
static void fill_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    const float value = args->value;
    void *out = at(args->out, args->dtype, row, column);
    float *f32 = out;
    double *f64 = out;
    int32_t *i32 = out;
    int64_t *i64 = out;
    uint16_t *half = out, narrow = args->dtype == BF16 ? bf16_of(value) : f16_of(value);
    switch (args->dtype) {
    case F32:
        for (int64_t i = 0; i < columns; i++)
            f32[i] = value;
        break;
    case F64:
        for (int64_t i = 0; i < columns; i++)
            f64[i] = (double)value;
        break;
    case I32:
        for (int64_t i = 0; i < columns; i++)
            i32[i] = (int32_t)value;
        break;
    case I64:
        for (int64_t i = 0; i < columns; i++)
            i64[i] = (int64_t)value;
        break;
    case BF16:
    case F16:
        for (int64_t i = 0; i < columns; i++)
            half[i] = narrow;
        break;
    case DTYPE_COUNT:
        break;
    }
}

void cpu_fill(struct device *device, const struct fill *op)
{
    struct rows_task args = {
        .out = rows_of(op->out), .dtype = op->out.dtype, .value = op->value, .row = fill_row};
    run_rows(device, &args);
}

static void copy_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    memcpy(at(args->out, args->dtype, row, column), at(args->in, args->dtype, row, column),
           (size_t)columns * dtype_bytes(args->dtype));
}

void cpu_copy(struct device *device, const struct copy *op)
{
    struct rows_task args = {
        .in = rows_of(op->in), .out = rows_of(op->out), .dtype = op->out.dtype, .row = copy_row};
    run_rows(device, &args);
}

/* Between narrow types through fp32, a segment at a time: fp32 represents both exactly. */
static void cast_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    float segment[SEGMENT_ELEMENTS];
    for (int64_t i = 0; i < columns; i += SEGMENT_ELEMENTS) {
        int64_t n = columns - i < SEGMENT_ELEMENTS ? columns - i : SEGMENT_ELEMENTS;
        const char *in = at(args->in, args->in_dtype, row, column + i);
        char *out = at(args->out, args->dtype, row, column + i);
        if (args->dtype == F32) {
            widen_floats(args->in_dtype, in, (float *)(void *)out, n);
        } else if (args->in_dtype == F32) {
            narrow_floats(args->dtype, (const float *)(const void *)in, out, n);
        } else {
            widen_floats(args->in_dtype, in, segment, n);
            narrow_floats(args->dtype, segment, out, n);
        }
    }
}

void cpu_cast(struct device *device, const struct cast *op)
{
    struct rows_task args = {.in = rows_of(op->in),
                             .out = rows_of(op->out),
                             .dtype = op->out.dtype,
                             .in_dtype = op->in.dtype,
                             .row = cast_row};
    run_rows(device, &args);
}

void cpu_transfer(struct device *device, const struct transfer *op)
{
    (void)device;
    memcpy(op->to, op->from, op->bytes);
}

static void add_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    char *out = at(args->out, args->dtype, row, column), *in = at(args->in, args->dtype, row, column);
    if (args->dtype == F64) {
        for (int64_t i = 0; i < columns; i++)
            ((double *)out)[i] += ((const double *)in)[i];
    } else {
        for (int64_t i = 0; i < columns; i++)
            ((float *)out)[i] += ((const float *)in)[i];
    }
}

void cpu_add(struct device *device, const struct add *op)
{
    struct rows_task args = {
        .in = rows_of(op->in), .out = rows_of(op->out), .dtype = op->out.dtype, .row = add_row};
    run_rows(device, &args);
}

/* 16-bit types are added in fp32, and rounded once. */
static void add_parts_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    float sum[SEGMENT_ELEMENTS], part[SEGMENT_ELEMENTS];
    (void)row; // out has only one
    for (int64_t i = 0; i < columns; i += SEGMENT_ELEMENTS) {
        int64_t n = columns - i < SEGMENT_ELEMENTS ? columns - i : SEGMENT_ELEMENTS;
        for (int64_t r = 0; r < args->in.count; r++) {
            widen_floats(args->dtype, at(args->in, args->dtype, r, column + i), r == 0 ? sum : part, n);
            for (int64_t l = 0; r > 0 && l < n; l++)
                sum[l] += part[l];
        }
        narrow_floats(args->dtype, sum, at(args->out, args->dtype, 0, column + i), n);
    }
}

void cpu_add_parts(struct device *device, const struct add_parts *op)
{
    struct rows_task args = {
        .in = rows_of(op->parts), .out = rows_of(op->out), .dtype = op->out.dtype, .row = add_parts_row};
    run_rows(device, &args);
}

static void normal_row(const struct rows_task *args, int64_t row, int64_t column, int64_t columns)
{
    const struct init_normal *op = args->normal;
    float segment[SEGMENT_ELEMENTS];
    int64_t begin = (op->row_begin + row) * op->columns + op->column_begin + column;
    for (int64_t i = 0; i < columns; i += SEGMENT_ELEMENTS) {
        int64_t n = columns - i < SEGMENT_ELEMENTS ? columns - i : SEGMENT_ELEMENTS;
        normal_fill(op->generator, 0, begin + i, n, segment);
        for (int64_t l = 0; l < n; l++)
            segment[l] *= op->std;
        narrow_floats(args->dtype, segment, at(args->out, args->dtype, row, column + i), n);
    }
}

void cpu_init_normal(struct device *device, const struct init_normal *op)
{
    struct rows_task args = {
        .out = rows_of(op->out), .dtype = op->out.dtype, .normal = op, .row = normal_row};
    run_rows(device, &args);
}
