// SPDX-License-Identifier: Apache-2.0
/* Matrix multiplication: c is divided into panels by its shape alone, and each panel is one BLAS call on one
 * thread.
 *
 *     c [1024, 3072]:   2 x 4 panels of 512 x 768        each idle thread takes the next
 *
 * The BLAS's own threading is not used: for some shapes oneDNN's bits differ between one thread and two, and
 * both libraries may give other bits for subsets of the rows. Here the calls, and therefore the bits, are the
 * same for any number of threads.
 *
 * Panels are large because each call packs its rows of a and columns of b again: at 512 x 768 that costs a
 * few per cent, at 256 x 256 fifteen. They are not larger, to leave work for more than two threads and to
 * keep a panel of c in the L2 cache. Their number is even if possible, for two threads. The bits may also
 * depend on the row strides, by which oneDNN selects its algorithm.
 *
 * bf16 uses the library's bf16 gemm if it has one, in the same panels. Otherwise, and for f16, whole operands
 * are converted to fp32, multiplied, and the result rounded once: correct, but no faster than fp32. */
#include "kernels/cpu/matmul/blas.h"
#include "kernels/cpu/rows.h"
#include "kernels/device_plan.h"

#include <string.h>

enum { MAX_THREADS = 1024 };
enum {
    PANEL_ROWS = 512,
    PANEL_COLUMNS = 1536,
    MIN_PANELS = 6,
    MIN_PANEL_ELEMENTS = 512 * 384,
    PANEL_STEP = 16
};

/* c as a grid of panels, equal except for the last in each direction. */
struct grid {
    int64_t rows, columns;       // size of a panel
    int64_t down, across, tasks; // panel counts
};

/* The least multiple of PANEL_STEP that does not divide `size` into more parts than `part` does. */
static int64_t even_size(int64_t size, int64_t part)
{
    return blocks_of(blocks_of(size, blocks_of(size, part)), PANEL_STEP) * PANEL_STEP;
}

static struct grid grid_of(int64_t m, int64_t n)
{
    int64_t down = blocks_of(m, PANEL_ROWS);
    int64_t rows = even_size(m, blocks_of(m, down + (down > 1 ? down % 2 : 0)));
    int64_t columns = even_size(n, PANEL_COLUMNS);
    while (blocks_of(m, rows) * blocks_of(n, columns) < MIN_PANELS && rows * columns > MIN_PANEL_ELEMENTS) {
        if (columns >= rows)
            columns = even_size(n, columns / 2);
        else
            rows = even_size(m, rows / 2);
    }
    struct grid grid = {
        .rows = rows, .columns = columns, .down = blocks_of(m, rows), .across = blocks_of(n, columns)};
    grid.tasks = grid.down * grid.across;
    return grid;
}

double cpu_matmul_speedup(int64_t m, int64_t n, int threads)
{
    const struct grid grid = grid_of(m, n);
    double busy[MAX_THREADS] = {0}, all = 0.0, end = 0.0;
    const int count = threads < MAX_THREADS ? threads : MAX_THREADS;
    if (m < 1 || n < 1)
        return 1.0;
    for (int64_t task = 0; task < grid.tasks; task++) {
        const int64_t row = task % grid.down * grid.rows, column = task / grid.down * grid.columns;
        const double area = (double)min_i64(grid.rows, m - row) * (double)min_i64(grid.columns, n - column);
        int first = 0; // to be idle
        for (int t = 1; t < count; t++)
            first = busy[t] < busy[first] ? t : first;
        busy[first] += area;
        end = busy[first] > end ? busy[first] : end;
        all += area;
    }
    return all / end;
}

struct gemm_task {
    struct grid grid;
    struct blas_panel whole;
    struct tensor a, b, c, bias; // bias {0}: none
    bool bf16;
};

/* Initializes c for accumulation. Returns whether to accumulate. */
static bool prepare(const struct gemm_task *args, const struct blas_panel *p, int64_t first_column)
{
    const float *bias = args->bias.data;
    for (int64_t r = 0; r < p->m; r++) {
        float *row = (float *)p->c + r * p->ldc;
        if (bias != NULL && p->accumulate) {
            for (int64_t j = 0; j < p->n; j++)
                row[j] += bias[first_column + j];
        } else if (bias != NULL) {
            memcpy(row, bias + first_column, (size_t)p->n * sizeof *row);
        } else if (!p->accumulate && p->k == 0) {
            memset(row, 0, (size_t)p->n * sizeof *row);
        }
    }
    return bias != NULL || p->accumulate;
}

static void run_panel(void *context, int64_t task)
{
    const struct gemm_task *args = context;
    struct blas_panel p = args->whole;

    // Down first: consecutive panels use the same columns of b.
    int64_t row = task % args->grid.down * args->grid.rows;
    int64_t column = task / args->grid.down * args->grid.columns;
    p.m = p.m - row < args->grid.rows ? p.m - row : args->grid.rows;
    p.n = p.n - column < args->grid.columns ? p.n - column : args->grid.columns;
    p.a = p.transpose_a ? row_bytes(args->a, 0, row) : row_bytes(args->a, row, 0);
    p.b = p.transpose_b ? row_bytes(args->b, column, 0) : row_bytes(args->b, 0, column);
    p.c = row_bytes(args->c, row, column);
    if (args->bf16) {
        p.bias = args->bias.data != NULL ? row_bytes(args->bias, 0, column) : NULL;
        blas_bf16(&p, 1);
        return;
    }
    p.accumulate = prepare(args, &p, column);
    if (p.k > 0)
        blas_sgemm(&p, 1);
}

/* A single-row matrix may have any stride; a BLAS requires at least the row length. */
static int64_t leading_dimension(struct tensor t)
{
    int64_t least = t.dim[1] > 0 ? t.dim[1] : 1;
    return t.stride[0] > least ? t.stride[0] : least;
}

/* In the library's native type, fp32 or bf16. */
static void multiply(struct device *device, const struct gemm *op)
{
    struct gemm_task args = {
        .grid = grid_of(op->c.dim[0], op->c.dim[1]),
        .whole = {.transpose_a = op->transpose_a,
                  .transpose_b = op->transpose_b,
                  .accumulate = op->accumulate,
                  .m = op->c.dim[0],
                  .n = op->c.dim[1],
                  .k = op->a.dim[op->transpose_a ? 0 : 1],
                  .lda = leading_dimension(op->a),
                  .ldb = leading_dimension(op->b),
                  .ldc = leading_dimension(op->c),
                  .c_type = op->c.dtype},
        .a = op->a,
        .b = op->b,
        .c = op->c,
        .bias = op->bias,
        .bf16 = op->a.dtype == BF16,
    };
    cpu_parallel(device, args.grid.tasks, run_panel, &args);
}

/* Whether the library supports the operand types directly. */
static bool is_native(const struct gemm *op)
{
    bool has_terms = op->a.dim[op->transpose_a ? 0 : 1] > 0;
    return op->a.dtype == F32 || (op->a.dtype == BF16 && has_terms && blas_has_bf16());
}

enum { LINE_FLOATS = 16 }; // of 64 bytes

/* A dense fp32 copy of t, in `scratch` after the *taken floats in use; f32 stays in place. */
static struct tensor widen_operand(struct tensor t, int64_t *taken, float *scratch)
{
    float *at = scratch + *taken;
    if (t.data == NULL || t.dtype == F32)
        return t;
    *taken += blocks_of(tensor_count(t), LINE_FLOATS) * LINE_FLOATS;
    return t.ndim == 1 ? tensor_1d(at, F32, t.dim[0]) : tensor_2d(at, F32, t.dim[0], t.dim[1]);
}

static struct gemm widened(const struct gemm *op, float *scratch, int64_t *floats)
{
    struct gemm wide = *op;
    *floats = 0;
    wide.a = widen_operand(op->a, floats, scratch);
    wide.b = widen_operand(op->b, floats, scratch);
    wide.bias = widen_operand(op->bias, floats, scratch);
    wide.c = widen_operand(op->c, floats, scratch);
    return wide;
}

size_t cpu_gemm_scratch(const struct gemm *op)
{
    float none;
    int64_t floats = 0;
    if (!is_native(op))
        widened(op, &none, &floats);
    return (size_t)floats * sizeof(float);
}

static void multiply_widened(struct device *device, const struct gemm *op)
{
    int64_t floats;
    struct gemm wide = widened(op, cpu_scratch(device, cpu_gemm_scratch(op)), &floats);
    const struct tensor in[] = {op->a, op->b, op->bias}, out[] = {wide.a, wide.b, wide.bias};
    for (int i = 0; i < 3; i++)
        if (tensor_count(in[i]) > 0)
            cpu_cast(device, &(struct cast){.in = in[i], .out = out[i]});
    multiply(device, &wide);
    if (op->c.dtype != F32)
        cpu_cast(device, &(struct cast){.in = wide.c, .out = op->c});
}

void cpu_gemm(struct device *device, const struct gemm *op)
{
    if (is_native(op))
        multiply(device, op);
    else
        multiply_widened(device, op);
}
