// SPDX-License-Identifier: Apache-2.0
/* Op entry points, part two: the ops of transformer layers. T is the row count of the first matrix; without
 * rows there is nothing to do, except that overwritten gradients become zero. */
#include "kernels/check_ops.h"

#include <math.h>

/* x determines T, H and the working type. */
static enum status check_rows(enum op_kind kind, const char *name, struct tensor x)
{
    const struct arg_check checks[] = {matrix(name, x, working_type(x), ANY_SIZE, ANY_SIZE)};
    return check_args(kind, checks, 1);
}

static enum status check_norm_forward(enum op_kind kind, const struct norm_forward *args)
{
    TRY(check_rows(kind, "x", args->x));
    enum dtype type = args->x.dtype;
    int64_t rows = args->x.dim[0], columns = args->x.dim[1];
    bool layer = args->kind == NORM_LAYER;
    const struct arg_check checks[] = {
        matrix("x", args->x, type, rows, columns),
        vector("weight", args->weight, type, columns),
        layer ? vector("bias", args->bias, type, columns) : per_row("bias", NULL, 0),
        matrix("y", args->y, type, rows, columns),
        layer ? vector("mean", args->mean, F32, rows) : per_row("mean", NULL, 0),
        vector("rstd", args->rstd, F32, rows),
    };
    CHECK_ARGS(kind, checks);
    return OK;
}

enum status norm_forward(struct stream *stream, struct norm_forward args)
{
    TRY(check_norm_forward(OP_NORM_FORWARD, &args));
    if (args.x.dim[0] == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_NORM_FORWARD, .norm_forward = args});
}

static enum status check_norm_backward(enum op_kind kind, const struct norm_backward *args)
{
    TRY(check_rows(kind, "x", args->x));
    enum dtype type = args->x.dtype;
    int64_t rows = args->x.dim[0], columns = args->x.dim[1];
    bool layer = args->kind == NORM_LAYER;
    const struct arg_check checks[] = {
        matrix("dy", args->dy, type, rows, columns),
        matrix("x", args->x, type, rows, columns),
        vector("weight", args->weight, type, columns),
        layer ? vector("mean", args->mean, F32, rows) : per_row("mean", NULL, 0),
        vector("rstd", args->rstd, F32, rows),
        optional(matrix("dresidual", args->dresidual, type, rows, columns)),
        matrix("dx", args->dx, type, rows, columns),
        vector("dweight", args->dweight, F32, columns),
        layer ? vector("dbias", args->dbias, F32, columns) : per_row("dbias", NULL, 0),
    };
    CHECK_ARGS(kind, checks);
    return OK;
}

enum status norm_backward(struct stream *stream, struct norm_backward args)
{
    TRY(check_norm_backward(OP_NORM_BACKWARD, &args));
    if (args.x.dim[0] == 0) {
        TRY(fill(stream, (struct fill){.out = args.dweight, .value = 0.0F}));
        return args.kind == NORM_LAYER ? fill(stream, (struct fill){.out = args.dbias, .value = 0.0F}) : OK;
    }
    return submit_op(stream, &(struct op){.kind = OP_NORM_BACKWARD, .norm_backward = args});
}

static int64_t activation_parts(enum activation kind)
{
    return activation_is_gated(kind) ? 2 : 1;
}

enum status activation_forward(struct stream *stream, struct activation_forward args)
{
    TRY(check_rows(OP_ACTIVATION_FORWARD, "y", args.y));
    int64_t rows = args.y.dim[0], columns = args.y.dim[1];
    const struct arg_check checks[] = {
        matrix("x", args.x, args.y.dtype, rows, activation_parts(args.kind) * columns),
        matrix("y", args.y, args.y.dtype, rows, columns),
    };
    CHECK_ARGS(OP_ACTIVATION_FORWARD, checks);
    if (tensor_count(args.y) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_ACTIVATION_FORWARD, .activation_forward = args});
}

enum status activation_backward(struct stream *stream, struct activation_backward args)
{
    TRY(check_rows(OP_ACTIVATION_BACKWARD, "dy", args.dy));
    int64_t rows = args.dy.dim[0], columns = activation_parts(args.kind) * args.dy.dim[1];
    const struct arg_check checks[] = {
        matrix("x", args.x, args.dy.dtype, rows, columns),
        matrix("dy", args.dy, args.dy.dtype, rows, args.dy.dim[1]),
        matrix("dx", args.dx, args.dy.dtype, rows, columns),
    };
    CHECK_ARGS(OP_ACTIVATION_BACKWARD, checks);
    if (tensor_count(args.dy) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_ACTIVATION_BACKWARD, .activation_backward = args});
}

enum status rope(struct stream *stream, struct rope args)
{
    TRY(check_rows(OP_ROPE, "x", args.x));
    int64_t rows = args.x.dim[0], columns = args.x.dim[1];
    if (args.head_dim < 2 || args.head_dim > ROPE_HEAD_DIM_MAX || args.head_dim % 2 != 0 ||
        columns % args.head_dim != 0)
        return fail(BAD_ARGUMENT, "rope: %lld columns are not heads of even size %lld, at most %d",
                    (long long)columns, (long long)args.head_dim, (int)ROPE_HEAD_DIM_MAX);
    if (args.rotated < 0 || args.rotated > args.head_dim || args.rotated % 2 != 0)
        return fail(BAD_ARGUMENT, "rope: %lld rotated channels of heads of size %lld",
                    (long long)args.rotated, (long long)args.head_dim);
    const struct arg_check checks[] = {per_row("position", args.position, rows)};
    CHECK_ARGS(OP_ROPE, checks);
    if (tensor_count(args.x) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_ROPE, .rope = args});
}

/* Checks q and k, which determine the other shapes. */
static enum status check_heads(enum op_kind kind, const struct attention_forward *args)
{
    enum dtype type = working_type(args->q);
    const struct arg_check qk[] = {matrix("q", args->q, type, ANY_SIZE, ANY_SIZE),
                                   matrix("k", args->k, type, ANY_SIZE, ANY_SIZE),
                                   matrix("v", args->v, type, args->k.dim[0], ANY_SIZE)};
    CHECK_ARGS(kind, qk);
    int64_t rows = args->q.dim[0], columns = args->q.dim[1], shared = args->k.dim[1], keys = args->k.dim[0];
    if (args->batch < 0 || args->sequence < 0 || args->batch * args->sequence != rows)
        return fail(BAD_ARGUMENT, "%s: batch %lld x sequence %lld is not the %lld rows of q", op_name(kind),
                    (long long)args->batch, (long long)args->sequence, (long long)rows);
    if (rows > 0 ? keys % args->batch != 0 || keys == 0 : keys != 0)
        return fail(BAD_ARGUMENT, "%s: the %lld rows of k are not %lld sequences", op_name(kind),
                    (long long)keys, (long long)args->batch);
    if (args->head_dim < 1 || columns % args->head_dim != 0 || shared % args->head_dim != 0 || shared == 0 ||
        columns % shared != 0)
        return fail(BAD_ARGUMENT,
                    "%s: %lld columns of q and %lld of k are not heads of size %lld in whole groups",
                    op_name(kind), (long long)columns, (long long)shared, (long long)args->head_dim);
    if (args->v.dim[1] == 0 || args->v.dim[1] % (shared / args->head_dim) != 0)
        return fail(BAD_ARGUMENT, "%s: %lld columns of v are not %lld heads", op_name(kind),
                    (long long)args->v.dim[1], (long long)(shared / args->head_dim));
    return OK;
}

static enum status check_softcap(enum op_kind kind, float cap, bool optional)
{
    if (isfinite(cap) && (cap > 0.0F || (optional && cap == 0.0F)))
        return OK;
    return fail(BAD_ARGUMENT, "%s: a soft cap of %g", op_name(kind), (double)cap);
}

static enum status check_attention(enum op_kind kind, const struct attention_forward *args)
{
    TRY(check_heads(kind, args));
    int64_t rows = args->q.dim[0], heads = args->q.dim[1] / args->head_dim, keys = attention_keys(args);
    const struct arg_check checks[] = {
        matrix("out", args->out, args->q.dtype, rows, heads * attention_value_dim(args)),
        matrix("lse", args->lse, F32, heads, rows),
    };
    CHECK_ARGS(kind, checks);
    bool inside = args->query_begin + args->sequence <= keys;
    bool drops = args->dropout.probability > 0.0F;
    if (args->window < 0)
        return fail(BAD_ARGUMENT, "%s: a window of %lld tokens", op_name(kind), (long long)args->window);
    if (args->alibi.heads > 0 && (args->alibi.begin < 0 || args->alibi.begin + heads > args->alibi.heads))
        return fail(BAD_ARGUMENT, "%s: heads %lld to %lld of %lld with ALiBi", op_name(kind),
                    (long long)args->alibi.begin, (long long)(args->alibi.begin + heads - 1),
                    (long long)args->alibi.heads);
    TRY(check_softcap(kind, args->softcap, true));
    bool needs_inside = args->document != NULL || drops || args->window > 0;
    if (args->query_begin < 0 || (rows > 0 && !inside && needs_inside))
        return fail(
            BAD_ARGUMENT, "%s: %lld queries from key row %lld on, and %lld keys%s", op_name(kind),
            (long long)args->sequence, (long long)args->query_begin, (long long)keys,
            args->query_begin < 0 ? "" : ": documents, dropout and a window need the queries among the keys");

    // The columns of this dropout's matrix are the keys; column_begin counts heads.
    struct dropout dropout = args->dropout;
    dropout.column_begin = 0;
    if (drops && args->dropout.column_begin < 0)
        return fail(BAD_ARGUMENT, "%s: dropout of head %lld", op_name(kind),
                    (long long)args->dropout.column_begin);
    return check_dropout(kind, &dropout, rows, keys, false);
}

/* A window of all keys is none: such an op then runs like any other. */
static void drop_wide_window(struct attention_forward *args)
{
    if (args->window >= attention_keys(args))
        args->window = 0;
}

enum status attention_forward(struct stream *stream, struct attention_forward args)
{
    TRY(check_attention(OP_ATTENTION_FORWARD, &args));
    if (tensor_count(args.q) == 0)
        return OK;
    drop_wide_window(&args);
    return submit_op(stream, &(struct op){.kind = OP_ATTENTION_FORWARD, .attention_forward = args});
}

enum status attention_backward(struct stream *stream, struct attention_backward args)
{
    TRY(check_attention(OP_ATTENTION_BACKWARD, &args.forward));
    enum dtype type = args.forward.q.dtype;
    const struct attention_forward *f = &args.forward;
    int64_t rows = f->q.dim[0], keys = f->k.dim[0];
    const struct arg_check checks[] = {
        matrix("dout", args.dout, type, rows, f->out.dim[1]),
        matrix("dq", args.dq, type, rows, f->q.dim[1]),
        matrix("dk", args.dk, type, keys, f->k.dim[1]),
        matrix("dv", args.dv, type, keys, f->v.dim[1]),
    };
    CHECK_ARGS(OP_ATTENTION_BACKWARD, checks);
    if (rows == 0)
        return OK;
    drop_wide_window(&args.forward);
    return submit_op(stream, &(struct op){.kind = OP_ATTENTION_BACKWARD, .attention_backward = args});
}

static enum status check_embedding(enum op_kind kind, struct tensor rows_of, struct tensor table,
                                   enum dtype table_type, const int32_t *id, int64_t begin, int64_t rows)
{
    TRY(check_rows(kind, "out", rows_of));
    const struct arg_check checks[] = {
        matrix("table", table, table_type, ANY_SIZE, rows_of.dim[1]),
        per_row("id", id, rows_of.dim[0]),
    };
    CHECK_ARGS(kind, checks);
    if (begin < 0 || rows < 0 || rows > table.dim[0])
        return fail(BAD_ARGUMENT, "%s: ids from %lld, %lld rows, and the table has %lld", op_name(kind),
                    (long long)begin, (long long)rows, (long long)table.dim[0]);
    return OK;
}

enum status embedding_forward(struct stream *stream, struct embedding_forward args)
{
    TRY(check_embedding(OP_EMBEDDING_FORWARD, args.out, args.table, args.out.dtype, args.id, args.begin,
                        args.rows));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_EMBEDDING_FORWARD, .embedding_forward = args});
}

enum status embedding_backward(struct stream *stream, struct embedding_backward args)
{
    TRY(check_embedding(OP_EMBEDDING_BACKWARD, args.dout, args.dtable, F32, args.id, args.begin, args.rows));
    if (tensor_count(args.dout) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_EMBEDDING_BACKWARD, .embedding_backward = args});
}

static enum status check_residual_forward(enum op_kind kind, const struct residual_forward *args)
{
    TRY(check_rows(kind, "x", args->x));
    enum dtype type = args->x.dtype;
    int64_t rows = args->x.dim[0], columns = args->x.dim[1];
    const struct arg_check checks[] = {
        matrix("x", args->x, type, rows, columns),
        optional(vector("bias", args->bias, type, columns)),
        optional(matrix("residual", args->residual, type, rows, columns)),
        matrix("out", args->out, type, rows, columns),
    };
    CHECK_ARGS(kind, checks);
    return check_dropout(kind, &args->dropout, rows, columns, true);
}

enum status residual_forward(struct stream *stream, struct residual_forward args)
{
    TRY(check_residual_forward(OP_RESIDUAL_FORWARD, &args));
    if (tensor_count(args.x) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_RESIDUAL_FORWARD, .residual_forward = args});
}

static enum status check_residual_backward(enum op_kind kind, const struct residual_backward *args)
{
    TRY(check_rows(kind, "dout", args->dout));
    int64_t rows = args->dout.dim[0], columns = args->dout.dim[1];
    const struct arg_check checks[] = {
        matrix("dout", args->dout, args->dout.dtype, rows, columns),
        matrix("dx", args->dx, args->dout.dtype, rows, columns),
    };
    CHECK_ARGS(kind, checks);
    return check_dropout(kind, &args->dropout, rows, columns, true);
}

enum status residual_backward(struct stream *stream, struct residual_backward args)
{
    TRY(check_residual_backward(OP_RESIDUAL_BACKWARD, &args));
    if (tensor_count(args.dout) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_RESIDUAL_BACKWARD, .residual_backward = args});
}

/* The second op must read the tensor that the first writes. */
static enum status check_same(enum op_kind kind, const char *read, struct tensor a, const char *written,
                              struct tensor b)
{
    char shape_a[TENSOR_TEXT_CHARS], shape_b[TENSOR_TEXT_CHARS];
    if (a.data == b.data && a.dtype == b.dtype && tensor_same_shape(a, b) && a.stride[0] == b.stride[0])
        return OK;
    return fail(BAD_ARGUMENT, "%s: %s, %s, is not %s, %s", op_name(kind), read, tensor_text(a, shape_a),
                written, tensor_text(b, shape_b));
}

enum status residual_norm_forward(struct stream *stream, struct residual_norm_forward args)
{
    const enum op_kind kind = OP_RESIDUAL_NORM_FORWARD;
    TRY(check_residual_forward(kind, &args.residual));
    TRY(check_norm_forward(kind, &args.norm));
    TRY(check_same(kind, "norm.x", args.norm.x, "residual.out", args.residual.out));
    if (tensor_count(args.norm.x) == 0)
        return norm_forward(stream, args.norm);
    return submit_op(stream, &(struct op){.kind = kind, .residual_norm_forward = args});
}

enum status residual_norm_backward(struct stream *stream, struct residual_norm_backward args)
{
    const enum op_kind kind = OP_RESIDUAL_NORM_BACKWARD;
    TRY(check_norm_backward(kind, &args.norm));
    TRY(check_residual_backward(kind, &args.residual));
    TRY(check_same(kind, "residual.dout", args.residual.dout, "norm.dx", args.norm.dx));
    if (tensor_count(args.norm.x) == 0)
        return norm_backward(stream, args.norm);
    return submit_op(stream, &(struct op){.kind = kind, .residual_norm_backward = args});
}

/* The logits: `columns` are valid, and the first has global index `begin`. */
static enum status check_logits(enum op_kind kind, struct tensor logits, int64_t begin, int64_t columns)
{
    TRY(check_rows(kind, "logits", logits));
    if (begin < 0 || columns < 0 || columns > logits.dim[1])
        return fail(BAD_ARGUMENT, "%s: %lld valid columns from %lld, and the logits have %lld", op_name(kind),
                    (long long)columns, (long long)begin, (long long)logits.dim[1]);
    return OK;
}

enum status softcap(struct stream *stream, struct softcap args)
{
    TRY(check_rows(OP_SOFTCAP, "x", args.x));
    TRY(check_softcap(OP_SOFTCAP, args.cap, false));
    if (tensor_count(args.x) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_SOFTCAP, .softcap = args});
}

enum status loss_max(struct stream *stream, struct loss_max args)
{
    TRY(check_logits(OP_LOSS_MAX, args.logits, 0, args.columns));
    const struct arg_check checks[] = {matrix("logits", args.logits, args.logits.dtype, ANY_SIZE, ANY_SIZE),
                                       vector("max", args.max, F32, args.logits.dim[0])};
    CHECK_ARGS(OP_LOSS_MAX, checks);
    if (args.logits.dim[0] == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_LOSS_MAX, .loss_max = args});
}

enum status loss_sum(struct stream *stream, struct loss_sum args)
{
    TRY(check_logits(OP_LOSS_SUM, args.logits, args.begin, args.columns));
    int64_t rows = args.logits.dim[0];
    const struct arg_check checks[] = {
        matrix("logits", args.logits, args.logits.dtype, rows, ANY_SIZE),
        vector("max", args.max, F32, rows),
        per_row("label", args.label, rows),
        vector("sum", args.sum, F32, rows),
        vector("target", args.target, F32, rows),
    };
    CHECK_ARGS(OP_LOSS_SUM, checks);
    if (rows == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_LOSS_SUM, .loss_sum = args});
}

enum status loss_finish(struct stream *stream, struct loss_finish args)
{
    const struct arg_check sums[] = {vector("sum", args.sum, F32, ANY_SIZE),
                                     vector("sample_loss", args.sample_loss, F64, ANY_SIZE)};
    CHECK_ARGS(OP_LOSS_FINISH, sums);
    int64_t rows = args.sum.dim[0], batch = args.sample_loss.dim[0];
    const struct arg_check checks[] = {
        sums[0],
        vector("target", args.target, F32, rows),
        per_row("mask", args.mask, rows),
        sums[1],
        vector("sample_tokens", args.sample_tokens, F64, batch),
    };
    CHECK_ARGS(OP_LOSS_FINISH, checks);
    if (batch == 0 ? rows != 0 : rows % batch != 0)
        return fail(BAD_ARGUMENT, "loss_finish: %lld rows are not %lld sequences of equal length",
                    (long long)rows, (long long)batch);
    if (rows == 0) {
        TRY(fill(stream, (struct fill){.out = args.sample_loss, .value = 0.0F}));
        return fill(stream, (struct fill){.out = args.sample_tokens, .value = 0.0F});
    }
    return submit_op(stream, &(struct op){.kind = OP_LOSS_FINISH, .loss_finish = args});
}

enum status loss_backward(struct stream *stream, struct loss_backward args)
{
    TRY(check_logits(OP_LOSS_BACKWARD, args.logits, args.begin, args.columns));
    int64_t rows = args.logits.dim[0];
    const struct arg_check checks[] = {
        matrix("logits", args.logits, args.logits.dtype, rows, ANY_SIZE),
        vector("max", args.max, F32, rows),
        vector("sum", args.sum, F32, rows),
        per_row("label", args.label, rows),
        per_row("mask", args.mask, rows),
    };
    CHECK_ARGS(OP_LOSS_BACKWARD, checks);
    TRY(check_softcap(OP_LOSS_BACKWARD, args.softcap, true));
    if (rows == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_LOSS_BACKWARD, .loss_backward = args});
}
