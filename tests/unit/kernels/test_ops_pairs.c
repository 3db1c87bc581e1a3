// SPDX-License-Identifier: Apache-2.0
/* Fused ops: the outputs are bit-identical to the two ops in sequence, including gaps between rows and all
 * other memory that must be unchanged. Each side has its own memory with the same initial contents. */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum overlap { SEPARATE, IN_PLACE }; // whether a result overwrites an operand

struct trial {
    enum dtype dtype;
    enum norm_kind kind;
    float probability;
    int64_t rows, columns, gap; // between rows
    enum overlap overlap;
};

enum { SIDES = 2, OUTPUTS = 6 };

/* One side of a comparison. */
struct side {
    struct fixture fixture;
    const struct trial *trial;
    struct tensor written[OUTPUTS];
    int count;
};

/* [rows, columns] of a type; uninitialized without a name. */
static struct tensor new_tensor(struct side *s, enum dtype dtype, const char *name, int64_t rows,
                                int64_t columns)
{
    const int64_t gap = rows > 1 ? s->trial->gap : 0, count = rows * (columns + gap);
    float *wide =
        name != NULL ? fixture_normals(&s->fixture, name, count, 1.0) : fixture_floats(&s->fixture, count);
    struct tensor t = tensor_2d(wide, dtype, rows, columns + gap);
    if (dtype != F32) {
        uint16_t *narrow = fixture_shorts(&s->fixture, count);
        for (int64_t i = 0; name != NULL && i < count; i++)
            narrow[i] = narrow_nearest(dtype, wide[i]);
        t.data = narrow;
    }
    return tensor_columns(t, 0, columns);
}

static struct tensor matrix(struct side *s, const char *name)
{
    return new_tensor(s, s->trial->dtype, name, s->trial->rows, s->trial->columns);
}

static struct tensor vector(struct side *s, enum dtype dtype, const char *name, int64_t count)
{
    return tensor_1d(new_tensor(s, dtype, name, 1, count).data, dtype, count);
}

/* Layer norm only. */
static struct tensor layer_vector(struct side *s, enum dtype dtype, const char *name, int64_t count)
{
    return s->trial->kind == NORM_LAYER ? vector(s, dtype, name, count) : (struct tensor){0};
}

static struct tensor record_output(struct side *s, struct tensor t)
{
    cr_assert_lt(s->count, OUTPUTS);
    return s->written[s->count++] = t;
}

static struct dropout dropout_of(struct side *s)
{
    int64_t *sample = fixture_longs(&s->fixture, s->trial->rows);
    int32_t *place = fixture_ints(&s->fixture, s->trial->rows);
    for (int64_t t = 0; t < s->trial->rows; t++) {
        sample[t] = 900 + t / 3;
        place[t] = (int32_t)(t % 3);
    }
    return (struct dropout){
        s->trial->probability, philox_named(3, "pairs"), sample, place, s->trial->columns + 5, 5};
}

static void forward(struct side *s, bool pair)
{
    const struct trial *t = s->trial;
    struct residual_norm_forward both = {
        .residual = {.x = matrix(s, "x"),
                     .bias = vector(s, t->dtype, "bias", t->columns),
                     .residual = matrix(s, "residual"),
                     .dropout = dropout_of(s)},
        .norm = {.kind = t->kind,
                 .weight = vector(s, t->dtype, "weight", t->columns),
                 .bias = layer_vector(s, t->dtype, "norm bias", t->columns),
                 .epsilon = 1e-5F,
                 .y = record_output(s, matrix(s, NULL)),
                 .mean = record_output(s, layer_vector(s, F32, NULL, t->rows)),
                 .rstd = record_output(s, vector(s, F32, NULL, t->rows))},
    };
    both.residual.out = t->overlap == IN_PLACE ? both.residual.residual : matrix(s, NULL);
    both.norm.x = record_output(s, both.residual.out);
    if (pair) {
        cr_assert_eq(residual_norm_forward(s->fixture.stream, both), OK, "%s", fail_text());
        return;
    }
    cr_assert_eq(residual_forward(s->fixture.stream, both.residual), OK, "%s", fail_text());
    cr_assert_eq(norm_forward(s->fixture.stream, both.norm), OK, "%s", fail_text());
}

static void backward(struct side *s, bool pair)
{
    const struct trial *t = s->trial;
    struct residual_norm_backward both = {
        .norm = {.kind = t->kind,
                 .dy = matrix(s, "dy"),
                 .x = matrix(s, "x"),
                 .weight = vector(s, t->dtype, "weight", t->columns),
                 .mean = layer_vector(s, F32, "mean", t->rows),
                 .rstd = vector(s, F32, "rstd", t->rows),
                 .dresidual = matrix(s, "dresidual"),
                 .dweight = record_output(s, vector(s, F32, NULL, t->columns)),
                 .dbias = record_output(s, layer_vector(s, F32, NULL, t->columns))},
        .residual = {.dropout = dropout_of(s)},
    };
    both.norm.dx = record_output(s, t->overlap == IN_PLACE ? both.norm.dresidual : matrix(s, NULL));
    both.residual.dout = both.norm.dx;
    // Without dropout the branch may share its gradient's memory.
    both.residual.dx =
        record_output(s, t->overlap == IN_PLACE && t->probability == 0.0F ? both.norm.dx : matrix(s, NULL));
    if (pair) {
        cr_assert_eq(residual_norm_backward(s->fixture.stream, both), OK, "%s", fail_text());
        return;
    }
    cr_assert_eq(norm_backward(s->fixture.stream, both.norm), OK, "%s", fail_text());
    cr_assert_eq(residual_backward(s->fixture.stream, both.residual), OK, "%s", fail_text());
}

/* All rows, including gaps between them and after the last. */
static int64_t bytes_spanned(struct tensor t)
{
    return t.dim[0] * (t.ndim == 2 ? t.stride[0] : 1) * (int64_t)dtype_bytes(t.dtype);
}

static bool is_guarded(struct tensor t)
{
    const int64_t count = bytes_spanned(t) / (int64_t)dtype_bytes(t.dtype);
    return t.dtype == F32 ? fixture_is_guarded(t.data, count) : fixture_shorts_are_guarded(t.data, count);
}

static const char *trial_text(const struct trial *t, char out[160])
{
    snprintf(out, 160, "%s, %s, dropout %g, %lld x %lld and %lld between rows, %s", dtype_name(t->dtype),
             t->kind == NORM_LAYER ? "layer" : "rms", (double)t->probability, (long long)t->rows,
             (long long)t->columns, (long long)t->gap, t->overlap == SEPARATE ? "separate" : "in place");
    return out;
}

/* Both sides of one trial; `change` modifies one element of the second side's results, which must be
 * detected. */
static bool agree(const struct trial *trial, void (*run)(struct side *s, bool pair), bool change)
{
    struct side side[SIDES] = {0};
    bool same = true;
    for (int i = 0; i < SIDES; i++) {
        side[i] = (struct side){.fixture = fixture_open(2), .trial = trial};
        run(&side[i], i == 1);
        cr_assert_eq(stream_sync(side[i].fixture.stream), OK);
    }
    if (change)
        *(unsigned char *)side[1].written[0].data ^= 1U;
    for (int w = 0; w < side[0].count; w++) {
        struct tensor one = side[0].written[w], other = side[1].written[w];
        same = same && (one.data == NULL ||
                        (memcmp(one.data, other.data, (size_t)bytes_spanned(one)) == 0 && is_guarded(other)));
    }
    for (int i = 0; i < SIDES; i++)
        fixture_close(&side[i].fixture);
    return same;
}

/* Rows shorter than a vector, of whole vectors, of several vectors and a tail, and longer than a GPU's block
 * handles at once; partial and full row blocks. */
static const int64_t shapes[][3] = {{1, 1, 0},    {7, 17, 2},   {33, 104, 0}, {33, 104, 8},
                                    {5, 1024, 0}, {19, 768, 3}, {3, 2500, 0}, {18, 8208, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_all(void (*run)(struct side *s, bool pair))
{
    const enum dtype types[] = {F32, BF16, F16};
    char text[160];
    for (int n = 0; n < SHAPES * 3 * 2 * 2 * 2; n++) {
        const int64_t *shape = shapes[n / 24];
        struct trial t = {.dtype = types[n % 3],
                          .kind = n / 3 % 2 == 0 ? NORM_LAYER : NORM_RMS,
                          .probability = n / 6 % 2 == 0 ? 0.0F : 0.3F,
                          .overlap = n / 12 % 2 == 0 ? SEPARATE : IN_PLACE,
                          .rows = shape[0],
                          .columns = shape[1],
                          .gap = shape[2]};
        if ((n / 24 == SHAPES - 1 || fixture_runs_few()) && n % 5 != 0)
            continue; // the largest, in a slow build: each kind, but not all combinations
        cr_expect(agree(&t, run, false), "%s", trial_text(&t, text));
    }
}

Test(ops_pairs, residual_norm_forward)
{
    check_all(forward);
}

Test(ops_pairs, residual_norm_backward)
{
    check_all(backward);
}

/* Without a residual gradient, dx is the gradient alone: the same as with zeros. */
Test(ops_pairs, norm_backward_alone)
{
    const enum dtype types[] = {F32, BF16, F16};
    for (int n = 0; n < 6; n++) {
        struct trial t = {
            .dtype = types[n % 3], .rows = 19, .columns = n < 3 ? 104 : 77, .gap = n < 3 ? 0 : 3};
        struct side s = {.fixture = fixture_open(2), .trial = &t};
        struct norm_backward op = {.dy = matrix(&s, "dy"),
                                   .x = matrix(&s, "x"),
                                   .weight = vector(&s, t.dtype, "weight", t.columns),
                                   .mean = vector(&s, F32, "mean", t.rows),
                                   .rstd = vector(&s, F32, "rstd", t.rows),
                                   .dx = matrix(&s, NULL),
                                   .dweight = vector(&s, F32, NULL, t.columns),
                                   .dbias = vector(&s, F32, NULL, t.columns)};
        struct tensor alone = op.dx;
        cr_assert_eq(norm_backward(s.fixture.stream, op), OK, "%s", fail_text());
        op.dx = op.dresidual = matrix(&s, NULL);
        cr_assert_eq(fill(s.fixture.stream, (struct fill){.out = op.dx}), OK);
        cr_assert_eq(norm_backward(s.fixture.stream, op), OK, "%s", fail_text());
        cr_assert_eq(stream_sync(s.fixture.stream), OK);
        cr_expect_eq(memcmp(alone.data, op.dx.data, (size_t)bytes_spanned(alone)), 0, "%s",
                     dtype_name(t.dtype));
        fixture_close(&s.fixture);
    }
}

Test(ops_pairs, detects_one_bit)
{
    const struct trial t = {.rows = 7, .columns = 17, .probability = 0.3F};
    cr_expect(!agree(&t, forward, true) && !agree(&t, backward, true));
}
