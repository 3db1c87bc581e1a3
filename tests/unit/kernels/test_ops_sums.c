// SPDX-License-Identifier: Apache-2.0
/* Residual and dropout, rope, embedding, column sums, loss, squares and AdamW against the reference. As in
 * test_ops_rows.c, a bound states the number of roundings (UNIT each, relative) of a value. */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t all_rows[] = {1, 7, 33, 130}, all_columns[] = {1, 3, 17, 100, 768, 1100};
enum { ROW_KINDS = 4, COLUMN_KINDS = 6 };

/* Two samples' tokens, consecutive positions, one slice of a wider row. */
static struct dropout dropout_of(struct fixture *fixture, int64_t rows, int64_t columns, float probability)
{
    int64_t *sample = fixture_longs(fixture, rows);
    int32_t *place = fixture_ints(fixture, rows);
    for (int64_t t = 0; t < rows; t++) {
        sample[t] = (INT64_C(1) << 33) + t * 2 / rows;
        place[t] = (int32_t)(t % ((rows + 1) / 2));
    }
    return (struct dropout){.probability = probability,
                            .generator = philox_named(5, "residual"),
                            .sample = sample,
                            .sample_offset = place,
                            .columns = columns + 11,
                            .column_begin = 6};
}

static void check_residual(int64_t rows, int64_t columns, float probability, bool with_bias,
                           bool with_residual)
{
    struct fixture fixture = fixture_open(2);
    int64_t count = rows * columns;
    struct residual_forward op = {.dropout = dropout_of(&fixture, rows, columns, probability)};
    float *x = fixture_normals(&fixture, "x", count, 1.0),
          *bias = fixture_normals(&fixture, "bias", columns, 1.0);
    float *residual = fixture_normals(&fixture, "residual", count, 1.0),
          *out = fixture_floats(&fixture, count);
    op.x = tensor_2d(x, F32, rows, columns);
    op.out = tensor_2d(out, F32, rows, columns);
    op.bias = with_bias ? tensor_1d(bias, F32, columns) : (struct tensor){0};
    op.residual = with_residual ? tensor_2d(residual, F32, rows, columns) : (struct tensor){0};
    cr_assert_eq(residual_forward(fixture.stream, op), OK, "%s", fail_text());
    struct residual_backward back = {.dout = op.x, .dx = op.x, .dropout = op.dropout};
    float *kept = fixture_copy(&fixture, x, count);
    cr_assert_eq(residual_backward(fixture.stream, back), OK, "%s", fail_text());

    double *want = fixture_doubles(&fixture, count), *bound = fixture_doubles(&fixture, count);
    double *want_dx = fixture_doubles(&fixture, count), *bound_dx = fixture_doubles(&fixture, count);
    for (int64_t i = 0; i < count; i++) {
        double factor = probability > 0.0F ? reference_dropout(&op.dropout, i / columns, i % columns) : 1.0;
        double inner = (double)kept[i] + (with_bias ? (double)bias[i % columns] : 0.0);
        want[i] = inner * factor + (with_residual ? (double)residual[i] : 0.0);
        want_dx[i] = (double)kept[i] * factor;
        bound[i] =
            UNIT * (4.0 * fabs(inner * factor) + fabs(want[i])); // sum, product, scale's own two; the sum
        bound_dx[i] = UNIT * 3.0 * fabs(want_dx[i]); // 0 if dropped: no rounding makes a kept element 0
    }
    cr_expect_eq(count_outside(out, want, bound, count, NULL), 0, "%ld x %ld, p %g", (long)rows,
                 (long)columns, (double)probability);
    cr_expect_eq(count_outside(x, want_dx, bound_dx, count, NULL), 0);
    cr_expect(fixture_is_guarded(out, count) && fixture_is_guarded(x, count));
    if (probability > 0.0F && count > 500) {
        struct dropout other = op.dropout;
        other.column_begin++;
        for (int64_t i = 0; i < count; i++)
            want_dx[i] = (double)kept[i] * reference_dropout(&other, i / columns, i % columns);
        cr_expect_gt(count_outside(x, want_dx, bound_dx, count, NULL), 0, "a shifted mask was not detected");
    }
    fixture_close(&fixture);
}

Test(ops_sums, residual_and_its_dropout)
{
    for (int r = 0; r < ROW_KINDS; r++) {
        for (int n = 0; n < COLUMN_KINDS; n++) {
            check_residual(all_rows[r], all_columns[n], 0.0F, true, true);
            check_residual(all_rows[r], all_columns[n], 0.1F, true, true);
            check_residual(all_rows[r], all_columns[n], 0.5F, false, false);
        }
    }
}

/* A threshold that coincides with a possible draw: uniform >= p keeps it. */
Test(ops_sums, dropout_threshold_is_exact)
{
    struct fixture fixture = fixture_open(1);
    enum { N = 4096 };
    struct dropout dropout = dropout_of(&fixture, 1, N, 0.5F);
    uint64_t first = (uint64_t)dropout.column_begin;
    for (int i = 0; i < 8; i++) {
        float drawn =
            philox_uniform(philox_word(dropout.generator, (uint64_t)dropout.sample[0], first + (uint64_t)i));
        for (int side = 0; side < 2; side++) {
            dropout.probability = side == 0 ? drawn : nextafterf(drawn, 1.0F);
            if (dropout.probability <= 0.0F || dropout.probability > 0.99F)
                continue;
            float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, out[8];
            fixture_register(&fixture, x, sizeof x);
            fixture_register(&fixture, out, sizeof out);
            struct residual_backward op = {tensor_2d(x, F32, 1, 8), tensor_2d(out, F32, 1, 8), dropout};
            cr_assert_eq(residual_backward(fixture.stream, op), OK);
            cr_expect(side == 0 ? out[i] > 0.0F : out[i] == 0.0F);
        }
    }
    fixture_close(&fixture);
}

/* The options of rope other than the size of a head. */
static const struct rope rope_options[] = {
    {.base = 1e4},
    {.base = 1e4, .inverse = true},
    {.base = 1e4, .interleaved = true},
    {.base = 5e5, .inverse = true, .interleaved = true, .rotated = 2},
    {.base = 1e4, .rotated = 4},
    {.base = 1e4, .scaling = {.kind = ROPE_LINEAR, .factor = 3.5}},
    {.base = 1e4, .scaling = {.kind = ROPE_NTK, .factor = 4.0}},
    {.base = 5e5,
     .scaling = {.kind = ROPE_LLAMA3, .factor = 8.0, .low = 1.0, .high = 4.0, .original = 8192.0}},
    {.base = 1e4,
     .scaling = {.kind = ROPE_YARN, .factor = 4.0, .low = 1.0, .high = 32.0, .original = 4096.0}},
};

/* a cos - b sin: each factor and product rounded once, then the sum. */
static void check_rope(struct rope op, int64_t dim)
{
    struct fixture fixture = fixture_open(2);
    const int64_t rows = 33, heads = 3, count = rows * heads * dim;
    float *x = fixture_normals(&fixture, "x", count, 1.0);
    int32_t *position = fixture_ints(&fixture, rows);
    for (int32_t t = 0; t < rows; t++)
        position[t] = t * t * 97;
    op.x = tensor_2d(x, F32, rows, heads * dim);
    op.position = position;
    op.head_dim = dim;
    const int64_t rotated = rope_rotated(&op);
    double *want = fixture_widen(&fixture, x, count), *bound = fixture_doubles(&fixture, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i % dim, partner = at < rotated / 2 ? i + rotated / 2 : i - rotated / 2;
        partner = op.interleaved ? i - at + (at ^ 1) : partner;
        bound[i] = at < rotated ? UNIT * 4.0 * (fabs(want[i]) + fabs(want[partner])) : 0.0;
    }
    reference_rope_of(&op, rows, heads, want);
    cr_assert_eq(rope(fixture.stream, op), OK, "%s", fail_text());
    cr_expect_eq(count_outside(x, want, bound, count, NULL), 0, "head %ld, scaling %d, rotated %ld",
                 (long)dim, (int)op.scaling.kind, (long)op.rotated);
    cr_expect(fixture_is_guarded(x, count));
    op.base *= 1.0001;
    reference_rope_of(&op, rows, heads, want);
    cr_expect_gt(count_outside(x, want, bound, count, NULL), 0, "the injected fault was not detected");
    fixture_close(&fixture);
}

Test(ops_sums, rope)
{
    const int64_t head_dims[] = {2, 6, 64, 80};
    for (size_t i = 0; i < sizeof rope_options / sizeof *rope_options; i++)
        for (int d = 0; d < 4; d++)
            if (rope_options[i].rotated <= head_dims[d])
                check_rope(rope_options[i], head_dims[d]);
}

/* Sums in token order are bit-identical to a plain loop. The table's padding rows are unchanged, and ids of
 * other ranks ignored. */
Test(ops_sums, embedding)
{
    for (int n = 0; n < COLUMN_KINDS; n++) {
        struct fixture fixture = fixture_open(3);
        enum { ROWS = 33, TABLE = 9, HELD = 7, BEGIN = 4 };
        int64_t columns = all_columns[n];
        float *table = fixture_normals(&fixture, "table", TABLE * columns, 1.0);
        float *out = fixture_normals(&fixture, "out", ROWS * columns, 1.0);
        float *want = fixture_copy(&fixture, out, ROWS * columns),
              *want_table = fixture_copy(&fixture, table, TABLE * columns);
        int32_t *id = fixture_ints(&fixture, ROWS);
        for (int t = 0; t < ROWS; t++)
            id[t] = t * 5 % 17;
        struct embedding_forward op = {tensor_2d(table, F32, TABLE, columns), id,  BEGIN, HELD,
                                       tensor_2d(out, F32, ROWS, columns),    true};
        for (int accumulate = 1; accumulate >= 0; accumulate--) {
            op.accumulate = accumulate == 1;
            cr_assert_eq(embedding_forward(fixture.stream, op), OK, "%s", fail_text());
            for (int64_t i = 0; i < ROWS * columns; i++) {
                int row = id[i / columns] - BEGIN;
                float add = row >= 0 && row < HELD ? table[row * columns + i % columns] : 0.0F;
                want[i] = op.accumulate ? want[i] + add : add;
            }
            cr_expect(same_bits(out, want, ROWS * columns));
        }
        struct embedding_backward back = {id, BEGIN, HELD, op.out, op.table};
        cr_assert_eq(embedding_backward(fixture.stream, back), OK, "%s", fail_text());
        for (int64_t i = 0; i < ROWS * columns; i++) {
            int row = id[i / columns] - BEGIN;
            if (row >= 0 && row < HELD)
                want_table[row * columns + i % columns] += out[i];
        }
        cr_expect(same_bits(table, want_table, TABLE * columns));
        fixture_close(&fixture);
    }
}

Test(ops_sums, column_sum)
{
    for (int r = 0; r <= ROW_KINDS; r++) {
        for (int n = 0; n < COLUMN_KINDS; n++) {
            struct fixture fixture = fixture_open(2);
            int64_t rows = r < ROW_KINDS ? all_rows[r] : 1300, columns = all_columns[n]; // of many blocks
            float *in = fixture_normals(&fixture, "in", rows * (columns + 3), 1.0); // a row stride of 3 more
            float *out = fixture_normals(&fixture, "out", columns, 1.0);
            double *want = fixture_widen(&fixture, out, columns), *bound = fixture_doubles(&fixture, columns);
            double chain = fmin((double)rows, 64.0) + ceil((double)rows / 64.0);
            for (int64_t i = 0; i < columns; i++) {
                double size = 0.0;
                for (int64_t t = 0; t < rows; t++) {
                    want[i] += (double)in[t * (columns + 3) + i];
                    size += fabs((double)in[t * (columns + 3) + i]);
                }
                bound[i] = UNIT * (chain * size + fabs(want[i]));
            }
            struct column_sum op = {tensor_columns(tensor_2d(in, F32, rows, columns + 3), 0, columns),
                                    tensor_1d(out, F32, columns)};
            cr_assert_eq(column_sum(fixture.stream, op), OK, "%s", fail_text());
            cr_expect_eq(count_outside(out, want, bound, columns, NULL), 0, "%ld x %ld", (long)rows,
                         (long)columns);
            for (int64_t i = 0; i < columns; i++)
                want[i] -= (double)in[(rows - 1) * (columns + 3) + i];
            cr_expect_gt(count_outside(out, want, bound, columns, NULL), 0, "a missing row was not detected");
            fixture_close(&fixture);
        }
    }
}

/* Bit-identical to a plain loop in row order; another order gives other bits. */
Test(ops_sums, add_parts)
{
    for (int r = 0; r < ROW_KINDS; r++) {
        for (int n = 0; n < COLUMN_KINDS; n++) {
            struct fixture fixture = fixture_open(2);
            int64_t rows = all_rows[r], columns = all_columns[n];
            float *in = fixture_normals(&fixture, "in", rows * (columns + 3), 1.0); // a row stride of 3 more
            float *out = fixture_floats(&fixture, columns), *want = fixture_floats(&fixture, columns);
            float *reverse = fixture_floats(&fixture, columns);
            for (int64_t i = 0; i < columns; i++) {
                want[i] = in[i];
                reverse[i] = in[(rows - 1) * (columns + 3) + i];
                for (int64_t t = 1; t < rows; t++) {
                    want[i] += in[t * (columns + 3) + i];
                    reverse[i] += in[(rows - 1 - t) * (columns + 3) + i];
                }
            }
            struct add_parts op = {tensor_columns(tensor_2d(in, F32, rows, columns + 3), 0, columns),
                                   tensor_1d(out, F32, columns)};
            cr_assert_eq(add_parts(fixture.stream, op), OK, "%s", fail_text());
            cr_expect(same_bits(out, want, columns), "%ld x %ld", (long)rows, (long)columns);
            cr_expect(rows < 3 || columns < 100 || !same_bits(out, reverse, columns),
                      "the order has no effect");
            cr_expect(fixture_is_guarded(out, columns));
            fixture_close(&fixture);
        }
    }
    struct fixture fixture = fixture_open(1);
    float *none = fixture_floats(&fixture, 4);
    struct add_parts op = {tensor_2d(none, F32, 0, 4), tensor_1d(none, F32, 4)};
    cr_expect_eq(add_parts(fixture.stream, op), BAD_ARGUMENT);
    cr_expect_str_eq(fail_text(), "add_parts: no parts");
    fixture_close(&fixture);
}

enum { V = 203, V_PADDED = 208, BATCH = 3, S = 11, T = BATCH * S };

struct loss_case {
    struct fixture fixture;
    float *logits, *max, *sum, *target, *mask;
    int32_t *label;
    double *wide;
};

/* Padding columns are NaN: they must not be read. */
static struct loss_case loss_case(void)
{
    struct loss_case c = {.fixture = fixture_open(2)};
    c.logits = fixture_normals(&c.fixture, "logits", T * V_PADDED, 4.0);
    c.wide = fixture_doubles(&c.fixture, T * V);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < V; i++)
            c.wide[t * V + i] = (double)c.logits[t * V_PADDED + i];
        for (int64_t i = V; i < V_PADDED; i++)
            c.logits[t * V_PADDED + i] = NAN;
    }
    c.max = fixture_floats(&c.fixture, T);
    c.sum = fixture_floats(&c.fixture, T);
    c.target = fixture_floats(&c.fixture, T);
    c.mask = fixture_floats(&c.fixture, T);
    c.label = fixture_ints(&c.fixture, T);
    for (int t = 0; t < T; t++) {
        c.label[t] = t * 31 % V;
        c.mask[t] = t % 5 == 0 ? 0.0F : t % 7 == 0 ? 0.5F : 1.0F;
    }
    return c;
}

/* The vocabulary split in two at `cut`, as on two ranks; reduced here directly. */
static void run_loss_forward(struct loss_case *c, int64_t cut)
{
    float *max = fixture_floats(&c->fixture, T), *sum = fixture_floats(&c->fixture, T),
          *target = fixture_floats(&c->fixture, T);
    struct tensor whole = tensor_2d(c->logits, F32, T, V_PADDED);
    struct tensor left = tensor_columns(whole, 0, cut), right = tensor_columns(whole, cut, V_PADDED);
    struct loss_max m[2] = {{left, cut, tensor_1d(c->max, F32, T)}, {right, V - cut, tensor_1d(max, F32, T)}};
    for (int part = cut == 0; part < 2; part++)
        cr_assert_eq(loss_max(c->fixture.stream, m[part]), OK, "%s", fail_text());
    for (int t = 0; t < T; t++)
        c->max[t] = cut == 0 ? max[t] : fmaxf(max[t], c->max[t]);
    struct loss_sum s[2] = {
        {left, m[0].max, c->label, 0, cut, tensor_1d(c->sum, F32, T), tensor_1d(c->target, F32, T)},
        {right, m[0].max, c->label, cut, V - cut, tensor_1d(sum, F32, T), tensor_1d(target, F32, T)}};
    for (int part = cut == 0; part < 2; part++)
        cr_assert_eq(loss_sum(c->fixture.stream, s[part]), OK, "%s", fail_text());
    for (int t = 0; t < T; t++) {
        c->sum[t] = cut == 0 ? sum[t] : sum[t] + c->sum[t];
        c->target[t] = cut == 0 ? target[t] : target[t] + c->target[t];
    }
}

/* sum: each e^(x - max) has an error of |x - max| (a rounded difference), 4 (2 ulp), and a chain of V/8 + 7
 * (two vectors of four lanes at least). */
Test(ops_sums, loss_forward)
{
    for (int64_t cut = 0; cut < V; cut += 101) {
        struct loss_case c = loss_case();
        run_loss_forward(&c, cut);
        double sample_loss[BATCH], sample_tokens[BATCH], want[BATCH] = {0}, bound[BATCH] = {0};
        fixture_register(&c.fixture, sample_loss, sizeof sample_loss);
        fixture_register(&c.fixture, sample_tokens, sizeof sample_tokens);
        struct loss_finish finish = {tensor_1d(c.sum, F32, T), tensor_1d(c.target, F32, T), c.mask,
                                     tensor_1d(sample_loss, F64, BATCH),
                                     tensor_1d(sample_tokens, F64, BATCH)};
        cr_assert_eq(loss_finish(c.fixture.stream, finish), OK, "%s", fail_text());
        for (int t = 0; t < T; t++) {
            double all = 0.0, off = 0.0, most = (double)c.max[t];
            for (int i = 0; i < V; i++) {
                double e = exp(c.wide[t * V + i] - most);
                all += e;
                off += e * (fabs(c.wide[t * V + i] - most) + 4.0 + V / 8.0 + 7.0);
            }
            want[t / S] += reference_loss_forward(1, V, c.wide + t * V, c.label + t, c.mask + t);
            bound[t / S] +=
                (double)c.mask[t] * UNIT * (off / all + 1.0 + fabs(c.wide[t * V + c.label[t]] - most));
        }
        for (int b = 0; b < BATCH; b++) {
            double tokens = 0.0;
            for (int t = b * S; t < (b + 1) * S; t++)
                tokens += (double)c.mask[t];
            cr_expect_lt(fabs(sample_loss[b] - want[b]), bound[b], "cut %ld", (long)cut);
            cr_expect_gt(fabs(sample_loss[b] * (1.0 + 1e-5) - want[b]), bound[b],
                         "the injected fault was not detected");
            cr_expect_eq(sample_tokens[b], tokens);
        }
        fixture_close(&c.fixture);
    }
}

/* Rows so wide that a GPU thread loads several vectors at once, more than once. With e^0 everywhere except
 * for one e^-inf, a sum is a count, within the error of loss_forward, which is less than 1. */
Test(ops_sums, loss_of_wide_rows_counts_every_column)
{
    enum { WIDE = 8203, POSITIONS = 6 };
    const int column[POSITIONS] = {0, 2049, 4103, 6151, 8191, WIDE - 1};
    struct fixture fixture = fixture_open(2);
    float *logits = fixture_floats(&fixture, POSITIONS * WIDE), *max = fixture_floats(&fixture, POSITIONS),
          *sum = fixture_floats(&fixture, POSITIONS), *target = fixture_floats(&fixture, POSITIONS);
    int32_t *label = fixture_ints(&fixture, POSITIONS);
    struct tensor whole = tensor_2d(logits, F32, POSITIONS, WIDE), most = tensor_1d(max, F32, POSITIONS);
    for (int64_t i = 0; i < POSITIONS * WIDE; i++)
        logits[i] = 0.0F;
    for (int r = 0; r < POSITIONS; r++)
        logits[r * WIDE + column[r]] = 7.0F;
    cr_assert_eq(loss_max(fixture.stream, (struct loss_max){whole, WIDE, most}), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int r = 0; r < POSITIONS; r++) {
        cr_expect_eq(max[r], 7.0F, "column %d", column[r]);
        logits[r * WIDE + column[r]] = -INFINITY;
        max[r] = 0.0F;
        label[r] = 7;
    }
    cr_assert_eq(loss_sum(fixture.stream,
                          (struct loss_sum){whole, most, label, 0, WIDE, tensor_1d(sum, F32, POSITIONS),
                                            tensor_1d(target, F32, POSITIONS)}),
                 OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int r = 0; r < POSITIONS; r++)
        cr_expect_leq(fabs((double)sum[r] - (WIDE - 1)), UNIT * WIDE * (4.0 + WIDE / 8.0 + 7.0),
                      "column %d: %g", column[r], (double)sum[r]);
    fixture_close(&fixture);
}

/* A masked token may have an invalid label and any logits. */
Test(ops_sums, loss_of_masked_tokens)
{
    struct loss_case c = loss_case();
    c.label[5] = -1;
    c.logits[5 * V_PADDED + 3] = NAN;
    run_loss_forward(&c, 0);
    double sample_loss[BATCH], sample_tokens[BATCH];
    fixture_register(&c.fixture, sample_loss, sizeof sample_loss);
    fixture_register(&c.fixture, sample_tokens, sizeof sample_tokens);
    struct loss_finish finish = {tensor_1d(c.sum, F32, T), tensor_1d(c.target, F32, T), c.mask,
                                 tensor_1d(sample_loss, F64, BATCH), tensor_1d(sample_tokens, F64, BATCH)};
    cr_assert_eq(loss_finish(c.fixture.stream, finish), OK, "%s", fail_text());
    cr_expect(isfinite(sample_loss[0]) && isfinite(sample_loss[1]));
    struct loss_backward op = {tensor_2d(c.logits, F32, T, V_PADDED),
                               tensor_1d(c.max, F32, T),
                               tensor_1d(c.sum, F32, T),
                               c.label,
                               c.mask,
                               0,
                               V,
                               NULL,
                               0.0F};
    cr_assert_eq(loss_backward(c.fixture.stream, op), OK, "%s", fail_text());
    for (int i = 0; i < V_PADDED; i++)
        cr_expect_eq(c.logits[5 * V_PADDED + i], 0.0F);
    fixture_close(&c.fixture);
}

/* e^(x - max) / sum: forward's errors of both, and three more; then the label's 1 subtracted. */
Test(ops_sums, loss_backward)
{
    struct loss_case c = loss_case();
    run_loss_forward(&c, 0);
    double *want = fixture_doubles(&c.fixture, T * V);
    reference_loss_backward(T, V, c.wide, c.label, c.mask, want);
    struct loss_backward op = {tensor_2d(c.logits, F32, T, V_PADDED),
                               tensor_1d(c.max, F32, T),
                               tensor_1d(c.sum, F32, T),
                               c.label,
                               c.mask,
                               0,
                               V,
                               NULL,
                               0.0F};
    cr_assert_eq(loss_backward(c.fixture.stream, op), OK, "%s", fail_text());
    int64_t outside = 0, outside_without_label = 0;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < V; i++) {
            double p = want[t * V + i] + (i == c.label[t] ? (double)c.mask[t] : 0.0);
            double away = fabs(c.wide[t * V + i] - (double)c.max[t]);
            double bound = UNIT * (p * (away + 20.0 + 4.0 + V / 8.0 + 7.0 + 3.0) + fabs(want[t * V + i]));
            outside += count_outside(c.logits + t * V_PADDED + i, &want[t * V + i], &bound, 1, NULL);
            outside_without_label += count_outside(c.logits + t * V_PADDED + i, &p, &bound, 1, NULL);
        }
        for (int64_t i = V; i < V_PADDED; i++)
            cr_expect_eq(c.logits[t * V_PADDED + i], 0.0F);
    }
    cr_expect_eq(outside, 0);
    cr_expect_gt(outside_without_label, 0, "the injected fault was not detected");
    fixture_close(&c.fixture);
}

/* fp64 throughout, and squares of floats are exact: n additions here, fewer there. A single block has the
 * same bits as in the full tensor, and the full sum is the blocks added in order. */
Test(ops_sums, squares)
{
    const struct tensor shapes[] = {
        tensor_1d(NULL, F32, 1),
        tensor_1d(NULL, F32, 17),
        tensor_1d(NULL, F32, 40 * SQUARES_BLOCK + 5),
        tensor_2d(NULL, F32, 85, 24),
        tensor_2d(NULL, F32, 3, 5000),
        tensor_2d(NULL, F32, 7, SQUARES_BLOCK),
    };
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        struct fixture fixture = fixture_open(2);
        struct tensor x = shapes[n];
        int64_t columns = x.ndim == 1 ? 1 : x.dim[1], count = x.dim[0] * columns;
        int64_t rows = squares_block_rows(columns), blocks = squares_blocks(x), seen = 0;
        x.data = fixture_normals(&fixture, "x", count, 1.0);
        double out[64], alone, total = 0.0, whole;
        cr_assert_leq(blocks, 64);
        fixture_register(&fixture, out, sizeof out);
        fixture_register(&fixture, &alone, sizeof alone);
        fixture_register(&fixture, &whole, sizeof whole);
        cr_assert_eq(squares(fixture.stream, (struct squares){x, tensor_1d(out, F64, blocks)}), OK, "%s",
                     fail_text());
        for (int64_t b = 0; b < blocks; b++) {
            int64_t left = x.dim[0] - b * rows, here = left < rows ? left : rows;
            float *begin = (float *)x.data + seen;
            double want = 0.0;
            for (int64_t i = 0; i < here * columns; i++)
                want += (double)begin[i] * (double)begin[i];
            cr_expect_leq(fabs(out[b] - want), 0x1p-52 * want * (double)(here * columns));
            struct tensor part =
                x.ndim == 1 ? tensor_1d(begin, F32, here) : tensor_2d(begin, F32, here, columns);
            cr_assert_eq(squares(fixture.stream, (struct squares){part, tensor_1d(&alone, F64, 1)}), OK);
            cr_expect_eq(memcmp(&alone, &out[b], sizeof alone), 0, "shape %zu, block %lld", n, (long long)b);
            seen += here * columns;
            total += out[b];
        }
        cr_expect_eq(seen, count);
        cr_assert_eq(
            sum(fixture.stream, (struct sum){tensor_1d(out, F64, blocks), tensor_1d(&whole, F64, 1)}), OK);
        if (strcmp(device_name(fixture.device), "cpu") == 0)
            cr_expect_eq(memcmp(&total, &whole, sizeof whole), 0);
        cr_expect_leq(fabs(total - whole), 2.0 * 0x1p-53 * total * (double)blocks);
        fixture_close(&fixture);
    }
}

/* More elements than a GPU's block has threads: integers, so that every order has the same sum. */
Test(ops_sums, sum_of_many)
{
    enum { N = 5003 };
    struct fixture fixture = fixture_open(1);
    double *x = fixture_doubles(&fixture, N), whole = 0.0;
    fixture_register(&fixture, &whole, sizeof whole);
    for (int i = 0; i < N; i++)
        x[i] = (double)(i % 7 + 1) * (i % 2 == 0 ? 1.0 : 0x1p20);
    const int64_t counts[] = {N, N - 1, 1025, 1024, 33, 1};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        double part = 0.0;
        for (int64_t i = 0; i < counts[c]; i++)
            part += x[i];
        cr_assert_eq(
            sum(fixture.stream, (struct sum){tensor_1d(x, F64, counts[c]), tensor_1d(&whole, F64, 1)}), OK);
        cr_assert_eq(stream_sync(fixture.stream), OK);
        cr_expect(whole == part, "%lld elements: %a, not %a", (long long)counts[c], whole, part);
    }
    fixture_close(&fixture);
}

/* Roundings: g 1; m 3 of each part; v 5 (the difference v - r2 v counts as one: its product is r2 v / 2^24
 * off); sqrt(v/c) halves v's 6 and adds 1, with epsilon 1 more; the step 1 + 2; the weight: lr, decay, their
 * sum 3, and the subtraction 1. */
Test(ops_sums, adamw)
{
    for (int decay = 0; decay < 2; decay++) {
        struct fixture fixture = fixture_open(2);
        enum { N = 40001 };
        float *w = fixture_normals(&fixture, "w", N, 1.0), *g = fixture_normals(&fixture, "g", N, 3.0);
        float *m = fixture_normals(&fixture, "m", N, 0.1), *v = fixture_normals(&fixture, "v", N, 0.1);
        struct adamw_hyper hyper = {0.01F, 0.1F, 0.05F, 1e-6F, 0.271F, 0.142F, 0.125F, 0.1F, 0.0F, 1};
        fixture_register(&fixture, &hyper, sizeof hyper);
        double want[3][16], bound[3][16];
        float got[3][16];
        float *picked[3] = {w, m, v};
        for (int i = 0; i < N; i++)
            v[i] *= v[i];
        struct reference_adamw exact = {(double)hyper.lr,
                                        1.0 - (double)hyper.one_minus_beta1,
                                        1.0 - (double)hyper.one_minus_beta2,
                                        (double)hyper.epsilon,
                                        (double)hyper.correction1,
                                        (double)hyper.correction2,
                                        (double)hyper.gradient_scale,
                                        decay ? (double)hyper.weight_decay : 0.0};
        for (int k = 0; k < 16; k++) {
            int i = k * (N / 15);
            double mw = (double)m[i], vw = (double)v[i], ww = (double)w[i],
                   gw = (double)g[i] * exact.gradient_scale;
            double m_error = UNIT * 4.0 * (fabs(exact.beta1 * mw) + fabs((1.0 - exact.beta1) * gw));
            reference_adamw(&exact, (double)g[i], &ww, &mw, &vw);
            double root = sqrt(vw / exact.correction2) + exact.epsilon,
                   step = fabs(mw / exact.correction1 / root);
            double step_error = m_error / exact.correction1 / root + UNIT * 8.0 * step;
            want[0][k] = ww, want[1][k] = mw, want[2][k] = vw;
            bound[0][k] = UNIT * fabs(ww) +
                          exact.lr * (step_error + UNIT * 4.0 * (step + fabs(exact.weight_decay * ww)));
            bound[1][k] = m_error;
            bound[2][k] = UNIT * 6.0 * vw;
        }
        struct adamw op = {.weight = tensor_1d(w, F32, N),
                           .gradient = tensor_1d(g, F32, N),
                           .m = tensor_1d(m, F32, N),
                           .v = tensor_1d(v, F32, N),
                           .hyper = &hyper,
                           .decay = decay == 1};
        cr_assert_eq(adamw(fixture.stream, op), OK, "%s", fail_text());
        for (int part = 0; part < 3; part++) {
            for (int k = 0; k < 16; k++)
                got[part][k] = picked[part][k * (N / 15)];
            cr_expect_eq(count_outside(got[part], want[part], bound[part], 16, NULL), 0, "part %d", part);
            for (int k = 0; k < 16; k++)
                want[part][k] *= 1.0 + 1e-5;
            cr_expect_gt(count_outside(got[part], want[part], bound[part], 16, NULL), 8, "injected, part %d",
                         part);
        }
        cr_expect(fixture_is_guarded(w, N) && fixture_is_guarded(m, N) && fixture_is_guarded(v, N));
        fixture_close(&fixture);
    }
}
