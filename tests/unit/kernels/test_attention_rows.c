// SPDX-License-Identifier: Apache-2.0
/* Attention with fewer query rows than key rows, and heads of v of another size, against self-attention: a
 * query's results do not depend on the other queries, so they are equal bitwise. Keys in two parts are
 * combined through lse, within rounding. */
#include "tests/support/ops_fixture.h"
#include "tests/support/reference_ops.h"

#include <criterion/criterion.h>
#include <math.h>

enum { B = 2, S = 150, HEADS = 4, GROUPS = 2, MAX_DIM = 32 };

/* Sizes of heads, and the query rows [begin, S) of each sequence. */
struct shape {
    int64_t dim, value_dim, begin;
    int document_length; // 0: no documents
    float dropout;
    struct attention_variant variant;
};

/* One op with its gradients; every tensor is dense. */
struct attention {
    struct attention_forward forward;
    struct attention_backward backward;
};

/* Rows [begin, end) of each of B sequences of S rows, and the first `kept` of MAX_DIM columns of each head,
 * with zeros up to `width`. */
static struct tensor part(struct fixture *f, struct tensor from, int64_t begin, int64_t end, int64_t kept,
                          int64_t width)
{
    int64_t dim = MAX_DIM, heads = from.dim[1] / dim, rows = end - begin;
    float *to = fixture_floats(f, B * rows * heads * width);
    for (int64_t row = 0; row < B * rows; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < width; i++)
                to[(row * heads + h) * width + i] =
                    i < kept
                        ? ((const float *)
                               from.data)[(row / rows * S + begin + row % rows) * heads * dim + h * dim + i]
                        : 0.0F;
    return tensor_2d(to, F32, B * rows, heads * width);
}

static struct tensor empty(struct fixture *f, int64_t rows, int64_t columns)
{
    return tensor_2d(fixture_floats(f, rows * columns), F32, rows, columns);
}

/* The inputs of all cases, [B * S, heads * MAX_DIM]. */
struct inputs {
    struct tensor q, k, v, dout;
    int32_t *document;
    int64_t *sample;
};

static struct inputs inputs_of(struct fixture *f, int document_length)
{
    struct inputs in = {.document = fixture_ints(f, B * S), .sample = fixture_longs(f, B * S)};
    struct tensor *all[] = {&in.q, &in.k, &in.v, &in.dout};
    static const char *const names[] = {"q", "k", "v", "dout"};
    for (int i = 0; i < 4; i++) {
        int64_t columns = (i == 0 || i == 3 ? HEADS : GROUPS) * MAX_DIM;
        *all[i] = tensor_2d(fixture_normals(f, names[i], B * S * columns, 1.0), F32, B * S, columns);
    }
    for (int64_t t = 0; t < B * S; t++) {
        in.document[t] = document_length > 0 ? (int32_t)(t % S / document_length) : 0;
        in.sample[t] = 50 + t / S;
    }
    return in;
}

/* Queries [begin, S) and all keys. width, value_width: size of heads in memory, at least the shape's. */
static struct attention attention_of(struct fixture *f, const struct inputs *in, struct shape s,
                                     int64_t begin, int64_t width, int64_t value_width)
{
    int64_t rows = S - begin;
    struct attention a = {.forward = {.q = part(f, in->q, begin, S, s.dim, width),
                                      .k = part(f, in->k, 0, S, s.dim, width),
                                      .v = part(f, in->v, 0, S, s.value_dim, value_width),
                                      .batch = B,
                                      .sequence = rows,
                                      .head_dim = width,
                                      .query_begin = begin,
                                      .scale = 0.2F,
                                      .document = s.document_length > 0 ? in->document : NULL,
                                      .out = empty(f, B * rows, HEADS * value_width),
                                      .lse = empty(f, HEADS, B * rows)}};
    attention_variant_set(&s.variant, &a.forward);
    int64_t *sample = fixture_longs(f, B * rows);
    for (int64_t t = 0; t < B * rows; t++)
        sample[t] = in->sample[t / rows * S];
    a.forward.dropout = (struct dropout){
        .probability = s.dropout, .generator = philox_named(3, "rows"), .sample = sample, .columns = S};
    struct tensor dout = in->dout;
    if (begin == 0) { // only queries of the shape have gradients
        dout = empty(f, B * S, HEADS * MAX_DIM);
        for (int64_t i = 0; i < B * S * dout.dim[1]; i++)
            ((float *)dout.data)[i] =
                i / dout.dim[1] % S >= s.begin ? ((const float *)in->dout.data)[i] : 0.0F;
    }
    a.backward = (struct attention_backward){.dout = part(f, dout, begin, S, s.value_dim, value_width),
                                             .dq = empty(f, B * rows, HEADS * width),
                                             .dk = empty(f, B * S, GROUPS * width),
                                             .dv = empty(f, B * S, GROUPS * value_width)};
    return a;
}

static void run(struct fixture *f, struct attention *a)
{
    cr_assert_eq(attention_forward(f->stream, a->forward), OK, "%s", fail_text());
    a->backward.forward = a->forward;
    cr_assert_eq(attention_backward(f->stream, a->backward), OK, "%s", fail_text());
}

/* Rows [begin, S) of each sequence of `whole` against all rows of `got`, the first columns of each head. -0
 * and 0 are equal. */
static int64_t differing(struct tensor got, struct tensor whole, int64_t heads, int64_t begin)
{
    int64_t rows = got.dim[0] / B, width = got.dim[1] / heads, whole_width = whole.dim[1] / heads, count = 0;
    for (int64_t row = 0; row < B * rows; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < width && i < whole_width; i++) {
                int64_t at = (row / rows * S + begin + row % rows) * whole.dim[1] + h * whole_width + i;
                float a = ((const float *)got.data)[row * got.dim[1] + h * width + i];
                count += !(a == ((const float *)whole.data)[at]);
            }
    return count;
}

static int64_t differing_lse(struct tensor got, struct tensor whole, int64_t begin)
{
    int64_t rows = got.dim[1] / B, count = 0;
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t row = 0; row < B * rows; row++)
            count += !(((const float *)got.data)[h * B * rows + row] ==
                       ((const float *)whole.data)[h * B * S + row / rows * S + begin + row % rows]);
    return count;
}

/* All differences of a part of the queries from self-attention with heads of one size. */
static int64_t differences(struct shape s, int64_t shift)
{
    struct fixture f = fixture_open(2);
    struct inputs in = inputs_of(&f, s.document_length);
    int64_t widest = s.dim > s.value_dim ? s.dim : s.value_dim;
    struct attention whole = attention_of(&f, &in, s, 0, widest, widest);
    struct attention some = attention_of(&f, &in, s, s.begin, s.dim, s.value_dim);
    some.forward.query_begin += shift;
    run(&f, &whole);
    run(&f, &some);
    int64_t count = differing(some.forward.out, whole.forward.out, HEADS, s.begin) +
                    differing_lse(some.forward.lse, whole.forward.lse, s.begin) +
                    differing(some.backward.dq, whole.backward.dq, HEADS, s.begin) +
                    differing(some.backward.dk, whole.backward.dk, GROUPS, 0) +
                    differing(some.backward.dv, whole.backward.dv, GROUPS, 0);
    fixture_close(&f);
    return count;
}

Test(attention_rows, subsets_of_queries_give_the_same_results)
{
    static const struct shape shapes[] = {
        {24, 24, 0, 0, 0.0F, {0}},
        {24, 24, 64, 0, 0.0F, {0}},
        {24, 24, 70, 0, 0.0F, {0}},
        {24, 24, 149, 0, 0.0F, {0}},
        {24, 24, 1, 40, 0.0F, {0}},
        {24, 24, 75, 30, 0.2F, {0}},
        {24, 24, 128, 0, 0.3F, {0}},
        {24, 16, 0, 0, 0.0F, {0}},
        {16, 24, 0, 0, 0.0F, {0}},
        {8, 32, 33, 0, 0.1F, {0}},
        {32, 5, 100, 60, 0.0F, {0}},
        {3, 7, 64, 0, 0.0F, {0}},
        {24, 24, 0, 0, 0.0F, {.window = 40}},
        {24, 24, 70, 0, 0.0F, {.window = 64}},
        {24, 24, 149, 0, 0.0F, {.window = 3}},
        {8, 32, 75, 30, 0.2F, {.window = 20}},
        {24, 24, 70, 0, 0.0F, {.alibi_heads = 6, .alibi_begin = 2}},
        {24, 24, 70, 0, 0.0F, {.softcap = 1.5F}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        cr_expect_eq(differences(shapes[i], 0), 0, "shape %zu", i);
}

/* The comparison must see a mask that is off by one row. */
Test(attention_rows, detects_a_shifted_mask)
{
    cr_expect_gt(differences((struct shape){24, 24, 70, 0, 0.0F, {0}}, -1), 0);
    cr_expect_gt(differences((struct shape){24, 24, 64, 40, 0.0F, {0}}, -1), 0);
}

/* out = sum of e^(lse_i - lse) out_i over parts of the keys, as in ring attention: keys before the queries,
 * and the queries' own. */
Test(attention_rows, key_blocks_combine_through_lse)
{
    enum { CUT = 70, DIM = 24 };
    const struct shape s = {.dim = DIM, .value_dim = DIM, .begin = CUT};
    struct fixture f = fixture_open(2);
    struct inputs in = inputs_of(&f, 0);
    struct attention whole = attention_of(&f, &in, s, CUT, DIM, DIM), before = whole, own = whole;
    int64_t rows = S - CUT;
    struct attention *const parts[] = {&before, &own};
    for (int i = 0; i < 2; i++) {
        struct attention_forward *a = &parts[i]->forward;
        a->k = part(&f, in.k, i == 0 ? 0 : CUT, i == 0 ? CUT : S, DIM, DIM);
        a->v = part(&f, in.v, i == 0 ? 0 : CUT, i == 0 ? CUT : S, DIM, DIM);
        a->query_begin = i == 0 ? CUT : 0;
        a->out = empty(&f, B * rows, HEADS * DIM);
        a->lse = empty(&f, HEADS, B * rows);
        cr_assert_eq(attention_forward(f.stream, *a), OK, "%s", fail_text());
    }
    cr_assert_eq(attention_forward(f.stream, whole.forward), OK, "%s", fail_text());
    double worst = 0.0;
    for (int64_t row = 0; row < B * rows; row++)
        for (int64_t c = 0; c < HEADS * DIM; c++) {
            int64_t at = row * HEADS * DIM + c, of_lse = c / DIM * B * rows + row;
            double lse[2], sum = 0.0, out = 0.0;
            for (int i = 0; i < 2; i++) {
                lse[i] = exp((double)((const float *)parts[i]->forward.lse.data)[of_lse]);
                sum += lse[i];
                out += lse[i] * (double)((const float *)parts[i]->forward.out.data)[at];
            }
            worst = fmax(worst, fabs(out / sum - (double)((const float *)whole.forward.out.data)[at]));
        }
    cr_expect_lt(worst, 64.0 * 0x1p-24 * 4.0, "%g", worst); // sums of S terms of about 1
    fixture_close(&f);
}
