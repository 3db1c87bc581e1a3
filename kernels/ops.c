// SPDX-License-Identifier: Apache-2.0
/* Op entry points, part one: matrix multiplication and the elementary memory ops. Each validates its
 * arguments, returns early for empty work, and submits; backends rely on all of it. */
#include "kernels/ops.h"

#include "kernels/check_ops.h"

bool epilogue_is_none(const struct epilogue *epilogue)
{
    return epilogue->after.data == NULL && epilogue->before.data == NULL &&
           epilogue->bias_gradient.data == NULL;
}

static enum status check_epilogue(const struct gemm *args, int64_t m, int64_t n)
{
    const struct epilogue *e = &args->epilogue;
    const struct arg_check checks[] = {
        optional(matrix("after", e->after, args->c.dtype, m, n)),
        optional(matrix("before", e->before, args->c.dtype, m, n)),
        optional(vector("bias_gradient", e->bias_gradient, F32, m)),
    };
    CHECK_ARGS(OP_GEMM, checks);
    bool activates = e->after.data != NULL || e->before.data != NULL;
    if ((e->after.data != NULL) + (e->before.data != NULL) + (e->bias_gradient.data != NULL) > 1)
        return fail(BAD_ARGUMENT, "gemm: more than one of after, before and bias_gradient");
    if (activates && (args->accumulate || activation_is_gated(e->activation)))
        return fail(BAD_ARGUMENT, "gemm: %s",
                    args->accumulate ? "no activation with accumulate" : "its activation has no gate");
    if (e->bias_gradient.data != NULL && !args->transpose_a)
        return fail(BAD_ARGUMENT, "gemm: bias_gradient sums over the rows of a, which is not transposed");
    return OK;
}

enum status gemm_epilogue(struct stream *stream, struct gemm args)
{
    const struct epilogue *e = &args.epilogue;
    if (e->after.data != NULL)
        return activation_forward(
            stream, (struct activation_forward){.kind = e->activation, .x = args.c, .y = e->after});
    if (e->before.data != NULL)
        return activation_backward(
            stream,
            (struct activation_backward){.kind = e->activation, .x = e->before, .dy = args.c, .dx = args.c});
    if (e->bias_gradient.data != NULL)
        return column_sum(stream, (struct column_sum){.in = args.a, .out = e->bias_gradient});
    return OK;
}

enum status gemm(struct stream *stream, struct gemm args)
{
    enum dtype type = working_type(args.a), out = args.c.dtype == F32 ? F32 : type;
    // Every operand is a matrix, possibly transposed: a determines K, and b and c must agree.
    const struct arg_check a[] = {matrix("a", args.a, type, ANY_SIZE, ANY_SIZE),
                                  matrix("c", args.c, out, ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(OP_GEMM, a);
    int64_t m = args.a.dim[args.transpose_a ? 1 : 0], k = args.a.dim[args.transpose_a ? 0 : 1];
    int64_t n = args.c.dim[1];
    const struct arg_check checks[] = {
        matrix(args.transpose_a ? "a (transposed)" : "a", args.a, type, ANY_SIZE, ANY_SIZE),
        matrix(args.transpose_b ? "b (transposed)" : "b", args.b, type, args.transpose_b ? n : k,
               args.transpose_b ? k : n),
        matrix("c", args.c, out, m, n),
        optional(vector("bias", args.bias, type, n)),
    };
    CHECK_ARGS(OP_GEMM, checks);
    if (args.accumulate && out != F32)
        return fail(BAD_ARGUMENT, "gemm: c is %s, but only f32 can be accumulated into", dtype_name(out));
    TRY(check_epilogue(&args, m, n));
    if (m == 0 || n == 0)
        return gemm_epilogue(stream, args);
    struct op op = {.kind = OP_GEMM, .gemm = args};
    if (epilogue_is_none(&args.epilogue) || stream->device->has_epilogues)
        return submit_op(stream, &op);
    op.gemm.epilogue = (struct epilogue){0};
    TRY(submit_op(stream, &op));
    return gemm_epilogue(stream, args);
}

/* Memory that an op may treat as rows: a matrix with contiguous rows, or dense in any number of
 * dimensions. */
static enum status check_memory(enum op_kind kind, const char *name, struct tensor t)
{
    char shape[TENSOR_TEXT_CHARS];
    if (t.data == NULL)
        return fail(BAD_ARGUMENT, "%s: %s is none", op_name(kind), name);
    if (t.ndim == 2) {
        const struct arg_check check[] = {matrix(name, t, t.dtype, ANY_SIZE, ANY_SIZE)};
        CHECK_ARGS(kind, check);
    } else if (!tensor_is_dense(t)) {
        return fail(BAD_ARGUMENT, "%s: %s is %s, not dense", op_name(kind), name, tensor_text(t, shape));
    }
    return OK;
}

static enum status check_pair(enum op_kind kind, struct tensor in, struct tensor out)
{
    TRY(check_memory(kind, "in", in));
    TRY(check_memory(kind, "out", out));
    char shape_in[TENSOR_TEXT_CHARS], shape_out[TENSOR_TEXT_CHARS];
    if (in.dtype != out.dtype || !tensor_same_shape(in, out))
        return fail(BAD_ARGUMENT, "%s: in is %s and out is %s", op_name(kind), tensor_text(in, shape_in),
                    tensor_text(out, shape_out));
    return OK;
}

enum status fill(struct stream *stream, struct fill args)
{
    TRY(check_memory(OP_FILL, "out", args.out));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_FILL, .fill = args});
}

enum status copy(struct stream *stream, struct copy args)
{
    TRY(check_pair(OP_COPY, args.in, args.out));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_COPY, .copy = args});
}

enum status cast(struct stream *stream, struct cast args)
{
    TRY(check_memory(OP_CAST, "in", args.in));
    TRY(check_memory(OP_CAST, "out", args.out));
    char in[TENSOR_TEXT_CHARS], out[TENSOR_TEXT_CHARS];
    if (!dtype_is_working(args.in.dtype) || !dtype_is_working(args.out.dtype) ||
        !tensor_same_shape(args.in, args.out))
        return fail(BAD_ARGUMENT, "cast: in is %s and out is %s; cast takes equal shapes of f32, bf16 or f16",
                    tensor_text(args.in, in), tensor_text(args.out, out));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_CAST, .cast = args});
}

enum status add(struct stream *stream, struct add args)
{
    TRY(check_pair(OP_ADD, args.in, args.out));
    if (args.out.dtype != F32 && args.out.dtype != F64)
        return fail(BAD_ARGUMENT, "add: adds f32 or f64, not %s", dtype_name(args.out.dtype));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_ADD, .add = args});
}

enum status add_parts(struct stream *stream, struct add_parts args)
{
    const struct arg_check parts[] = {
        matrix("parts", args.parts, working_type(args.parts), ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(OP_ADD_PARTS, parts);
    const struct arg_check checks[] = {parts[0],
                                       vector("out", args.out, working_type(args.parts), args.parts.dim[1])};
    CHECK_ARGS(OP_ADD_PARTS, checks);
    if (args.parts.dim[0] < 1)
        return fail(BAD_ARGUMENT, "add_parts: no parts");
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_ADD_PARTS, .add_parts = args});
}

enum status poison(struct stream *stream, struct poison args)
{
    TRY(check_memory(OP_POISON, "out", args.out));
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_POISON, .poison = args});
}

enum status init_normal(struct stream *stream, struct init_normal args)
{
    const struct arg_check checks[] = {matrix("out", args.out, working_type(args.out), ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(OP_INIT_NORMAL, checks);
    if (args.row_begin < 0 || args.column_begin < 0 || args.out.dim[1] > args.columns - args.column_begin)
        return fail(BAD_ARGUMENT, "init_normal: row %lld, columns %lld to %lld of %lld",
                    (long long)args.row_begin, (long long)args.column_begin,
                    (long long)(args.column_begin + args.out.dim[1]), (long long)args.columns);
    if (tensor_count(args.out) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_INIT_NORMAL, .init_normal = args});
}

enum status column_sum(struct stream *stream, struct column_sum args)
{
    const struct arg_check in[] = {matrix("in", args.in, working_type(args.in), ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(OP_COLUMN_SUM, in);
    const struct arg_check checks[] = {in[0], vector("out", args.out, F32, args.in.dim[1])};
    CHECK_ARGS(OP_COLUMN_SUM, checks);
    if (tensor_count(args.in) == 0)
        return OK; // nothing to add
    return submit_op(stream, &(struct op){.kind = OP_COLUMN_SUM, .column_sum = args});
}

static enum status check_squares(const struct squares *args)
{
    char shape[TENSOR_TEXT_CHARS];
    if (args->x.dtype != F32 || args->x.data == NULL || !tensor_is_dense(args->x))
        return fail(BAD_ARGUMENT, "squares: x is %s, not dense f32", tensor_text(args->x, shape));
    const struct arg_check checks[] = {vector("out", args->out, F64, squares_blocks(args->x))};
    CHECK_ARGS(OP_SQUARES, checks);
    return OK;
}

enum status squares_each(struct stream *stream, struct squares_list all)
{
    bool any = false;
    for (int64_t i = 0; i < all.count; i++) {
        TRY(check_squares(&all.at[i]));
        any = any || tensor_count(all.at[i].x) > 0;
    }
    return any ? submit_op(stream, &(struct op){.kind = OP_SQUARES, .squares = all}) : OK;
}

enum status squares(struct stream *stream, struct squares args)
{
    return squares_each(stream, (struct squares_list){&args, 1});
}

int64_t squares_block_rows(int64_t columns)
{
    return columns > 0 && columns < SQUARES_BLOCK ? SQUARES_BLOCK / columns : 1;
}

int64_t squares_blocks(struct tensor x)
{
    int64_t rows = squares_block_rows(x.ndim == 1 ? 1 : x.dim[1]);
    return (x.dim[0] + rows - 1) / rows;
}

enum status sum_each(struct stream *stream, struct sum_list all)
{
    for (int64_t i = 0; i < all.count; i++) {
        const struct arg_check checks[] = {vector("x", all.at[i].x, F64, ANY_SIZE),
                                           vector("out", all.at[i].out, F64, 1)};
        CHECK_ARGS(OP_SUM, checks);
    }
    return all.count > 0 ? submit_op(stream, &(struct op){.kind = OP_SUM, .sum = all}) : OK;
}

enum status sum(struct stream *stream, struct sum args)
{
    return sum_each(stream, (struct sum_list){&args, 1});
}

enum status clip(struct stream *stream, struct clip args)
{
    const struct arg_check checks[] = {
        vector("loss", args.loss, F64, ANY_SIZE),       vector("tokens", args.tokens, F64, args.loss.dim[0]),
        vector("squares", args.squares, F64, ANY_SIZE), per_row("hyper", args.hyper, 1),
        vector("result", args.result, F64, 4),
    };
    CHECK_ARGS(OP_CLIP, checks);
    return submit_op(stream, &(struct op){.kind = OP_CLIP, .clip = args});
}

/* For a bf16 weight: the slice must be valid. */
static enum status check_stochastic(const struct adamw *args)
{
    const struct stochastic *s = &args->stochastic;
    if (args->weight.dtype != BF16)
        return OK;
    if (args->working.data != NULL)
        return fail(BAD_ARGUMENT, "adamw: a bf16 weight cannot have a working copy");
    if (s->width < 1 || s->columns < s->width || s->begin < 0 || s->first < 0)
        return fail(BAD_ARGUMENT, "adamw: from %lld on, element %lld of rows of %lld of %lld",
                    (long long)s->begin, (long long)s->first, (long long)s->width, (long long)s->columns);
    return OK;
}

static enum status check_adamw(const struct adamw *args)
{
    const enum dtype type = args->weight.dtype == BF16 ? BF16 : F32;
    const struct arg_check weight[] = {vector("weight", args->weight, type, ANY_SIZE)};
    CHECK_ARGS(OP_ADAMW, weight);
    TRY(check_stochastic(args));
    int64_t count = args->weight.dim[0];
    const struct arg_check checks[] = {
        weight[0],
        vector("gradient", args->gradient, F32, count),
        vector("m", args->m, F32, count),
        vector("v", args->v, F32, count),
        per_row("hyper", args->hyper, count),
        optional(vector("working", args->working, working_type(args->working), count)),
    };
    CHECK_ARGS(OP_ADAMW, checks);
    return OK;
}

static bool are_alike(const struct adamw *a, const struct adamw *b)
{
    bool working = a->working.data != NULL;
    return a->weight.dtype == b->weight.dtype && working == (b->working.data != NULL) &&
           (!working || a->working.dtype == b->working.dtype);
}

enum status adamw_each(struct stream *stream, struct adamw_list all)
{
    bool any = false;
    for (int64_t i = 0; i < all.count; i++) {
        TRY(check_adamw(&all.at[i]));
        if (!are_alike(&all.at[0], &all.at[i]))
            return fail(BAD_ARGUMENT, "adamw: slice %lld of %lld has other types than slice 0", (long long)i,
                        (long long)all.count);
        any = any || all.at[i].weight.dim[0] > 0;
    }
    return any ? submit_op(stream, &(struct op){.kind = OP_ADAMW, .adamw = all}) : OK;
}

enum status adamw(struct stream *stream, struct adamw args)
{
    return adamw_each(stream, (struct adamw_list){&args, 1});
}
