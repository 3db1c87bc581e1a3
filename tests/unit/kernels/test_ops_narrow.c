// SPDX-License-Identifier: Apache-2.0
/* bf16 and f16. First the two formats themselves, against their definition in powers of two. */
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const enum dtype narrow_types[] = {BF16, F16};

static struct tensor cast_of(struct fixture *fixture, struct tensor in, struct tensor out)
{
    cr_assert_eq(cast(fixture->stream, (struct cast){.in = in, .out = out}), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture->stream), OK);
    return out;
}

/* Every 16-bit code has the value of its fields, and survives the round trip through fp32. */
Test(ops_narrow, every_bit_pattern_round_trips)
{
    enum { PATTERNS = 65536 };
    for (int d = 0; d < 2; d++) {
        struct fixture fixture = fixture_open(2);
        float *wide = fixture_floats(&fixture, PATTERNS);
        uint16_t *pattern = fixture_shorts(&fixture, PATTERNS), *back = fixture_shorts(&fixture, PATTERNS);
        for (int i = 0; i < PATTERNS; i++)
            pattern[i] = (uint16_t)i;
        struct tensor f32 = tensor_1d(wide, F32, PATTERNS);
        cast_of(&fixture, tensor_1d(pattern, narrow_types[d], PATTERNS), f32);
        cast_of(&fixture, f32, tensor_1d(back, narrow_types[d], PATTERNS));
        for (int i = 0; i < PATTERNS; i++) {
            double want = narrow_value(narrow_types[d], (uint16_t)i);
            if (isnan(want)) {
                cr_assert(isnan(wide[i]) && isnan(narrow_value(narrow_types[d], back[i])), "%04x", i);
                continue;
            }
            cr_assert((double)wide[i] == want && (signbit(wide[i]) != 0) == (i >= 0x8000),
                      "%04x is %a, not %a", i, (double)wide[i], want);
            cr_assert_eq(back[i], i, "%04x became %04x", i, back[i]);
        }
        fixture_close(&fixture);
    }
}

/* fp32 values on both sides of every rounding boundary: representable ones, the midpoints between neighbours,
 * the fp32 values next to those, and the ends of the range; and random values. */
Test(ops_narrow, rounds_to_nearest_even)
{
    enum { MIDDLES = 0x8000, COUNT = 2 * MIDDLES * 4 };
    for (int d = 0; d < 2; d++) {
        struct fixture fixture = fixture_open(2);
        float *wide = fixture_floats(&fixture, COUNT);
        int64_t n = 0;
        for (int i = 0; i + 1 < MIDDLES; i++) {
            double low = narrow_value(narrow_types[d], (uint16_t)i),
                   high = narrow_value(narrow_types[d], (uint16_t)(i + 1));
            if (isnan(low) || isnan(high) || isinf(low))
                continue;
            // Above the largest the steps continue, as if there were one more exponent.
            float middle =
                (float)(isinf(high) ? low + (low - narrow_value(narrow_types[d], (uint16_t)(i - 1))) / 2.0
                                    : low / 2.0 + high / 2.0);
            wide[n++] = middle;
            wide[n++] = -nextafterf(middle, 0.0F);
            wide[n++] = nextafterf(middle, INFINITY);
        }
        for (uint64_t i = 0; n < COUNT; i++) {
            uint32_t bits = philox_word(philox_named(3, "bits"), 0, i);
            memcpy(&wide[n++], &bits, sizeof bits);
        }
        uint16_t *got = fixture_shorts(&fixture, COUNT);
        cast_of(&fixture, tensor_1d(wide, F32, COUNT), tensor_1d(got, narrow_types[d], COUNT));
        for (int64_t i = 0; i < COUNT; i++) {
            uint16_t want = narrow_nearest(narrow_types[d], wide[i]);
            cr_assert(got[i] == want || (isnan(wide[i]) && isnan(narrow_value(narrow_types[d], got[i]))),
                      "%s of %a is %04x, not %04x", dtype_name(narrow_types[d]), (double)wide[i], got[i],
                      want);
        }
        fixture_close(&fixture);
    }
}

Test(ops_narrow, cast_stays_within_its_rows)
{
    struct fixture fixture = fixture_open(2);
    enum { ROWS = 40, COLUMNS = 1500, STRIDE = 1511 };
    float *wide = fixture_normals(&fixture, "x", ROWS * COLUMNS, 1.0);
    uint16_t *bf16 = fixture_shorts(&fixture, ROWS * STRIDE), *f16 = fixture_shorts(&fixture, ROWS * STRIDE);
    struct tensor in = tensor_2d(wide, F32, ROWS, COLUMNS);
    struct tensor middle = tensor_columns(tensor_2d(bf16, BF16, ROWS, STRIDE), 0, COLUMNS);
    cast_of(&fixture, in, middle);
    cast_of(&fixture, middle, tensor_columns(tensor_2d(f16, F16, ROWS, STRIDE), 0, COLUMNS));
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < COLUMNS; i++) {
            uint16_t want = narrow_nearest(BF16, wide[r * COLUMNS + i]);
            cr_assert_eq(bf16[r * STRIDE + i], want);
            cr_assert_eq(f16[r * STRIDE + i], narrow_nearest(F16, (float)narrow_value(BF16, want)));
        }
        for (int i = COLUMNS; i < STRIDE; i++)
            cr_assert_eq(bf16[r * STRIDE + i], 0xffff, "the gap after row %d was written", r);
    }
    cr_expect(fixture_shorts_are_guarded(bf16, ROWS * STRIDE) &&
              fixture_shorts_are_guarded(f16, ROWS * STRIDE));
    cr_expect_eq(cast(fixture.stream, (struct cast){in, tensor_2d(bf16, I32, ROWS, COLUMNS)}), BAD_ARGUMENT);
    cr_expect_str_eq(
        fail_text(),
        "cast: in is f32[40, 1500] and out is i32[40, 1500]; cast takes equal shapes of f32, bf16 or "
        "f16");
    cr_expect_eq(cast(fixture.stream, (struct cast){in, tensor_2d(bf16, BF16, ROWS, 3)}), BAD_ARGUMENT);
    fixture_close(&fixture);
}

/* ---- ops ---- */

/* An op on 16-bit types equals the op on the same values in fp32, rounded once: bitwise, because its sums
 * have the same order. fp32 itself is checked against double precision in the other tests, so this suffices;
 * only gemm, which is computed differently, has its own bound below.
 *
 * A trial is an op on fp32 tensors with values representable in the narrow type, and the list of those to be
 * converted to that type. It is run, and then the same op on narrow tensors, with copies of
 * the others. */
enum { OPERANDS = 12 };

struct operands {
    struct tensor *narrow[OPERANDS], *f32[OPERANDS]; // up to the first NULL
};

struct trial {
    struct fixture *fixture;
    enum dtype dtype;
    int64_t rows, columns;
    struct dropout dropout;
    int32_t *ids;
    float *mask;
};

/* Every row is followed by two elements outside of the tensor. */
static struct tensor matrix_named(const struct trial *t, const char *name, int64_t rows, int64_t columns)
{
    float *data = fixture_normals(t->fixture, name, rows * (columns + 2), 1.0);
    for (int64_t i = 0; i < rows * (columns + 2); i++)
        data[i] = i % (columns + 2) < columns
                      ? (float)narrow_value(t->dtype, narrow_nearest(t->dtype, data[i]))
                      : NAN;
    return tensor_columns(tensor_2d(data, F32, rows, columns + 2), 0, columns);
}

static struct tensor matrix(const struct trial *t, const char *name)
{
    return matrix_named(t, name, t->rows, t->columns);
}

static struct tensor vector(const struct trial *t, const char *name, int64_t count)
{
    struct tensor line = matrix_named(t, name, 1, count);
    return tensor_1d(line.data, F32, count);
}

static int64_t spanned(struct tensor t)
{
    return t.ndim == 2 ? (t.dim[0] - 1) * t.stride[0] + t.dim[1] : t.dim[0];
}

static struct tensor narrow_copy_of(const struct trial *t, struct tensor x, enum dtype dtype)
{
    if (x.data == NULL)
        return x;
    const float *from = x.data;
    int64_t count = spanned(x);
    if (dtype == F32) {
        x.data = fixture_copy(t->fixture, from, count);
        return x;
    }
    uint16_t *to = fixture_shorts(t->fixture, count);
    for (int64_t i = 0; i < count; i++)
        to[i] = isnan(from[i]) ? 0xffff : narrow_nearest(dtype, from[i]);
    x.data = to;
    x.dtype = dtype;
    return x;
}

/* Counts wrong elements of the narrow tensor, including gaps between rows. */
static int64_t differences(struct tensor x, struct tensor narrow)
{
    int64_t count = 0;
    const float *want = x.data;
    for (int64_t i = 0; x.data != NULL && i < spanned(x); i++) {
        if (narrow.dtype == F32)
            count += memcmp(&want[i], (const float *)narrow.data + i, sizeof *want) != 0;
        else
            count += ((const uint16_t *)narrow.data)[i] !=
                     (isnan(want[i]) ? 0xffff : narrow_nearest(narrow.dtype, want[i]));
    }
    return count;
}

/* Runs `op` on the operands, which are fields of the op itself, and the same on narrow ones; true if they
 * agree. */
static bool agrees_with_narrow_op(const struct trial *t, struct operands operands,
                                  enum status (*run)(void *, struct stream *), void *op)
{
    struct tensor narrow[OPERANDS], f32[OPERANDS], kept[2][OPERANDS];
    int64_t wrong = 0;
    for (int i = 0; operands.narrow[i] != NULL; i++)
        kept[0][i] = *operands.narrow[i], narrow[i] = narrow_copy_of(t, kept[0][i], t->dtype);
    for (int i = 0; operands.f32[i] != NULL; i++)
        kept[1][i] = *operands.f32[i], f32[i] = narrow_copy_of(t, kept[1][i], F32);
    cr_assert_eq(run(op, t->fixture->stream), OK, "%s", fail_text());
    for (int i = 0; operands.narrow[i] != NULL; i++)
        *operands.narrow[i] = narrow[i];
    for (int i = 0; operands.f32[i] != NULL; i++)
        *operands.f32[i] = f32[i];
    cr_assert_eq(run(op, t->fixture->stream), OK, "%s", fail_text());
    for (int i = 0; operands.narrow[i] != NULL; i++) {
        wrong += differences(kept[0][i], narrow[i]);
        cr_expect(narrow[i].data == NULL || fixture_shorts_are_guarded(narrow[i].data, spanned(narrow[i])));
    }
    for (int i = 0; operands.f32[i] != NULL; i++)
        wrong += differences(kept[1][i], f32[i]);
    return wrong == 0;
}

/* An entry point that takes its struct by pointer. */
#define RUN(check)                                                  \
    static enum status run_##check(void *op, struct stream *stream) \
    {                                                               \
        return check(stream, *(struct check *)op);                  \
    }
RUN(norm_forward)
RUN(norm_backward)
RUN(activation_forward)
RUN(activation_backward)
RUN(rope)
RUN(attention_forward)
RUN(attention_backward)
RUN(embedding_forward)
RUN(embedding_backward)
RUN(residual_forward)
RUN(residual_backward)
RUN(softcap)
RUN(loss_max)
RUN(loss_sum)
RUN(loss_backward)
RUN(column_sum)
RUN(add_parts)
RUN(init_normal)

static bool norms(const struct trial *t)
{
    bool good = true;
    for (int kind = 0; kind < 2; kind++) {
        struct norm_forward f = {.kind = (enum norm_kind)kind,
                                 .x = matrix(t, "x"),
                                 .weight = vector(t, "w", t->columns),
                                 .epsilon = 1e-5F,
                                 .y = matrix(t, "y"),
                                 .rstd = vector(t, "r", t->rows)};
        struct norm_backward b = {.kind = f.kind,
                                  .dy = matrix(t, "dy"),
                                  .x = matrix(t, "x"),
                                  .weight = vector(t, "w", t->columns),
                                  .rstd = vector(t, "r", t->rows),
                                  .dresidual = matrix(t, "dresidual"),
                                  .dx = matrix(t, "dx"),
                                  .dweight = vector(t, "dw", t->columns)};
        if (kind == NORM_LAYER) {
            f.bias = vector(t, "b", t->columns);
            f.mean = b.mean = vector(t, "m", t->rows);
            b.dbias = vector(t, "db", t->columns);
        }
        good =
            agrees_with_narrow_op(t, (struct operands){{&f.x, &f.weight, &f.bias, &f.y}, {&f.mean, &f.rstd}},
                                  run_norm_forward, &f) &&
            agrees_with_narrow_op(t,
                                  (struct operands){{&b.dy, &b.x, &b.weight, &b.dresidual, &b.dx},
                                                    {&b.mean, &b.rstd, &b.dweight, &b.dbias}},
                                  run_norm_backward, &b) &&
            good;
    }
    return good;
}

static bool activations(const struct trial *t)
{
    bool good = true;
    for (int kind = 0; kind < ACTIVATION_KINDS; kind++) {
        int64_t width = activation_is_gated((enum activation)kind) ? 2 * t->columns : t->columns;
        struct activation_forward f = {(enum activation)kind, matrix_named(t, "x", t->rows, width),
                                       matrix(t, "y")};
        struct activation_backward b = {f.kind, matrix_named(t, "x", t->rows, width), matrix(t, "dy"),
                                        matrix_named(t, "dx", t->rows, width)};
        good = agrees_with_narrow_op(t, (struct operands){{&f.x, &f.y}, {0}}, run_activation_forward, &f) &&
               agrees_with_narrow_op(t, (struct operands){{&b.x, &b.dy, &b.dx}, {0}}, run_activation_backward,
                                     &b) &&
               good;
    }
    return good;
}

static bool residuals(const struct trial *t)
{
    bool good = true;
    for (int with = 0; with < 2; with++) {
        struct residual_forward f = {.x = matrix(t, "x"), .out = matrix(t, "out")};
        struct residual_backward b = {.dout = matrix(t, "dout"), .dx = matrix(t, "dx")};
        if (with == 1) {
            f.bias = vector(t, "bias", t->columns);
            f.residual = matrix(t, "residual");
            f.dropout = b.dropout = t->dropout;
        }
        good =
            agrees_with_narrow_op(t, (struct operands){{&f.x, &f.bias, &f.residual, &f.out}, {0}},
                                  run_residual_forward, &f) &&
            agrees_with_narrow_op(t, (struct operands){{&b.dout, &b.dx}, {0}}, run_residual_backward, &b) &&
            good;
    }
    return good;
}

static bool tables_and_sums(const struct trial *t)
{
    bool good = true;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct embedding_forward f = {
            matrix_named(t, "table", 9, t->columns), t->ids, 4, 7, matrix(t, "out"), accumulate == 1};
        good =
            agrees_with_narrow_op(t, (struct operands){{&f.table, &f.out}, {0}}, run_embedding_forward, &f) &&
            good;
    }
    struct embedding_backward b = {t->ids, 4, 7, matrix(t, "dout"), matrix_named(t, "table", 9, t->columns)};
    struct column_sum c = {matrix(t, "in"), vector(t, "sum", t->columns)};
    struct add_parts p = {matrix(t, "in"), vector(t, "out", t->columns)};
    struct init_normal n = {matrix(t, "out"), philox_named(5, "weight"), 0.02F, 3, 2, t->columns + 5};
    // Positions that no narrow type represents: positions and angles are never narrow.
    int32_t *position = fixture_ints(t->fixture, t->rows);
    for (int64_t i = 0; i < t->rows; i++)
        position[i] = 70001 + 1003 * (int32_t)i;
    struct rope r = {.x = matrix(t, "x"), .position = position, .head_dim = t->columns / 2 * 2, .base = 1e4};
    r.x = tensor_columns(r.x, 0, r.head_dim);
    return agrees_with_narrow_op(t, (struct operands){{&b.dout}, {&b.dtable}}, run_embedding_backward, &b) &&
           agrees_with_narrow_op(t, (struct operands){{&c.in}, {&c.out}}, run_column_sum, &c) &&
           agrees_with_narrow_op(t, (struct operands){{&p.parts, &p.out}, {0}}, run_add_parts, &p) &&
           agrees_with_narrow_op(t, (struct operands){{&n.out}, {0}}, run_init_normal, &n) &&
           (r.head_dim == 0 || r.head_dim > ROPE_HEAD_DIM_MAX ||
            agrees_with_narrow_op(t, (struct operands){{&r.x}, {0}}, run_rope, &r)) &&
           good;
}

static bool losses(const struct trial *t)
{
    int64_t real = t->columns - t->columns / 5;
    struct loss_max m = {matrix(t, "logits"), real, vector(t, "max", t->rows)};
    struct loss_sum s = {matrix(t, "logits"),       vector(t, "max", t->rows),   t->ids, 0, real,
                         vector(t, "sum", t->rows), vector(t, "target", t->rows)};
    struct loss_backward b = {matrix(t, "logits"),
                              vector(t, "max", t->rows),
                              vector(t, "sum", t->rows),
                              t->ids,
                              t->mask,
                              0,
                              real,
                              NULL,
                              0.0F},
                         capped = b;
    struct softcap cap = {matrix(t, "logits"), 1.5F};
    capped.logits = matrix(t, "logits");
    capped.softcap = 7.0F;
    for (int64_t i = 0; i < t->rows; i++)
        ((float *)b.sum.data)[i] = fabsf(((float *)b.sum.data)[i]) + 1.0F;
    return agrees_with_narrow_op(t, (struct operands){{&m.logits}, {&m.max}}, run_loss_max, &m) &&
           agrees_with_narrow_op(t, (struct operands){{&cap.x}, {0}}, run_softcap, &cap) &&
           agrees_with_narrow_op(t, (struct operands){{&capped.logits}, {&capped.max, &capped.sum}},
                                 run_loss_backward, &capped) &&
           agrees_with_narrow_op(t, (struct operands){{&s.logits}, {&s.max, &s.sum, &s.target}}, run_loss_sum,
                                 &s) &&
           agrees_with_narrow_op(t, (struct operands){{&b.logits}, {&b.max, &b.sum}}, run_loss_backward, &b);
}

/* Two heads per group, sequences slightly longer than a block. */
static bool attention(const struct trial *t)
{
    enum { BATCH = 2, S = 70 };
    int64_t d = t->columns < 40 ? t->columns : 40, tokens = BATCH * S;
    struct attention_forward f = {.q = matrix_named(t, "q", tokens, 2 * d),
                                  .k = matrix_named(t, "k", tokens, d),
                                  .v = matrix_named(t, "v", tokens, d),
                                  .batch = BATCH,
                                  .sequence = S,
                                  .head_dim = d,
                                  .scale = 0.2F,
                                  .dropout = t->dropout,
                                  .out = matrix_named(t, "out", tokens, 2 * d),
                                  .lse = matrix_named(t, "lse", 2, tokens)};
    int64_t *sample = fixture_longs(t->fixture, tokens);
    f.dropout.sample = sample;
    f.dropout.columns = S;
    struct attention_backward b = {.forward = f,
                                   .dout = matrix_named(t, "dout", tokens, 2 * d),
                                   .dq = matrix_named(t, "dq", tokens, 2 * d),
                                   .dk = matrix_named(t, "dk", tokens, d),
                                   .dv = matrix_named(t, "dv", tokens, d)};
    b.forward.out = matrix_named(t, "out", tokens, 2 * d);
    b.forward.lse = matrix_named(t, "lse", 2, tokens);
    struct attention_forward *bf = &b.forward;
    return agrees_with_narrow_op(t, (struct operands){{&f.q, &f.k, &f.v, &f.out}, {&f.lse}},
                                 run_attention_forward, &f) &&
           agrees_with_narrow_op(
               t,
               (struct operands){{&bf->q, &bf->k, &bf->v, &bf->out, &b.dout, &b.dq, &b.dk, &b.dv},
                                 {&bf->lse}},
               run_attention_backward, &b);
}

static const struct {
    const char *name;
    bool (*agree)(const struct trial *t);
} groups[] = {{"norms", norms},         {"activations", activations},
              {"residuals", residuals}, {"tables", tables_and_sums},
              {"losses", losses},       {"attention", attention}};
enum { GROUPS = sizeof groups / sizeof *groups };

static struct trial trial_of(struct fixture *fixture, enum dtype dtype, int64_t rows, int64_t columns)
{
    struct trial t = {.fixture = fixture, .dtype = dtype, .rows = rows, .columns = columns};
    int64_t *sample = fixture_longs(fixture, rows);
    t.ids = fixture_ints(fixture, rows);
    t.mask = fixture_floats(fixture, rows);
    for (int64_t i = 0; i < rows; i++) {
        sample[i] = 1000 + i;
        t.ids[i] = (int32_t)(i * 5 % 17);
        t.mask[i] = i % 5 == 3 ? 0.0F : 1.0F;
    }
    t.dropout = (struct dropout){0.25F, philox_named(7, "narrow"), sample, t.ids, columns + 64, 13};
    return t;
}

Test(ops_narrow, ops_are_fp32_rounded_once)
{
    // Rows shorter than a vector, of one vector, of several and a tail.
    const int64_t shapes[][2] = {{1, 1}, {7, 17}, {70, 100}, {9, 1024}, {5, 2500}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int d = 0; d < 2; d++) {
            for (int g = 0; g < GROUPS; g++) {
                struct fixture fixture = fixture_open(2);
                fixture.shift = (int)s * 3;
                struct trial t = trial_of(&fixture, narrow_types[d], shapes[s][0], shapes[s][1]);
                cr_expect(groups[g].agree(&t), "%s of %s, %ld x %ld", groups[g].name, dtype_name(t.dtype),
                          (long)t.rows, (long)t.columns);
                fixture_close(&fixture);
            }
        }
    }
}

/* The working copy is the new weight, rounded, and the fp32 step is the same as without it. */
Test(ops_narrow, adamw_leaves_the_weight_rounded)
{
    enum { N = 40001 };
    for (int d = 0; d < 2; d++) {
        struct fixture fixture = fixture_open(2);
        struct adamw_hyper hyper = {0.01F, 0.1F, 0.05F, 1e-6F, 0.2F, 0.1F, 0.1F, 0.1F, 0.0F, 1};
        float *weight[2];
        uint16_t *working = fixture_shorts(&fixture, N);
        for (int with = 0; with < 2; with++) {
            weight[with] = fixture_normals(&fixture, "w", N, 1.0);
            struct adamw a = {.weight = tensor_1d(weight[with], F32, N),
                              .gradient = tensor_1d(fixture_normals(&fixture, "g", N, 1.0), F32, N),
                              .m = tensor_1d(fixture_normals(&fixture, "m", N, 1.0), F32, N),
                              .v = tensor_1d(fixture_normals(&fixture, "v", N, 1.0), F32, N),
                              .hyper = &hyper};
            for (int i = 0; i < N; i++)
                ((float *)a.v.data)[i] = fabsf(((float *)a.v.data)[i]);
            if (with == 1)
                a.working = tensor_1d(working, narrow_types[d], N);
            cr_assert_eq(adamw(fixture.stream, a), OK, "%s", fail_text());
        }
        cr_expect(same_bits(weight[0], weight[1], N) && fixture_shorts_are_guarded(working, N));
        for (int i = 0; i < N; i++)
            cr_assert_eq(working[i], narrow_nearest(narrow_types[d], weight[1][i]));
        fixture_close(&fixture);
    }
}
