// SPDX-License-Identifier: Apache-2.0
/* Matrix multiplication: c is cut into panels by its shape alone, and each panel is one call of the BLAS
 * on one thread.
 *
 *     c [1024, 3072]:   2 x 4 panels of 512 x 768        whoever is free takes the next
 *
 * Why not let the BLAS use its own threads: oneDNN gives other bits with one thread and with two for
 * some shapes, and both libraries may give other bits for some subsets of the rows. Here the calls are
 * the same for any number of threads, and so are the bits.
 *
 * Panels are large because each call packs its rows of a and its columns of b anew: at 512 x 768 that costs a
 * few per cent, at 256 x 256 fifteen. They are not larger because a machine has more than two threads, and
 * because a panel of c should stay in the second-level cache. Their number is even where it can be,
 * for the sake of two threads. The bits may depend on the row strides too: oneDNN picks its way by them. */
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { PANEL_ROWS = 512, PANEL_COLUMNS = 1536, PANELS_ENOUGH = 6, PANEL_LEAST = 512 * 384, PANEL_STEP = 16 };

/* c as a grid of panels, all of one size but for the last in each direction. */
struct grid {
    int64_t rows, columns;       // of one panel
    int64_t down, across, tasks; // how many
};

static int64_t parts_of(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* The least multiple of PANEL_STEP that cuts `size` into no more parts than `part` does. */
static int64_t even(int64_t size, int64_t part)
{
    return parts_of(parts_of(size, parts_of(size, part)), PANEL_STEP) * PANEL_STEP;
}

static struct grid grid_of(int64_t m, int64_t n)
{
    int64_t down = parts_of(m, PANEL_ROWS);
    int64_t rows = even(m, parts_of(m, down + (down > 1 ? down % 2 : 0)));
    int64_t columns = even(n, PANEL_COLUMNS);
    while (parts_of(m, rows) * parts_of(n, columns) < PANELS_ENOUGH && rows * columns > PANEL_LEAST) {
        if (columns >= rows)
            columns = even(n, columns / 2);
        else
            rows = even(m, rows / 2);
    }
    struct grid grid = {
        .rows = rows, .columns = columns, .down = parts_of(m, rows), .across = parts_of(n, columns)};
    grid.tasks = grid.down * grid.across;
    return grid;
}

struct job {
    struct grid grid;
    struct blas_panel whole;
    const float *bias; // NULL: none
};

/* What the product is added to. True when there is anything. */
static bool prepare(const struct job *job, const struct blas_panel *p, int64_t first_column)
{
    for (int64_t r = 0; r < p->m; r++) {
        float *row = p->c + r * p->ldc;
        if (job->bias != NULL && p->accumulate) {
            for (int64_t j = 0; j < p->n; j++)
                row[j] += job->bias[first_column + j];
        } else if (job->bias != NULL) {
            memcpy(row, job->bias + first_column, (size_t)p->n * sizeof *row);
        } else if (!p->accumulate && p->k == 0) {
            memset(row, 0, (size_t)p->n * sizeof *row);
        }
    }
    return job->bias != NULL || p->accumulate;
}

static void run_panel(void *context, int64_t task)
{
    const struct job *job = context;
    struct blas_panel p = job->whole;

    // Down first: neighbours in time use the same columns of b.
    int64_t row = task % job->grid.down * job->grid.rows;
    int64_t column = task / job->grid.down * job->grid.columns;
    p.m = p.m - row < job->grid.rows ? p.m - row : job->grid.rows;
    p.n = p.n - column < job->grid.columns ? p.n - column : job->grid.columns;
    p.a += p.transpose_a ? row : row * p.lda;
    p.b += p.transpose_b ? column * p.ldb : column;
    p.c += row * p.ldc + column;
    p.accumulate = prepare(job, &p, column);
    if (p.k > 0)
        blas_sgemm(&p, 1);
}

/* A matrix of one row may carry any stride; a BLAS wants one that is at least the row. */
static int64_t leading(struct tensor t)
{
    int64_t least = t.dim[1] > 0 ? t.dim[1] : 1;
    return t.stride[0] > least ? t.stride[0] : least;
}

void cpu_gemm(struct device *device, const struct gemm *op)
{
    struct job job = {
        .grid = grid_of(op->c.dim[0], op->c.dim[1]),
        .whole = {.transpose_a = op->transpose_a,
                  .transpose_b = op->transpose_b,
                  .accumulate = op->accumulate,
                  .m = op->c.dim[0],
                  .n = op->c.dim[1],
                  .k = op->a.dim[op->transpose_a ? 0 : 1],
                  .a = op->a.data,
                  .b = op->b.data,
                  .c = op->c.data,
                  .lda = leading(op->a),
                  .ldb = leading(op->b),
                  .ldc = leading(op->c)},
        .bias = op->bias.data,
    };
    cpu_parallel(device, job.grid.tasks, run_panel, &job);
}
