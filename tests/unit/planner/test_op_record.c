// SPDX-License-Identifier: Apache-2.0
/* Records of ops: type, shape, launches, FLOPs and bytes of every kind of op, against values counted by
 * hand. */
#include "kernels/device_plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3, COLUMNS = 5, CELLS = ROWS * COLUMNS }; // of most operands

/* Operands are never dereferenced. */
static void *at(int slot)
{
    return (void *)(uintptr_t)(64 * (slot + 1));
}

static struct tensor matrix(enum dtype dtype, int64_t rows, int64_t columns)
{
    return tensor_2d(at(0), dtype, rows, columns);
}

static struct tensor list(enum dtype dtype, int64_t count)
{
    return tensor_1d(at(0), dtype, count);
}

struct expected {
    enum dtype dtype;
    int64_t shape[3];
    double flops, bytes;
    int launches;
};

static void expect(struct op op, struct expected e, const char *text)
{
    char is[OP_RECORD_CHARS];
    const struct op_record record = op_record(&op);
    op_record_text(&record, is);
    cr_expect_str_eq(is, text);
    cr_expect(record.kind == op.kind && record.dtype == e.dtype, "%s", text);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(record.shape[i], e.shape[i], "%s: %lld in direction %d", text,
                     (long long)record.shape[i], i);
    cr_expect_eq(record.cost.flops, e.flops, "%s: %g FLOPs", text, record.cost.flops);
    cr_expect_eq(record.cost.bytes, e.bytes, "%s: %g bytes", text, record.cost.bytes);
    cr_expect_eq(record.launches, e.launches, "%s: %d launches", text, record.launches);
}

/* ---- matmuls: 4 x 6 x 8 ---- */

Test(op_record, gemm)
{
    const struct gemm plain = {.a = matrix(F32, 4, 8), .b = matrix(F32, 8, 6), .c = matrix(F32, 4, 6)};
    expect((struct op){.kind = OP_GEMM, .gemm = plain}, (struct expected){F32, {4, 6, 8}, 384, 416, 1},
           "gemm f32 4 x 6 x 8");

    // Transposed, with a bias that is added to each of 24 elements.
    const struct gemm biased = {.a = matrix(BF16, 8, 4),
                                .b = matrix(BF16, 6, 8),
                                .c = matrix(BF16, 4, 6),
                                .bias = list(BF16, 6),
                                .transpose_a = true,
                                .transpose_b = true};
    expect((struct op){.kind = OP_GEMM, .gemm = biased},
           (struct expected){BF16, {4, 6, 8}, 384 + 24, 64 + 96 + 48 + 12, 1},
           "gemm bf16 4 x 6 x 8, a transposed");

    // A weight gradient is read and written.
    const struct gemm weight = {.a = matrix(F16, 8, 4),
                                .b = matrix(F16, 8, 6),
                                .c = matrix(F32, 4, 6),
                                .transpose_a = true,
                                .accumulate = true};
    expect((struct op){.kind = OP_GEMM, .gemm = weight},
           (struct expected){F16, {4, 6, 8}, 384, 64 + 96 + 2 * 96, 1}, "gemm f16 4 x 6 x 8, a transposed");
}

Test(op_record, gemm_with_epilogue)
{
    struct gemm args = {.a = matrix(F32, 4, 8), .b = matrix(F32, 8, 6), .c = matrix(F32, 4, 6)};
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU, .after = matrix(F32, 4, 6)};
    expect((struct op){.kind = OP_GEMM, .gemm = args},
           (struct expected){F32, {4, 6, 8}, 384 + 24 * 10, 416 + 96, 1}, "gemm f32 4 x 6 x 8");
    args.epilogue = (struct epilogue){.activation = ACTIVATION_GELU, .before = matrix(F32, 4, 6)};
    expect((struct op){.kind = OP_GEMM, .gemm = args},
           (struct expected){F32, {4, 6, 8}, 384 + 24 * 16, 416 + 96, 1}, "gemm f32 4 x 6 x 8");
    args.a = matrix(F32, 8, 4);
    args.transpose_a = args.accumulate = true;
    args.epilogue = (struct epilogue){.bias_gradient = list(F32, 4)};
    expect((struct op){.kind = OP_GEMM, .gemm = args},
           (struct expected){F32, {4, 6, 8}, 384 + 32, 416 + 96 + 2 * 16, 1},
           "gemm f32 4 x 6 x 8, a transposed");
}

/* ---- attention ---- */

/* 2 sequences of 4 tokens, 2 heads of 3 columns, 1 group: 2 * 2 * (1 + 2 + 3 + 4) = 40 pairs. A pair has 3 +
 * 3 multiply-adds and 4 other operations. */
static struct attention_forward attention(void)
{
    return (struct attention_forward){.q = matrix(F32, 8, 6),
                                      .k = matrix(F32, 8, 3),
                                      .v = matrix(F32, 8, 3),
                                      .batch = 2,
                                      .sequence = 4,
                                      .head_dim = 3,
                                      .out = matrix(F32, 8, 6),
                                      .lse = matrix(F32, 2, 8)};
}

Test(op_record, attention)
{
    const struct attention_forward forward = attention();
    expect((struct op){.kind = OP_ATTENTION_FORWARD, .attention_forward = forward},
           (struct expected){F32, {4, 4, 3}, 40 * (6 + 6 + 4), 4 * (48 + 24 + 24 + 48 + 16), 1},
           "attention_forward f32 4 x 4 x 3");
    const struct attention_backward backward = {.forward = forward,
                                                .dout = matrix(F32, 8, 6),
                                                .dq = matrix(F32, 8, 6),
                                                .dk = matrix(F32, 8, 3),
                                                .dv = matrix(F32, 8, 3)};
    expect((struct op){.kind = OP_ATTENTION_BACKWARD, .attention_backward = backward},
           (struct expected){F32, {4, 4, 3}, 40 * (18 + 12 + 8), 2 * 4 * (48 + 24 + 24 + 48 + 16), 1},
           "attention_backward f32 4 x 4 x 3");
}

/* One head with D 2 and E 4; `pairs` of S queries and K keys. */
static void expect_pairs(int64_t queries, int64_t keys, int64_t begin, double pairs)
{
    struct op op = {.kind = OP_ATTENTION_FORWARD};
    op.attention_forward = (struct attention_forward){.q = matrix(F32, queries, 2),
                                                      .k = matrix(F32, keys, 2),
                                                      .v = matrix(F32, keys, 4),
                                                      .batch = 1,
                                                      .sequence = queries,
                                                      .head_dim = 2,
                                                      .query_begin = begin,
                                                      .out = matrix(F32, queries, 4),
                                                      .lse = matrix(F32, 1, queries)};
    cr_expect_eq(op_record(&op).cost.flops, pairs * (4 + 8 + 4), "%lld queries, %lld keys, from %lld",
                 (long long)queries, (long long)keys, (long long)begin);
}

Test(op_record, attention_to_some_keys)
{
    expect_pairs(3, 5, 2, 3 + 4 + 5);
    expect_pairs(4, 4, 2, 3 + 4 + 4 + 4);
    expect_pairs(3, 4, 4, 3 * 4); // all keys precede the queries
}

/* The time of a window of `window` tokens is that of its pairs. */
static void expect_window_pairs(int64_t queries, int64_t begin, int64_t window, double pairs)
{
    struct op op = {.kind = OP_ATTENTION_FORWARD};
    int64_t keys = begin + queries;
    op.attention_forward = (struct attention_forward){.q = matrix(F32, queries, 2),
                                                      .k = matrix(F32, keys, 2),
                                                      .v = matrix(F32, keys, 4),
                                                      .batch = 1,
                                                      .sequence = queries,
                                                      .head_dim = 2,
                                                      .query_begin = begin,
                                                      .window = window,
                                                      .out = matrix(F32, queries, 4),
                                                      .lse = matrix(F32, 1, queries)};
    cr_expect_eq(op_record(&op).cost.flops, pairs * (4 + 8 + 4), "%lld queries from %lld, window %lld",
                 (long long)queries, (long long)begin, (long long)window);
}

Test(op_record, attention_in_a_window)
{
    expect_window_pairs(5, 0, 3, 1 + 2 + 3 + 3 + 3);
    expect_window_pairs(5, 0, 5, 1 + 2 + 3 + 4 + 5);
    expect_window_pairs(5, 0, 1, 5);
    expect_window_pairs(4, 1, 3, 2 + 3 + 3 + 3);
    expect_window_pairs(2, 6, 3, 3 + 3);
}

/* ---- rows ---- */

Test(op_record, copies_and_sums)
{
    const struct tensor x = matrix(F32, ROWS, COLUMNS), narrow = matrix(BF16, ROWS, COLUMNS);
    expect((struct op){.kind = OP_FILL, .fill = {.out = x}}, (struct expected){F32, {3, 5}, 0, 60, 1},
           "fill f32 3 x 5");
    expect((struct op){.kind = OP_FILL, .fill = {.out = list(F64, 7)}},
           (struct expected){F64, {1, 7}, 0, 56, 1}, "fill f64 1 x 7");
    expect((struct op){.kind = OP_COPY, .copy = {.in = narrow, .out = narrow}},
           (struct expected){BF16, {3, 5}, 0, 60, 1}, "copy bf16 3 x 5");
    expect((struct op){.kind = OP_CAST, .cast = {.in = x, .out = narrow}},
           (struct expected){F32, {3, 5}, CELLS, 60 + 30, 1}, "cast f32 3 x 5");
    expect((struct op){.kind = OP_ADD, .add = {.in = x, .out = x}},
           (struct expected){F32, {3, 5}, CELLS, 3 * 60, 1}, "add f32 3 x 5");
    expect((struct op){.kind = OP_ADD_PARTS, .add_parts = {.parts = x, .out = list(F32, COLUMNS)}},
           (struct expected){F32, {3, 5}, CELLS, 60 + 20, 1}, "add_parts f32 3 x 5");
    expect((struct op){.kind = OP_COLUMN_SUM, .column_sum = {.in = x, .out = list(F32, COLUMNS)}},
           (struct expected){F32, {3, 5}, CELLS, 60 + 2 * 20, 1}, "column_sum f32 3 x 5");
    expect((struct op){.kind = OP_INIT_NORMAL, .init_normal = {.out = x}},
           (struct expected){F32, {3, 5}, 50 * CELLS, 60, 1}, "init_normal f32 3 x 5");
}

Test(op_record, transfers_and_poison)
{
    const struct transfer transfer = {.to = at(0), .from = at(1), .bytes = 4096};
    expect((struct op){.kind = OP_TO_DEVICE, .transfer = transfer},
           (struct expected){F32, {1, 4096}, 0, 4096, 1}, "copy_to_device f32 1 x 4096");
    expect((struct op){.kind = OP_TO_HOST, .transfer = transfer},
           (struct expected){F32, {1, 4096}, 0, 4096, 1}, "copy_to_host f32 1 x 4096");
    expect((struct op){.kind = OP_POISON, .poison = {.out = matrix(F16, ROWS, COLUMNS)}},
           (struct expected){F16, {3, 5}, 0, 0, 0}, "poison f16 3 x 5");
    // An empty share.
    expect((struct op){.kind = OP_FILL, .fill = {.out = list(F32, 0)}},
           (struct expected){F32, {0, 0}, 0, 0, 0}, "fill f32 0 x 0");
}

Test(op_record, layers)
{
    const struct tensor x = matrix(F32, ROWS, COLUMNS), wide = matrix(F32, ROWS, 2 * COLUMNS);
    expect((struct op){.kind = OP_NORM_FORWARD, .norm_forward = {.x = x, .y = x}},
           (struct expected){F32, {3, 5}, 8 * CELLS, 2 * 60, 1}, "norm_forward f32 3 x 5");
    expect((struct op){.kind = OP_NORM_BACKWARD, .norm_backward = {.dy = x, .x = x, .dx = x}},
           (struct expected){F32, {3, 5}, 14 * CELLS, 3 * 60, 1}, "norm_backward f32 3 x 5");
    expect((struct op){.kind = OP_NORM_BACKWARD, .norm_backward = {.dy = x, .x = x, .dx = x, .dresidual = x}},
           (struct expected){F32, {3, 5}, 14 * CELLS, 4 * 60, 1}, "norm_backward f32 3 x 5");
    expect((struct op){.kind = OP_ACTIVATION_FORWARD, .activation_forward = {.x = wide, .y = x}},
           (struct expected){F32, {3, 10}, 10 * CELLS, 120 + 60, 1}, "activation_forward f32 3 x 10");
    expect(
        (struct op){.kind = OP_ACTIVATION_BACKWARD, .activation_backward = {.x = wide, .dy = x, .dx = wide}},
        (struct expected){F32, {3, 10}, 16 * CELLS, 120 + 60 + 120, 1}, "activation_backward f32 3 x 10");
    expect((struct op){.kind = OP_ROPE, .rope = {.x = wide}},
           (struct expected){F32, {3, 10}, 3 * 2 * CELLS, 2 * 120, 1}, "rope f32 3 x 10");
    expect((struct op){.kind = OP_EMBEDDING_FORWARD, .embedding_forward = {.out = x}},
           (struct expected){F32, {3, 5}, 0, 2 * 60, 1}, "embedding_forward f32 3 x 5");
    expect((struct op){.kind = OP_EMBEDDING_FORWARD, .embedding_forward = {.out = x, .accumulate = true}},
           (struct expected){F32, {3, 5}, CELLS, 3 * 60, 1}, "embedding_forward f32 3 x 5");
    expect((struct op){.kind = OP_EMBEDDING_BACKWARD, .embedding_backward = {.dout = x}},
           (struct expected){F32, {3, 5}, CELLS, 3 * 60, 1}, "embedding_backward f32 3 x 5");
}

Test(op_record, residual)
{
    const struct tensor x = matrix(F32, ROWS, COLUMNS), other = tensor_2d(at(1), F32, ROWS, COLUMNS);
    const struct dropout dropout = {.probability = 0.1F};
    const struct residual_forward full = {
        .x = x, .bias = list(F32, COLUMNS), .residual = x, .out = x, .dropout = dropout};
    const struct residual_forward sum = {.x = x, .residual = x, .out = x};
    expect((struct op){.kind = OP_RESIDUAL_FORWARD, .residual_forward = full},
           (struct expected){F32, {3, 5}, 4 * CELLS, 3 * 60 + 20, 1}, "residual_forward f32 3 x 5");
    expect((struct op){.kind = OP_RESIDUAL_FORWARD, .residual_forward = sum},
           (struct expected){F32, {3, 5}, CELLS, 3 * 60, 1}, "residual_forward f32 3 x 5");

    const struct residual_backward masked = {.dout = x, .dx = x, .dropout = dropout};
    const struct residual_backward copied = {.dout = x, .dx = other}, nothing = {.dout = x, .dx = x};
    expect((struct op){.kind = OP_RESIDUAL_BACKWARD, .residual_backward = masked},
           (struct expected){F32, {3, 5}, 2 * CELLS, 2 * 60, 1}, "residual_backward f32 3 x 5");
    expect((struct op){.kind = OP_RESIDUAL_BACKWARD, .residual_backward = copied},
           (struct expected){F32, {3, 5}, 0, 2 * 60, 1}, "residual_backward f32 3 x 5");
    expect((struct op){.kind = OP_RESIDUAL_BACKWARD, .residual_backward = nothing},
           (struct expected){F32, {3, 5}, 0, 0, 0}, "residual_backward f32 3 x 5");

    // Fused with a norm, which does not read what was just written.
    const struct norm_forward norm = {.x = x, .y = x};
    const struct norm_backward norm_backward = {.dy = x, .x = x, .dresidual = x, .dx = x};
    expect((struct op){.kind = OP_RESIDUAL_NORM_FORWARD,
                       .residual_norm_forward = {.residual = sum, .norm = norm}},
           (struct expected){F32, {3, 5}, CELLS + 8 * CELLS, 180 + 120 - 60, 1},
           "residual_norm_forward f32 3 x 5");
    expect((struct op){.kind = OP_RESIDUAL_NORM_BACKWARD,
                       .residual_norm_backward = {.norm = norm_backward, .residual = masked}},
           (struct expected){F32, {3, 5}, 14 * CELLS + 2 * CELLS, 240 + 120 - 60, 1},
           "residual_norm_backward f32 3 x 5");
    expect((struct op){.kind = OP_RESIDUAL_NORM_BACKWARD,
                       .residual_norm_backward = {.norm = norm_backward, .residual = nothing}},
           (struct expected){F32, {3, 5}, 14 * CELLS, 240, 1}, "residual_norm_backward f32 3 x 5");
}

Test(op_record, loss)
{
    const struct tensor logits = matrix(F16, ROWS, COLUMNS);
    expect((struct op){.kind = OP_SOFTCAP, .softcap = {.x = logits}},
           (struct expected){F16, {3, 5}, 10 * CELLS, 2 * 30, 1}, "softcap f16 3 x 5");
    expect((struct op){.kind = OP_LOSS_MAX, .loss_max = {.logits = logits}},
           (struct expected){F16, {3, 5}, CELLS, 30, 1}, "loss_max f16 3 x 5");
    expect((struct op){.kind = OP_LOSS_SUM, .loss_sum = {.logits = logits}},
           (struct expected){F16, {3, 5}, 3 * CELLS, 30, 1}, "loss_sum f16 3 x 5");
    expect((struct op){.kind = OP_LOSS_FINISH, .loss_finish = {.sum = list(F32, ROWS)}},
           (struct expected){F32, {1, 3}, 4 * ROWS, 3 * 12, 1}, "loss_finish f32 1 x 3");
    expect((struct op){.kind = OP_LOSS_BACKWARD, .loss_backward = {.logits = logits}},
           (struct expected){F16, {3, 5}, 4 * CELLS, 2 * 30, 1}, "loss_backward f16 3 x 5");
}

/* ---- lists, optimizer, low precision ---- */

Test(op_record, lists)
{
    const struct squares two[] = {{.x = list(F32, 7)}, {.x = matrix(F32, ROWS, COLUMNS)}};
    const struct sum sums[] = {{.x = list(F64, 4)}, {.x = list(F64, 2)}};
    const struct adamw weights[] = {
        {.weight = list(F32, 10), .m = list(F32, 10), .working = list(BF16, 10)},
        {.weight = list(F32, 6), .m = list(F32, 6), .working = list(BF16, 6)},
    };
    expect((struct op){.kind = OP_SQUARES, .squares = {.at = two, .count = 2}},
           (struct expected){F32, {1, 22}, 2 * 22, 4 * 22, 1}, "squares f32 1 x 22");
    expect((struct op){.kind = OP_SUM, .sum = {.at = sums, .count = 2}},
           (struct expected){F64, {1, 6}, 6, 48, 1}, "sum f64 1 x 6");
    // Weight, m and v are read and written; the gradient is read.
    expect((struct op){.kind = OP_ADAMW, .adamw = {.at = weights, .count = 2}},
           (struct expected){F32, {1, 16}, 14 * 16, (4 * 7 + 2) * 16, 1}, "adamw f32 1 x 16");
    expect((struct op){.kind = OP_CLIP, .clip = {.squares = list(F64, 8), .loss = list(F64, 4)}},
           (struct expected){F64, {1, 8}, 8, 64 + 2 * 32, 1}, "clip f64 1 x 8");
}

Test(op_record, low_precision)
{
    const struct tensor in = matrix(BF16, 16, 2), out = matrix(F32, 16, 2);
    const struct quantize rows = {.in = in, .out = out},
                          blocks = {.in = in, .out = out, .block_rows = 1, .block_columns = 2};
    expect((struct op){.kind = OP_MAGNITUDE, .magnitude = {.in = in}},
           (struct expected){BF16, {16, 2}, 32, 64, 1}, "magnitude bf16 16 x 2");
    expect((struct op){.kind = OP_QUANTIZE, .quantize = rows},
           (struct expected){BF16, {16, 2}, 6 * 32, 64 + 128, 1}, "quantize bf16 16 x 2");
    expect((struct op){.kind = OP_QUANTIZE, .quantize = blocks},
           (struct expected){BF16, {16, 2}, 6 * 32, 2 * 64 + 128, 1}, "quantize bf16 16 x 2");
    expect((struct op){.kind = OP_HADAMARD, .hadamard = {.in = in, .out = out}},
           (struct expected){BF16, {16, 2}, 5 * 32, 64 + 128, 1}, "hadamard bf16 16 x 2");
}

/* ---- comparison ---- */

/* Equal operands elsewhere in memory; then each field differs. */
Test(op_record, equal_records)
{
    struct op op = {.kind = OP_GEMM};
    op.gemm = (struct gemm){.a = matrix(F32, 4, 8), .b = matrix(F32, 8, 6), .c = matrix(F32, 4, 6)};
    const struct op_record record = op_record(&op);
    op.gemm.a.data = at(1);
    struct op_record other = op_record(&op);
    cr_expect(op_record_equals(&record, &other));
    other.kind = OP_ADD;
    cr_expect_not(op_record_equals(&record, &other));
    other = record;
    other.dtype = BF16;
    cr_expect_not(op_record_equals(&record, &other));
    for (int i = 0; i < 3; i++) {
        other = record;
        other.shape[i]++;
        cr_expect_not(op_record_equals(&record, &other));
    }
    other = record;
    other.launches = 0;
    cr_expect_not(op_record_equals(&record, &other));
    other = record;
    other.transposed = true;
    cr_expect_not(op_record_equals(&record, &other));
    other = record;
    other.cost.flops++;
    cr_expect_not(op_record_equals(&record, &other));
    other = record;
    other.cost.bytes++;
    cr_expect_not(op_record_equals(&record, &other));
}
