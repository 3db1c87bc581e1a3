// SPDX-License-Identifier: Apache-2.0
/* The entry points reject invalid arguments, name the op and the shapes, and accept valid ones. The device is
 * dry, and an observer counts the submitted ops. */
#include "kernels/device_plan.h"
#include "kernels/observe.h"
#include "kernels/ops.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct op_count {
    int64_t calls;
    double flops, bytes;
};

struct dry {
    struct device *device;
    struct stream *stream;
    struct op_count *counts; // [OP_KIND_COUNT]
};

static void count_op(void *context, const struct observation *seen)
{
    struct op_count *counts = context;
    if (seen->what != OBSERVED_OP)
        return;
    struct op_cost cost = op_cost(seen->op);
    counts[seen->op->kind].calls++;
    counts[seen->op->kind].flops += cost.flops;
    counts[seen->op->kind].bytes += cost.bytes;
}

static struct dry dry_open(void)
{
    struct dry d;
    cr_assert_eq(device_open(&(struct device_options){.name = "dry", .threads = 1}, &d.device), OK);
    cr_assert_eq(stream_create(d.device, "compute", &d.stream), OK);
    d.counts = calloc(OP_KIND_COUNT, sizeof *d.counts);
    cr_assert_not_null(d.counts);
    cr_assert_eq(device_observe(d.device, (struct observer){.notify = count_op, .context = d.counts}), OK);
    return d;
}

static void dry_close(struct dry *d)
{
    stream_destroy(d->stream);
    device_close(d->device);
    free(d->counts);
}

/* An address that is never dereferenced. */
static void *nowhere(void)
{
    return (void *)(uintptr_t)4096; // NOLINT
}

static struct tensor f32(int64_t rows, int64_t columns)
{
    return tensor_2d(nowhere(), F32, rows, columns);
}

static struct tensor f32_vector(int64_t count)
{
    return tensor_1d(nowhere(), F32, count);
}

static int64_t passed(const struct dry *d, enum op_kind kind)
{
    return d->counts[kind].calls;
}

#define REJECTS(call, words)                                                                    \
    do {                                                                                        \
        cr_assert_eq((call), BAD_ARGUMENT, "%s was accepted", #call);                           \
        cr_assert_not_null(strstr(fail_text(), words), "\"%s\" has no %s", fail_text(), words); \
    } while (0)
#define ACCEPTS(call) cr_assert_eq((call), OK, "%s: %s", #call, fail_text())

Test(checks, gemm)
{
    struct dry d = dry_open();
    const struct gemm good = {.a = f32(3, 4), .b = f32(4, 6), .c = f32(3, 6), .bias = f32_vector(6)};
    ACCEPTS(gemm(d.stream, good));
    cr_assert_eq(passed(&d, OP_GEMM), 1);
    cr_assert_eq(d.counts[OP_GEMM].flops, 2.0 * 3 * 6 * 4 + 3 * 6);
    cr_assert_eq(d.counts[OP_GEMM].bytes, 4.0 * (12 + 24 + 18 + 6));

    struct gemm bad = good;
    bad.b = f32(5, 6);
    REJECTS(gemm(d.stream, bad), "gemm: b is f32[5, 6]");
    REJECTS(gemm(d.stream, bad), "not f32[4, 6]");
    REJECTS(gemm(d.stream, bad), "c f32[3, 6]");
    bad.b = f32(6, 4);
    REJECTS(gemm(d.stream, bad), "b is f32[6, 4]");
    bad.transpose_b = true;
    ACCEPTS(gemm(d.stream, bad));
    bad.transpose_a = true;
    REJECTS(gemm(d.stream, bad), "b (transposed)");

    bad = good;
    bad.c = tensor_2d(nowhere(), F64, 3, 6);
    REJECTS(gemm(d.stream, bad), "c is f64[3, 6]");
    bad = good;
    bad.bias = f32_vector(3);
    REJECTS(gemm(d.stream, bad), "bias is f32[3]");
    bad = good;
    bad.a = (struct tensor){0};
    REJECTS(gemm(d.stream, bad), "a is none");
    bad = good;
    bad.a.stride[1] = 2;
    REJECTS(gemm(d.stream, bad), "strides 4, 2");
    bad = good;
    bad.a.stride[0] = 3; // rows overlap
    REJECTS(gemm(d.stream, bad), "strides 3, 1");

    int64_t before = passed(&d, OP_GEMM);
    ACCEPTS(gemm(d.stream, (struct gemm){.a = f32(0, 4), .b = f32(4, 6), .c = f32(0, 6)}));
    cr_assert_eq(passed(&d, OP_GEMM), before, "without rows nothing is submitted");
    ACCEPTS(gemm(d.stream, (struct gemm){.a = f32(3, 0), .b = f32(0, 6), .c = f32(3, 6)}));
    cr_assert_eq(passed(&d, OP_GEMM), before + 1, "an empty sum still overwrites c");
    dry_close(&d);
}

/* A fused epilogue adds the bytes of its own operand and the FLOPs of its own op. */
Test(checks, cost_of_an_epilogue)
{
    const struct op alone = {.kind = OP_GEMM, .gemm = {.a = f32(3, 4), .b = f32(4, 6), .c = f32(3, 6)}};
    struct op after = alone, before = alone, gradient = alone;
    after.gemm.epilogue.after = f32(3, 6);
    before.gemm.epilogue.before = f32(3, 6);
    gradient.gemm.epilogue.bias_gradient = f32_vector(3);
    const struct op_cost cost = op_cost(&alone);
    cr_assert(cost.flops == 2.0 * 3 * 6 * 4 && cost.bytes == 4.0 * (12 + 24 + 18));
    cr_expect(op_cost(&after).flops - cost.flops == 10.0 * 18 &&
              op_cost(&after).bytes - cost.bytes == 4.0 * 18);
    cr_expect(op_cost(&before).flops - cost.flops == 16.0 * 18 &&
              op_cost(&before).bytes - cost.bytes == 4.0 * 18);
    cr_expect(op_cost(&gradient).flops - cost.flops == 12.0 &&
              op_cost(&gradient).bytes - cost.bytes == 2.0 * 4.0 * 3);
}

/* A device without epilogues runs separate ops. */
Test(checks, epilogues)
{
    struct dry d = dry_open();
    const struct gemm good = {.a = f32(3, 4), .b = f32(4, 6), .c = f32(3, 6)};
    struct gemm after = good, before = good, gradient = good;
    after.epilogue = (struct epilogue){.activation = ACTIVATION_GELU, .after = f32(3, 6)};
    before.epilogue = (struct epilogue){.activation = ACTIVATION_GELU_TANH, .before = f32(3, 6)};
    gradient.a = f32(4, 3);
    gradient.transpose_a = gradient.accumulate = true;
    gradient.epilogue = (struct epilogue){.bias_gradient = f32_vector(3)};
    ACCEPTS(gemm(d.stream, after));
    ACCEPTS(gemm(d.stream, before));
    ACCEPTS(gemm(d.stream, gradient));
    cr_assert_eq(passed(&d, OP_GEMM), 3);
    cr_assert_eq(passed(&d, OP_ACTIVATION_FORWARD), 1);
    cr_assert_eq(passed(&d, OP_ACTIVATION_BACKWARD), 1);
    cr_assert_eq(passed(&d, OP_COLUMN_SUM), 1);

    struct gemm bad = after;
    bad.epilogue.after = f32(3, 5);
    REJECTS(gemm(d.stream, bad), "gemm: after is f32[3, 5]");
    bad = after;
    bad.epilogue.activation = ACTIVATION_SWIGLU;
    REJECTS(gemm(d.stream, bad), "its activation has no gate");
    bad = before;
    bad.accumulate = true;
    REJECTS(gemm(d.stream, bad), "no activation with accumulate");
    bad.epilogue.after = bad.epilogue.before;
    REJECTS(gemm(d.stream, bad), "more than one of after, before and bias_gradient");
    bad = gradient;
    bad.epilogue.bias_gradient = f32_vector(4);
    REJECTS(gemm(d.stream, bad), "bias_gradient is f32[4]");
    bad = good;
    bad.epilogue.bias_gradient = f32_vector(3);
    REJECTS(gemm(d.stream, bad), "rows of a, which is not transposed");
    cr_assert_eq(passed(&d, OP_GEMM), 3, "rejected before anything runs");
    dry_close(&d);
}

Test(checks, memory_ops)
{
    struct dry d = dry_open();
    ACCEPTS(copy(d.stream, (struct copy){.in = f32(3, 4), .out = f32(3, 4)}));
    REJECTS(copy(d.stream, (struct copy){.in = f32(3, 4), .out = f32(4, 3)}), "copy: in is f32[3, 4]");
    REJECTS(copy(d.stream, (struct copy){.in = f32(3, 4), .out = tensor_2d(nowhere(), I32, 3, 4)}),
            "i32[3, 4]");
    REJECTS(
        add(d.stream, (struct add){.in = tensor_1d(nowhere(), I32, 3), .out = tensor_1d(nowhere(), I32, 3)}),
        "i32");
    REJECTS(fill(d.stream, (struct fill){.value = 0}), "fill: out is none");
    struct tensor gaps = f32_vector(5);
    gaps.stride[0] = 2;
    REJECTS(poison(d.stream, (struct poison){.out = gaps}), "not dense");
    ACCEPTS(poison(d.stream, (struct poison){.out = f32_vector(0)}));
    cr_assert_eq(passed(&d, OP_POISON), 0);
    REJECTS(column_sum(d.stream, (struct column_sum){.in = f32(3, 4), .out = f32_vector(3)}),
            "out is f32[3]");
    REJECTS(init_normal(d.stream, (struct init_normal){.out = f32(3, 4), .columns = 3}),
            "columns 0 to 4 of 3");
    REJECTS(squares(d.stream, (struct squares){.x = f32_vector(3), .out = f32_vector(1)}), "out is f32[1]");
    REJECTS(squares(d.stream,
                    (struct squares){.x = f32(3, SQUARES_BLOCK / 2), .out = tensor_1d(nowhere(), F64, 3)}),
            "out is f64[3]");
    ACCEPTS(squares(d.stream, (struct squares){.x = f32_vector(0), .out = tensor_1d(nowhere(), F64, 0)}));
    cr_assert_eq(passed(&d, OP_SQUARES), 0);
    REJECTS(sum(d.stream, (struct sum){.x = f32_vector(3), .out = tensor_1d(nowhere(), F64, 1)}),
            "x is f32[3]");
    ACCEPTS(
        sum(d.stream, (struct sum){.x = tensor_1d(nowhere(), F64, 0), .out = tensor_1d(nowhere(), F64, 1)}));
    cr_assert_eq(passed(&d, OP_SUM), 1, "an empty sum is 0, not the previous value");
    struct adamw step = {
        .weight = f32_vector(9), .gradient = f32_vector(9), .m = f32_vector(9), .v = f32_vector(9)};
    REJECTS(adamw(d.stream, step), "hyper is NULL");
    step.hyper = nowhere();
    ACCEPTS(adamw(d.stream, step));
    step.v = f32_vector(8);
    REJECTS(adamw(d.stream, step), "adamw: v is f32[8]");
    step.v = f32_vector(9);
    step.weight.dtype = BF16;
    REJECTS(adamw(d.stream, step), "adamw: from 0 on, element 0 of rows of 0 of 0");
    step.stochastic = (struct stochastic){.width = 3, .columns = 4};
    ACCEPTS(adamw(d.stream, step));
    step.working = step.weight;
    REJECTS(adamw(d.stream, step), "adamw: a bf16 weight cannot have a working copy");
    dry_close(&d);
}

/* One op per list, with the total cost of its members; none for an empty list; and each member is
 * validated. */
Test(checks, lists)
{
    struct dry d = dry_open();
    struct adamw step = {.weight = f32_vector(9),
                         .gradient = f32_vector(9),
                         .m = f32_vector(9),
                         .v = f32_vector(9),
                         .hyper = nowhere()};
    struct adamw steps[] = {step, step, step};
    ACCEPTS(adamw_each(d.stream, (struct adamw_list){steps, 3}));
    cr_assert_eq(passed(&d, OP_ADAMW), 1);
    cr_assert_eq(d.counts[OP_ADAMW].bytes, 3.0 * 7.0 * 4.0 * 9.0);
    steps[2].working = tensor_1d(nowhere(), BF16, 9);
    REJECTS(adamw_each(d.stream, (struct adamw_list){steps, 3}), "slice 2 of 3 has other types");
    steps[2] = step;
    steps[1].v = f32_vector(8);
    REJECTS(adamw_each(d.stream, (struct adamw_list){steps, 3}), "adamw: v is f32[8]");
    ACCEPTS(adamw_each(d.stream, (struct adamw_list){NULL, 0}));
    cr_assert_eq(passed(&d, OP_ADAMW), 1);

    struct squares of[] = {{f32_vector(0), tensor_1d(nowhere(), F64, 0)},
                           {f32_vector(3), tensor_1d(nowhere(), F64, 1)}};
    ACCEPTS(squares_each(d.stream, (struct squares_list){of, 1}));
    cr_assert_eq(passed(&d, OP_SQUARES), 0);
    ACCEPTS(squares_each(d.stream, (struct squares_list){of, 2}));
    cr_assert_eq(passed(&d, OP_SQUARES), 1);
    cr_assert_eq(d.counts[OP_SQUARES].bytes, 12.0);
    of[0].out = f32_vector(0);
    REJECTS(squares_each(d.stream, (struct squares_list){of, 2}), "squares: out is f32[0]");

    struct sum sums[] = {{tensor_1d(nowhere(), F64, 5), tensor_1d(nowhere(), F64, 1)}, {f32_vector(3), {0}}};
    ACCEPTS(sum_each(d.stream, (struct sum_list){sums, 0}));
    ACCEPTS(sum_each(d.stream, (struct sum_list){sums, 1}));
    cr_assert_eq(passed(&d, OP_SUM), 1);
    REJECTS(sum_each(d.stream, (struct sum_list){sums, 2}), "sum: x is f32[3]");
    dry_close(&d);
}

Test(checks, norms_and_activations)
{
    struct dry d = dry_open();
    struct norm_forward norm = {
        .x = f32(5, 8), .weight = f32_vector(8), .y = f32(5, 8), .rstd = f32_vector(5)};
    REJECTS(norm_forward(d.stream, norm), "norm_forward: bias is none");
    norm.kind = NORM_RMS;
    ACCEPTS(norm_forward(d.stream, norm));
    norm.weight = f32_vector(5);
    REJECTS(norm_forward(d.stream, norm), "weight is f32[5]");

    struct norm_backward back = {.kind = NORM_RMS,
                                 .dy = f32(0, 8),
                                 .x = f32(0, 8),
                                 .weight = f32_vector(8),
                                 .rstd = f32_vector(0),
                                 .dx = f32(0, 8),
                                 .dweight = f32_vector(8)};
    ACCEPTS(norm_backward(d.stream, back));
    cr_assert(passed(&d, OP_NORM_BACKWARD) == 0 && passed(&d, OP_FILL) == 1,
              "without rows dweight is zero, not unset");

    struct residual_norm_forward sum = {.residual = {.x = f32(5, 8), .out = f32(5, 8)},
                                        .norm = {.kind = NORM_RMS,
                                                 .x = f32(5, 8),
                                                 .weight = f32_vector(8),
                                                 .y = f32(5, 8),
                                                 .rstd = f32_vector(5)}};
    sum.norm.x = sum.residual.out;
    ACCEPTS(residual_norm_forward(d.stream, sum));
    sum.norm.x = tensor_columns(f32(5, 9), 0, 8);
    REJECTS(residual_norm_forward(d.stream, sum),
            "residual_norm_forward: norm.x, f32[5, 8], is not residual.out, f32[5, 8]");
    struct residual_norm_backward undo = {.norm = back, .residual = {.dout = back.dx, .dx = f32(0, 8)}};
    ACCEPTS(residual_norm_backward(d.stream, undo));
    cr_assert(passed(&d, OP_RESIDUAL_NORM_BACKWARD) == 0 && passed(&d, OP_FILL) == 2, "likewise");
    undo.residual.dout = f32(0, 9);
    REJECTS(residual_norm_backward(d.stream, undo), "residual_norm_backward: dx is f32[0, 8]");

    struct activation_forward swiglu = {.kind = ACTIVATION_SWIGLU, .x = f32(5, 16), .y = f32(5, 8)};
    ACCEPTS(activation_forward(d.stream, swiglu));
    swiglu.x = f32(5, 8);
    REJECTS(activation_forward(d.stream, swiglu), "x is f32[5, 8]");
    REJECTS(activation_backward(d.stream, (struct activation_backward){.x = f32(5, 8), .dy = f32(5, 8)}),
            "dx is none");
    int32_t position[5];
    REJECTS(rope(d.stream, (struct rope){.x = f32(5, 12), .head_dim = 8, .position = position}),
            "12 columns");
    REJECTS(rope(d.stream, (struct rope){.x = f32(5, 16), .head_dim = 8}), "position is NULL");
    ACCEPTS(rope(d.stream, (struct rope){.x = f32(5, 16), .head_dim = 8, .position = position}));
    dry_close(&d);
}

Test(checks, attention_in_a_window)
{
    struct dry d = dry_open();
    struct attention_forward op = {.q = f32(12, 32),
                                   .k = f32(21, 16), // 7 keys of each sequence
                                   .v = f32(21, 16),
                                   .batch = 3,
                                   .sequence = 4,
                                   .head_dim = 8,
                                   .query_begin = 5,
                                   .window = 3,
                                   .out = f32(12, 32),
                                   .lse = f32(4, 12)};
    REJECTS(attention_forward(d.stream, op), "a window need the queries among the keys");
    op.query_begin = 3;
    ACCEPTS(attention_forward(d.stream, op)); // 3 sequences of 4 heads: 3 + 3 + 3 + 3 pairs
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops, 3.0 * 4 * 12 * (4 * 8 + 4));
    op.window = 7; // of all keys: 4 + 5 + 6 + 7 pairs
    ACCEPTS(attention_forward(d.stream, op));
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops, 3.0 * 4 * (12 + 22) * (4 * 8 + 4));
    op.alibi.heads = 8;
    op.alibi.begin = 5;
    REJECTS(attention_forward(d.stream, op), "heads 5 to 8 of 8 with ALiBi");
    op.alibi.begin = 4;
    ACCEPTS(attention_forward(d.stream, op)); // two more operations for each pair
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops,
                 3.0 * 4 * ((12 + 22) * (4 * 8 + 4) + 22 * (4 * 8 + 6)));
    op.softcap = 30.0F;
    ACCEPTS(attention_forward(d.stream, op)); // and ten more
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops,
                 3.0 * 4 * ((12 + 22) * (4 * 8 + 4) + 22 * (4 * 8 + 6) + 22 * (4 * 8 + 16)));
    op.softcap = -1.0F;
    REJECTS(attention_forward(d.stream, op), "attention_forward: a soft cap of -1");
    op.softcap = NAN;
    REJECTS(attention_forward(d.stream, op), "attention_forward: a soft cap of nan");
    op.softcap = 0.0F;
    op.window = -1;
    REJECTS(attention_forward(d.stream, op), "a window of -1 tokens");
    dry_close(&d);
}

Test(checks, attention)
{
    struct dry d = dry_open();
    struct attention_forward good = {.q = f32(12, 32),
                                     .k = f32(12, 16),
                                     .v = f32(12, 16),
                                     .batch = 3,
                                     .sequence = 4,
                                     .head_dim = 8,
                                     .out = f32(12, 32),
                                     .lse = f32(4, 12)};
    ACCEPTS(attention_forward(d.stream, good));
    // 3 sequences of 4 heads: 10 pairs each, two dot products of 8 multiply-adds and 4 more operations.
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops, 3.0 * 4 * 10 * (4 * 8 + 4));
    struct attention_forward bad = good;
    bad.sequence = 5;
    REJECTS(attention_forward(d.stream, bad), "batch 3 x sequence 5");
    bad = good;
    bad.v = f32(11, 16);
    REJECTS(attention_forward(d.stream, bad), "v is f32[11, 16]");
    bad.v = f32(12, 9);
    REJECTS(attention_forward(d.stream, bad), "9 columns of v are not 2 heads");
    bad.v = f32(12, 8); // heads of v have 4 columns, and so have those of out
    REJECTS(attention_forward(d.stream, bad), "out is f32[12, 32]");
    bad.out = f32(12, 16);
    ACCEPTS(attention_forward(d.stream, bad));
    bad = good;
    bad.k = f32(13, 16);
    bad.v = f32(13, 16);
    REJECTS(attention_forward(d.stream, bad), "13 rows of k are not 3 sequences");
    bad.k = bad.v = f32(21, 16); // 7 keys of each sequence
    bad.query_begin = -1;
    REJECTS(attention_forward(d.stream, bad), "4 queries from key row -1 on");
    bad.query_begin = 5; // the last two queries follow the keys
    ACCEPTS(attention_forward(d.stream, bad));
    int32_t document[21];
    bad.document = document;
    REJECTS(attention_forward(d.stream, bad),
            "documents, dropout and a window need the queries among the keys");
    bad.query_begin = 3;
    double before = d.counts[OP_ATTENTION_FORWARD].flops;
    ACCEPTS(attention_forward(d.stream, bad)); // 3 sequences of 4 heads: 4 + 5 + 6 + 7 pairs
    cr_assert_eq(d.counts[OP_ATTENTION_FORWARD].flops - before, 3.0 * 4 * 22 * (4 * 8 + 4));
    bad = good;
    bad.k = f32(12, 24);
    REJECTS(attention_forward(d.stream, bad), "whole groups");
    bad = good;
    bad.dropout.probability = 1.0F;
    REJECTS(attention_forward(d.stream, bad), "not in [0, 1)");
    bad.dropout.probability = 0.5F;
    REJECTS(attention_forward(d.stream, bad), "dropout.sample is NULL");
    bad.dropout.sample = nowhere();
    REJECTS(attention_forward(d.stream, bad), "columns 0 to 4 of 0");
    bad.dropout.columns = 4;
    bad.dropout.column_begin = 7; // a global head
    ACCEPTS(attention_forward(d.stream, bad));
    REJECTS(attention_backward(d.stream, (struct attention_backward){.forward = good, .dout = f32(12, 32)}),
            "dq is none");
    dry_close(&d);
}

Test(checks, embedding_and_residual)
{
    struct dry d = dry_open();
    int32_t id[5];
    struct embedding_forward look = {.table = f32(100, 8), .id = id, .rows = 100, .out = f32(5, 8)};
    ACCEPTS(embedding_forward(d.stream, look));
    look.rows = 101;
    REJECTS(embedding_forward(d.stream, look), "101 rows, and the table has 100");
    look.rows = 100;
    look.id = NULL;
    REJECTS(embedding_forward(d.stream, look), "id is NULL");
    REJECTS(embedding_backward(d.stream,
                               (struct embedding_backward){.id = id, .dout = f32(5, 8), .dtable = f32(9, 7)}),
            "table is f32[9, 7]");

    struct residual_forward plain = {.x = f32(5, 8), .out = f32(5, 8)};
    ACCEPTS(residual_forward(d.stream, plain));
    plain.residual = f32(5, 9);
    REJECTS(residual_forward(d.stream, plain), "residual is f32[5, 9]");
    struct residual_backward back = {.dout = f32(5, 8), .dx = f32(5, 8)};
    back.dropout = (struct dropout){.probability = 0.1F, .sample = nowhere()};
    REJECTS(residual_backward(d.stream, back), "dropout.sample_offset is NULL");
    back.dropout.sample_offset = id;
    back.dropout.columns = 8;
    back.dropout.column_begin = 1;
    REJECTS(residual_backward(d.stream, back), "columns 1 to 9 of 8");
    dry_close(&d);
}

Test(checks, loss)
{
    struct dry d = dry_open();
    int32_t label[6];
    float mask[6];
    REJECTS(loss_max(d.stream, (struct loss_max){.logits = f32(6, 10), .columns = 11, .max = f32_vector(6)}),
            "11 valid columns");
    struct loss_sum sum = {.logits = f32(6, 10), .max = f32_vector(6), .columns = 10, .sum = f32_vector(6)};
    REJECTS(loss_sum(d.stream, sum), "label is NULL");
    sum.label = label;
    REJECTS(loss_sum(d.stream, sum), "target is none");
    struct loss_finish finish = {.sum = f32_vector(6),
                                 .target = f32_vector(6),
                                 .mask = mask,
                                 .sample_loss = tensor_1d(nowhere(), F64, 4),
                                 .sample_tokens = tensor_1d(nowhere(), F64, 4)};
    REJECTS(loss_finish(d.stream, finish), "6 rows are not 4 sequences");
    finish.sample_loss = finish.sample_tokens = tensor_1d(nowhere(), F64, 2);
    ACCEPTS(loss_finish(d.stream, finish));
    finish.sample_loss = tensor_1d(nowhere(), F32, 2);
    REJECTS(loss_finish(d.stream, finish), "sample_loss is f32[2]");
    struct loss_backward back = {
        .logits = f32(6, 10), .max = f32_vector(6), .sum = f32_vector(5), .columns = 10};
    REJECTS(loss_backward(d.stream, back), "sum is f32[5]");
    back.sum = f32_vector(6);
    back.label = label;
    back.mask = mask;
    back.softcap = -30.0F;
    REJECTS(loss_backward(d.stream, back), "loss_backward: a soft cap of -30");
    REJECTS(softcap(d.stream, (struct softcap){f32(6, 10), 0.0F}), "softcap: a soft cap of 0");
    REJECTS(softcap(d.stream, (struct softcap){f32(6, 10), INFINITY}), "softcap: a soft cap of inf");
    ACCEPTS(softcap(d.stream, (struct softcap){f32(6, 10), 30.0F}));
    dry_close(&d);
}

Test(checks, dry_reads_are_zeros)
{
    struct dry d = dry_open();
    struct buffer x, y;
    cr_assert_eq(buffer_alloc(d.device, PART_WEIGHTS, (size_t)1 << 50, &x), OK, "a petabyte costs nothing");
    cr_assert_eq(buffer_alloc(d.device, PART_WEIGHTS, 100, &y), OK);
    cr_assert_geq((uintptr_t)y.data, (uintptr_t)x.data + ((size_t)1 << 50));
    float host[4] = {1, 2, 3, 4};
    ACCEPTS(copy_to_device(d.stream, y.data, host, sizeof host));
    ACCEPTS(copy_to_host(d.stream, host, y.data, sizeof host));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(host[i], 0.0F);
    cr_assert_eq(copy_to_host(d.stream, NULL, y.data, 4), BAD_ARGUMENT);
    cr_assert(passed(&d, OP_TO_DEVICE) == 1 && passed(&d, OP_TO_HOST) == 1);
    cr_assert_eq(d.counts[OP_TO_HOST].bytes, 16.0);
    cr_assert(!device_computes(d.device));
    buffer_free(&x);
    buffer_free(&y);
    dry_close(&d);
}

Test(checks, dry_addresses_have_no_memory)
{
    struct dry d = dry_open();
    struct buffer x;
    cr_assert_eq(buffer_alloc(d.device, PART_WEIGHTS, 64, &x), OK);
    unsigned char there;
    void *page = (void *)((uintptr_t)x.data & ~(uintptr_t)4095); // NOLINT
    cr_assert(mincore(page, 1, &there) == -1 && errno == ENOMEM);
    buffer_free(&x);
    dry_close(&d);
}
