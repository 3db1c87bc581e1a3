// SPDX-License-Identifier: Apache-2.0
/* Embedding lookup and its gradient.
 *
 * backward: several tokens may have the same id, so the tasks are columns, and each loops over all tokens in
 * order: every element of the table accumulates its terms in token order, on any number of threads. */
#include "kernels/cpu/rows.h"

#include <string.h>

enum { COLUMN_BLOCK = 128 };

/* The table row of token t, or -1 if another rank owns it. */
static int64_t row_of(const int32_t *id, int64_t t, int64_t begin, int64_t rows)
{
    int64_t row = (int64_t)id[t] - begin;
    return row >= 0 && row < rows ? row : -1;
}

static void forward_row(const struct embedding_forward *op, int64_t t)
{
    int64_t row = row_of(op->id, t, op->begin, op->rows), n = op->out.dim[1];
    size_t bytes = (size_t)n * dtype_bytes(op->out.dtype);
    if (row < 0) {
        if (!op->accumulate)
            memset(row_bytes(op->out, t, 0), 0, bytes);
        return;
    }
    if (!op->accumulate) {
        memcpy(row_bytes(op->out, t, 0), row_bytes(op->table, row, 0), bytes);
        return;
    }
    for (struct segment p = segment_first(op->out, t); p.count > 0; p = segment_next(op->out, p)) {
        float buffer[2][SEGMENT_ELEMENTS];
        float *out = row_in(op->out, p, buffer[0]);
        const float *in = row_in(op->table, (struct segment){row, p.column, p.count}, buffer[1]);
        for (int64_t i = 0; i < p.count; i++)
            out[i] += in[i];
        row_store(op->out, p, out);
    }
}

static void forward_task(void *context, int64_t task)
{
    const struct embedding_forward *op = context;
    int64_t each = rows_each_task(op->out.dim[1]), end = min_i64((task + 1) * each, op->out.dim[0]);
    for (int64_t t = task * each; t < end; t++)
        forward_row(op, t);
}

void cpu_embedding_forward(struct device *device, const struct embedding_forward *op)
{
    struct embedding_forward args = *op;
    cpu_parallel(device, blocks_of(op->out.dim[0], rows_each_task(op->out.dim[1])), forward_task, &args);
}

static void backward_task(void *context, int64_t task)
{
    const struct embedding_backward *op = context;
    int64_t begin = task * COLUMN_BLOCK, n = min_i64(COLUMN_BLOCK, op->dtable.dim[1] - begin);
    for (int64_t t = 0; t < op->dout.dim[0]; t++) {
        int64_t row = row_of(op->id, t, op->begin, op->rows);
        if (row < 0)
            continue;
        float buffer[COLUMN_BLOCK];
        const float *in = row_in(op->dout, (struct segment){t, begin, n}, buffer);
        float *restrict out = f32_row(op->dtable, row) + begin;
        for (int64_t i = 0; i < n; i++)
            out[i] += in[i];
    }
}

void cpu_embedding_backward(struct device *device, const struct embedding_backward *op)
{
    struct embedding_backward args = *op;
    cpu_parallel(device, blocks_of(op->dtable.dim[1], COLUMN_BLOCK), backward_task, &args);
}
