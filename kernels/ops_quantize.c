// SPDX-License-Identifier: Apache-2.0
/* Op entry points, part three: low-precision formats. */
#include "kernels/check_ops.h"

static enum status check_in(enum op_kind kind, struct tensor in, struct tensor out)
{
    const struct arg_check first[] = {matrix("in", in, working_type(in), ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(kind, first);
    const struct arg_check checks[] = {first[0], matrix("out", out, F32, in.dim[0], in.dim[1])};
    return check_args(kind, checks, 2);
}

enum status magnitude(struct stream *stream, struct magnitude args)
{
    const struct arg_check in[] = {matrix("in", args.in, working_type(args.in), ANY_SIZE, ANY_SIZE)};
    CHECK_ARGS(OP_MAGNITUDE, in);
    const struct arg_check checks[] = {in[0],
                                       vector("out", args.out, args.kind == MAGNITUDE_SUM ? F64 : F32,
                                              args.kind == MAGNITUDE_LARGEST_IN_ROW ? args.in.dim[0] : 1)};
    CHECK_ARGS(OP_MAGNITUDE, checks);
    if (tensor_count(args.in) == 0)
        return args.accumulate ? OK : fill(stream, (struct fill){.out = args.out, .value = 0.0F});
    return submit_op(stream, &(struct op){.kind = OP_MAGNITUDE, .magnitude = args});
}

/* Validates the format and its scale rule. */
static enum status check_scales(const struct quantize *q)
{
    int64_t rows = q->in.dim[0], down = q->block_rows, across = q->block_columns;
    bool blocks = down != 0 || across != 0;
    if ((int)q->format < 0 || q->format >= NUMBER_FORMAT_COUNT || (int)q->scale < 0 || q->scale > SCALE_FULL)
        return fail(BAD_ARGUMENT, "quantize: no format %d with scale rule %d", (int)q->format, (int)q->scale);
    if (blocks && (down < 1 || down > QUANTIZE_BLOCK_MAX || across < 1 || across > QUANTIZE_BLOCK_MAX ||
                   QUANTIZE_BLOCK_MAX % across != 0 || q->period < 0))
        return fail(
            BAD_ARGUMENT,
            "quantize: blocks of %lld x %lld with period %lld; a block has 1 to %d rows and a divisor "
            "of %d columns",
            (long long)down, (long long)across, (long long)q->period, (int)QUANTIZE_BLOCK_MAX,
            (int)QUANTIZE_BLOCK_MAX);
    if (!blocks && q->scale == SCALE_E4M3)
        return fail(BAD_ARGUMENT, "quantize: e4m3 scales require blocks");
    if (blocks && q->scale != SCALE_E4M3)
        return OK;
    bool wide = q->magnitude.dtype == F64, each = !blocks && q->magnitude.dim[0] != 1;
    const struct arg_check checks[] = {vector("magnitude", q->magnitude, wide ? F64 : F32, each ? rows : 1)};
    return check_args(OP_QUANTIZE, checks, 1);
}

enum status quantize(struct stream *stream, struct quantize args)
{
    TRY(check_in(OP_QUANTIZE, args.in, args.out));
    TRY(check_scales(&args));
    if (args.sample != NULL) {
        const struct arg_check checks[] = {per_row("sample_offset", args.sample_offset, args.in.dim[0])};
        CHECK_ARGS(OP_QUANTIZE, checks);
        if (args.column_begin < 0 || args.in.dim[1] > args.columns - args.column_begin)
            return fail(BAD_ARGUMENT, "quantize: stochastic rounding of columns %lld to %lld of %lld",
                        (long long)args.column_begin, (long long)(args.column_begin + args.in.dim[1]),
                        (long long)args.columns);
    }
    if (tensor_count(args.in) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_QUANTIZE, .quantize = args});
}

enum status hadamard(struct stream *stream, struct hadamard args)
{
    TRY(check_in(OP_HADAMARD, args.in, args.out));
    if (args.in.dim[0] % HADAMARD_ROWS != 0)
        return fail(BAD_ARGUMENT, "hadamard: %lld rows are not blocks of %d", (long long)args.in.dim[0],
                    (int)HADAMARD_ROWS);
    if (tensor_count(args.in) == 0)
        return OK;
    return submit_op(stream, &(struct op){.kind = OP_HADAMARD, .hadamard = args});
}
