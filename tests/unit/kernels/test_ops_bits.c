// SPDX-License-Identifier: Apache-2.0
/* Bitwise invariance: no element depends on the number of threads, on an array's address, or on the other
 * rows. Each case below runs its ops on arrays keyed by their content and returns a digest of all outputs;
 * the digests must be equal. */
#include "tests/support/ops_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* FNV-1a over the bytes. */
static uint64_t digest(uint64_t so_far, const float *x, int64_t count)
{
    const unsigned char *byte = (const unsigned char *)x;
    for (int64_t i = 0; i < count * (int64_t)sizeof *x; i++)
        so_far = (so_far ^ byte[i]) * 0x100000001b3U;
    return so_far;
}

enum { ROWS = 150, COLUMNS = 333, START = 0x1505 };

static struct dropout dropout_of(struct fixture *fixture, float probability)
{
    int64_t *sample = fixture_longs(fixture, ROWS);
    int32_t *place = fixture_ints(fixture, ROWS);
    for (int t = 0; t < ROWS; t++) {
        sample[t] = t / 75;
        place[t] = t % 75;
    }
    return (struct dropout){probability, philox_named(1, "bits"), sample, place, COLUMNS, 0};
}

static struct tensor matrix(struct fixture *fixture, const char *name)
{
    return tensor_2d(fixture_normals(fixture, name, (int64_t)ROWS * COLUMNS, 1.0), F32, ROWS, COLUMNS);
}

static struct tensor vector(struct fixture *fixture, const char *name, int64_t count)
{
    return tensor_1d(fixture_normals(fixture, name, count, 1.0), F32, count);
}

static uint64_t norms(struct fixture *fixture)
{
    uint64_t sum = START;
    for (int kind = 0; kind < 2; kind++) {
        struct norm_forward f = {(enum norm_kind)kind,
                                 matrix(fixture, "x"),
                                 vector(fixture, "w", COLUMNS),
                                 vector(fixture, "b", COLUMNS),
                                 1e-5F,
                                 matrix(fixture, "y"),
                                 vector(fixture, "m", ROWS),
                                 vector(fixture, "r", ROWS)};
        struct norm_backward b = {(enum norm_kind)kind,
                                  matrix(fixture, "dy"),
                                  f.x,
                                  f.weight,
                                  f.mean,
                                  f.rstd,
                                  {0},
                                  matrix(fixture, "dx"),
                                  vector(fixture, "dw", COLUMNS),
                                  vector(fixture, "db", COLUMNS)};
        b.dresidual = b.dx;
        if (kind == NORM_RMS)
            f.bias = f.mean = b.mean = b.dbias = (struct tensor){0};
        cr_assert_eq(norm_forward(fixture->stream, f), OK, "%s", fail_text());
        cr_assert_eq(norm_backward(fixture->stream, b), OK, "%s", fail_text());
        sum = digest(digest(sum, f.y.data, ROWS * COLUMNS), f.rstd.data, ROWS);
        sum = digest(digest(sum, b.dx.data, ROWS * COLUMNS), b.dweight.data, COLUMNS);
    }
    return sum;
}

static uint64_t elementwise(struct fixture *fixture)
{
    uint64_t sum = START;
    struct tensor x = matrix(fixture, "x"), y = matrix(fixture, "y"), dx = matrix(fixture, "dx");
    for (int kind = 0; kind < 2; kind++) {
        cr_assert_eq(
            activation_forward(fixture->stream, (struct activation_forward){(enum activation)kind, x, y}),
            OK);
        cr_assert_eq(activation_backward(fixture->stream,
                                         (struct activation_backward){(enum activation)kind, x, y, dx}),
                     OK);
        sum = digest(digest(sum, y.data, ROWS * COLUMNS), dx.data, ROWS * COLUMNS);
    }
    struct residual_forward r = {x, vector(fixture, "b", COLUMNS), dx, y, dropout_of(fixture, 0.3F)};
    cr_assert_eq(residual_forward(fixture->stream, r), OK, "%s", fail_text());
    struct rope turn = {
        .x = tensor_columns(y, 0, 330), .position = r.dropout.sample_offset, .head_dim = 110, .base = 1e4};
    cr_assert_eq(rope(fixture->stream, turn), OK, "%s", fail_text());
    return digest(sum, y.data, ROWS * COLUMNS);
}

static uint64_t sums(struct fixture *fixture)
{
    struct tensor x = matrix(fixture, "x"), bias = vector(fixture, "b", COLUMNS),
                  table = matrix(fixture, "table");
    struct {
        double block[64], sum;
    } squared;
    fixture_register(fixture, &squared, sizeof squared);
    cr_assert_eq(column_sum(fixture->stream, (struct column_sum){x, bias}), OK, "%s", fail_text());
    int32_t *id = fixture_ints(fixture, ROWS);
    for (int t = 0; t < ROWS; t++)
        id[t] = t * 7 % 20;
    cr_assert_eq(embedding_backward(fixture->stream, (struct embedding_backward){id, 0, 20, x, table}), OK);
    struct squares s = {tensor_1d(x.data, F32, ROWS * COLUMNS), {0}};
    s.out = tensor_1d(squared.block, F64, squares_blocks(s.x));
    cr_assert_leq(s.out.dim[0], 64);
    cr_assert_eq(squares(fixture->stream, s), OK, "%s", fail_text());
    cr_assert_eq(sum(fixture->stream, (struct sum){s.out, tensor_1d(&squared.sum, F64, 1)}), OK);
    struct adamw_hyper hyper = {0.01F, 0.1F, 0.05F, 1e-6F, 0.2F, 0.1F, 0.1F, 0.1F, 0.0F, 1};
    fixture_register(fixture, &hyper, sizeof hyper);
    struct adamw a = {.weight = tensor_1d(table.data, F32, ROWS * COLUMNS),
                      .gradient = s.x,
                      .m = vector(fixture, "m", ROWS * COLUMNS),
                      .v = vector(fixture, "v", ROWS * COLUMNS),
                      .hyper = &hyper,
                      .decay = true};
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        ((float *)a.v.data)[i] = fabsf(((float *)a.v.data)[i]);
    cr_assert_eq(adamw(fixture->stream, a), OK, "%s", fail_text());
    uint64_t all = digest(digest(START, bias.data, COLUMNS), table.data, ROWS * COLUMNS);
    return digest(all, (const float *)(const void *)&squared.sum, 2);
}

static uint64_t losses(struct fixture *fixture)
{
    struct tensor logits = matrix(fixture, "logits"), max = vector(fixture, "max", ROWS),
                  s = vector(fixture, "s", ROWS);
    struct tensor target = vector(fixture, "target", ROWS);
    int32_t *label = fixture_ints(fixture, ROWS);
    float *mask = fixture_normals(fixture, "mask", ROWS, 1.0);
    cr_assert_eq(loss_max(fixture->stream, (struct loss_max){logits, COLUMNS - 2, max}), OK);
    cr_assert_eq(loss_sum(fixture->stream, (struct loss_sum){logits, max, label, 0, COLUMNS - 2, s, target}),
                 OK);
    cr_assert_eq(loss_backward(fixture->stream, (struct loss_backward){logits, max, s, label, mask, 0,
                                                                       COLUMNS - 2, NULL, 0.0F}),
                 OK);
    return digest(digest(START, logits.data, ROWS * COLUMNS), s.data, ROWS);
}

/* Sequences [first, first + batch) of two, heads [head, head + heads) of three; q, k and v as columns of one
 * full matrix. The results are stored where the full ones would be. */
static void run_attention(struct fixture *fixture, struct tensor qkv, struct tensor gradient,
                          struct tensor out, struct tensor lse, int first, int batch, int head, int heads)
{
    enum { S = 75, D = 37 };
    struct attention_forward f = {.batch = batch, .sequence = S, .head_dim = D, .scale = 0.16F};
    struct attention_backward b = {0};
    struct tensor *view[] = {&f.q, &f.k, &f.v, &b.dq, &b.dk, &b.dv};
    for (int part = 0; part < 6; part++) {
        int begin = (part % 3 * 3 + head) * D;
        *view[part] = tensor_columns(tensor_rows(part < 3 ? qkv : gradient, first * S, (first + batch) * S),
                                     begin, begin + heads * D);
    }
    f.out = tensor_columns(tensor_rows(out, first * S, (first + batch) * S), head * D, (head + heads) * D);
    f.lse = tensor_columns(tensor_rows(lse, head, head + heads), first * S, (first + batch) * S);
    f.dropout = dropout_of(fixture, 0.2F);
    f.dropout.sample += first * S;
    f.dropout.columns = S;
    f.dropout.column_begin = head;
    b.forward = f;
    b.dout = f.q;
    cr_assert_eq(attention_forward(fixture->stream, f), OK, "%s", fail_text());
    cr_assert_eq(attention_backward(fixture->stream, b), OK, "%s", fail_text());
}

static uint64_t attention_in_parts(struct fixture *fixture, int batch, int heads)
{
    struct tensor qkv = matrix(fixture, "qkv"), gradient = matrix(fixture, "gradient");
    struct tensor out = tensor_2d(fixture_floats(fixture, ROWS * 111), F32, ROWS, 111);
    struct tensor lse = tensor_2d(fixture_floats(fixture, 3 * ROWS), F32, 3, ROWS);
    for (int first = 0; first < 2; first += batch)
        for (int head = 0; head < 3; head += heads)
            run_attention(fixture, qkv, gradient, out, lse, first, batch, head, heads);
    return digest(digest(digest(START, gradient.data, ROWS * COLUMNS), out.data, ROWS * 111), lse.data,
                  3 * ROWS);
}

static uint64_t attention(struct fixture *fixture)
{
    return attention_in_parts(fixture, 2, 3);
}

static uint64_t (*const cases[])(struct fixture *fixture) = {norms, elementwise, sums, losses, attention};
enum { CASES = sizeof cases / sizeof *cases };

static uint64_t run(int which, int threads, int shift)
{
    struct fixture fixture = fixture_open(threads);
    fixture.shift = shift;
    uint64_t sum = cases[which](&fixture);
    fixture_close(&fixture);
    return sum;
}

Test(ops_bits, threads_and_alignment)
{
    for (int c = 0; c < CASES; c++) {
        uint64_t want = run(c, 1, 0);
        for (int threads = 2; threads <= 3; threads++)
            cr_expect_eq(run(c, threads, 0), want, "case %d, %d threads", c, threads);
        for (int shift = 1; shift <= 17; shift += 4)
            cr_expect_eq(run(c, 2, shift), want, "case %d, misaligned by %d floats", c, shift);
    }
}

/* A sequence's attention is the same in any batch and with any other heads: including dropout, by its
 * keys. */
Test(ops_bits, attention_of_a_sequence_alone)
{
    uint64_t sum[3];
    const int batch[] = {2, 1, 2}, heads[] = {3, 3, 1};
    for (int i = 0; i < 3; i++) {
        struct fixture fixture = fixture_open(2);
        sum[i] = attention_in_parts(&fixture, batch[i], heads[i]);
        fixture_close(&fixture);
    }
    cr_expect_eq(sum[0], sum[1], "one sequence at a time");
    cr_expect_eq(sum[0], sum[2], "one head at a time");
}

/* Each row of the full tensor against the same row alone, in an array of its own. */
Test(ops_bits, rows_alone)
{
    struct fixture fixture = fixture_open(2);
    struct norm_forward f = {
        NORM_LAYER, matrix(&fixture, "x"), vector(&fixture, "w", COLUMNS), vector(&fixture, "b", COLUMNS),
        1e-5F,      matrix(&fixture, "y"), vector(&fixture, "m", ROWS),    vector(&fixture, "r", ROWS)};
    struct norm_forward alone = f;
    struct tensor max = vector(&fixture, "max", ROWS), sum = vector(&fixture, "sum", ROWS);
    struct tensor target = vector(&fixture, "target", ROWS);
    int32_t *label = fixture_ints(&fixture, ROWS);
    float *x = fixture_floats(&fixture, COLUMNS), *y = fixture_floats(&fixture, COLUMNS), one[4];
    fixture_register(&fixture, one, sizeof one);
    alone.x = tensor_2d(x, F32, 1, COLUMNS);
    alone.y = tensor_2d(y, F32, 1, COLUMNS);
    alone.mean = tensor_1d(&one[0], F32, 1);
    alone.rstd = tensor_1d(&one[1], F32, 1);
    cr_assert_eq(norm_forward(fixture.stream, f), OK, "%s", fail_text());
    cr_assert_eq(loss_max(fixture.stream, (struct loss_max){f.x, COLUMNS, max}), OK);
    cr_assert_eq(loss_sum(fixture.stream, (struct loss_sum){f.x, max, label, 0, COLUMNS, sum, target}), OK);
    for (int t = 0; t < ROWS; t += 7) {
        memcpy(x, (float *)f.x.data + t * COLUMNS, COLUMNS * sizeof *x);
        cr_assert_eq(norm_forward(fixture.stream, alone), OK, "%s", fail_text());
        cr_expect(same_bits(y, (float *)f.y.data + t * COLUMNS, COLUMNS), "row %d", t);
        struct tensor max_1 = tensor_1d(&one[2], F32, 1), sum_1 = tensor_1d(&one[3], F32, 1);
        cr_assert_eq(loss_max(fixture.stream, (struct loss_max){alone.x, COLUMNS, max_1}), OK);
        cr_assert_eq(
            loss_sum(fixture.stream, (struct loss_sum){alone.x, max_1, label, 0, COLUMNS, sum_1, alone.mean}),
            OK);
        cr_expect(same_bits(&one[3], (float *)sum.data + t, 1), "row %d", t);
    }
    fixture_close(&fixture);
}

/* The digest must detect a difference. */
Test(ops_bits, the_digest_detects_one_bit)
{
    float x[3] = {1.0F, 2.0F, 3.0F};
    uint64_t before = digest(START, x, 3);
    x[1] = nextafterf(x[1], 3.0F);
    cr_expect_neq(digest(START, x, 3), before);
}
