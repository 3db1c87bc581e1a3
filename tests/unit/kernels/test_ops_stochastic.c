// SPDX-License-Identifier: Apache-2.0
/* bf16 weights without masters: rounding results, frequencies, and random bits. */
#include "kernels/numbers/narrow.h"
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

enum { HALVES = 65536 };

/* ---- single values ---- */

/* How many of all 16-bit random numbers round x to `pattern`. */
static int count_of(float x, uint16_t pattern)
{
    int count = 0;
    for (uint32_t half = 0; half < HALVES; half++)
        count += bf16_of_stochastic(x, half) == pattern;
    return count;
}

/* The frequency of rounding up is exactly the distance of x from the value below: the mean is x. Values of
 * all sizes, including subnormals and those just below a power of two. */
Test(ops_stochastic, probability_is_the_distance)
{
    for (uint32_t k = 0; k < 200; k++) {
        uint32_t word = philox_word(philox_named(3, "bits"), 0, k);
        if (k % 8 == 6)
            word |= 0x007fff00U; // carries into the exponent
        if (k % 8 == 7)
            word &= 0x807fffffU; // below 2^-126
        float x = float_of_bits(word);
        if (!(fabsf(x) < 0x1.fep127F))
            continue;
        uint16_t nearer_zero = (uint16_t)(word >> 16), away = (uint16_t)(nearer_zero + 1);
        double near = narrow_value(BF16, nearer_zero), far = narrow_value(BF16, away);
        double share = ((double)x - near) / (far - near) * HALVES;
        cr_assert_eq(count_of(x, away), (int)share, "%a", (double)x);
        cr_assert_eq(count_of(x, nearer_zero), HALVES - (int)share, "%a", (double)x);
        cr_assert_eq(share, floor(share));
    }
}

/* Representable values are unchanged, signed zeros included; no finite value that is nearer to the largest
 * number becomes infinite; NaN stays NaN. */
Test(ops_stochastic, exact_values_are_unchanged)
{
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        float x = float_of_bf16((uint16_t)pattern);
        for (uint32_t half = 0; half < HALVES; half += 21845)
            cr_assert(isnan(x) ? isnan(float_of_bf16(bf16_of_stochastic(x, half)))
                               : bf16_of_stochastic(x, half) == pattern);
    }
    for (int sign = 0; sign < 2; sign++) {
        uint32_t minus = (uint32_t)sign << 31;
        cr_assert_eq(count_of(float_of_bits(minus | 0x7f7f0001U), (uint16_t)(minus >> 16 | 0x7f7f)), HALVES);
        cr_assert_eq(count_of(float_of_bits(minus | 0x7f7f7fffU), (uint16_t)(minus >> 16 | 0x7f7f)), HALVES);
        cr_assert_eq(count_of(float_of_bits(minus | 0x7f7f8000U), (uint16_t)(minus >> 16 | 0x7f80)), HALVES);
        cr_assert_eq(count_of(minus != 0 ? -FLT_MAX : FLT_MAX, (uint16_t)(minus >> 16 | 0x7f80)), HALVES);
        float quiet = float_of_bf16(bf16_of_stochastic(float_of_bits(minus | 0x7f800001U), HALVES - 1));
        cr_assert(isnan(quiet));
    }
}

/* Monotonic: of two values, rounded with the same half, the larger does not become the smaller: verify's
 * bound relies on it. */
Test(ops_stochastic, monotone)
{
    uint32_t words[4];
    for (uint32_t k = 0; k < 100000; k++) {
        philox_words(philox_named(4, "pairs"), 0, k, words);
        float a = float_of_bits(words[0]),
              b = float_of_bits(k % 2 == 0 ? words[1] : words[0] + words[1] % 131072);
        if (isnan(a) || isnan(b))
            continue;
        float low = fminf(a, b), high = fmaxf(a, b);
        cr_assert_leq(float_of_bf16(bf16_of_stochastic(low, words[2] >> 16)),
                      float_of_bf16(bf16_of_stochastic(high, words[2] >> 16)), "%a %a", (double)low,
                      (double)high);
    }
}

/* ---- AdamW ---- */

enum { ROWS = 90, COLUMNS = 211, ALL = ROWS * COLUMNS }; // several vectors of a kernel and a tail

struct state {
    uint16_t *weight;
    float *gradient, *m, *v;
};

static struct adamw_hyper hyper_at(uint64_t step)
{
    return (struct adamw_hyper){.lr = 0.01F,
                                .one_minus_beta1 = 0.1F,
                                .one_minus_beta2 = 0.05F,
                                .epsilon = 1e-6F,
                                .correction1 = 0.2F,
                                .correction2 = 0.1F,
                                .gradient_scale = 0.1F,
                                .weight_decay = 0.1F,
                                .step = step};
}

/* Rows [row, row + rows) and columns [column, column + columns) of a matrix [ROWS, COLUMNS]. */
struct cut {
    int64_t row, rows, column, columns;
};

static int64_t global_index(const struct cut *cut, int64_t element)
{
    return (cut->row + element / cut->columns) * COLUMNS + cut->column + element % cut->columns;
}

static struct state state_of(struct fixture *fixture, const struct cut *cut)
{
    int64_t count = cut->rows * cut->columns;
    struct state s = {fixture_shorts(fixture, count), fixture_floats(fixture, count),
                      fixture_floats(fixture, count), fixture_floats(fixture, count)};
    const float *w = fixture_normals(fixture, "w", ALL, 1.0), *g = fixture_normals(fixture, "g", ALL, 1.0);
    const float *m = fixture_normals(fixture, "m", ALL, 1.0), *v = fixture_normals(fixture, "v", ALL, 1.0);
    for (int64_t e = 0; e < count; e++) {
        int64_t at = global_index(cut, e);
        s.weight[e] = narrow_nearest(BF16, w[at]);
        s.gradient[e] = g[at];
        s.m[e] = m[at];
        s.v[e] = fabsf(v[at]);
    }
    return s;
}

/* Elements [first, first + count) of a slice. */
static struct adamw op_of(const struct state *s, const struct cut *cut, const struct adamw_hyper *hyper,
                          int64_t first, int64_t count)
{
    return (struct adamw){.weight = tensor_1d(s->weight + first, BF16, count),
                          .gradient = tensor_1d(s->gradient + first, F32, count),
                          .m = tensor_1d(s->m + first, F32, count),
                          .v = tensor_1d(s->v + first, F32, count),
                          .hyper = hyper,
                          .decay = true,
                          .stochastic = {.generator = philox_named(11, "a.rounding"),
                                         .begin = cut->row * COLUMNS + cut->column,
                                         .width = cut->columns,
                                         .columns = COLUMNS,
                                         .first = first}};
}

/* The step in fp32 from the same values, by the same device; then rounded here, element by element. */
static void expect_whole(struct fixture *fixture, uint64_t step, uint16_t *out)
{
    const struct cut all = {0, ROWS, 0, COLUMNS};
    struct adamw_hyper hyper = hyper_at(step);
    struct state s = state_of(fixture, &all);
    float *wide = fixture_floats(fixture, ALL);
    for (int e = 0; e < ALL; e++)
        wide[e] = (float)narrow_value(BF16, s.weight[e]);
    fixture_register(fixture, &hyper, sizeof hyper);
    struct adamw op = op_of(&s, &all, &hyper, 0, ALL);
    op.weight = tensor_1d(wide, F32, ALL);
    cr_assert_eq(adamw(fixture->stream, op), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture->stream), OK);
    for (int e = 0; e < ALL; e++) {
        uint32_t word = philox_word(philox_named(11, "a.rounding"), step, (uint64_t)e / 2);
        uint32_t bits = bits_of_float(wide[e]), half = e % 2 == 0 ? word % HALVES : word / HALVES;
        out[e] = (uint16_t)((bits >> 16) + (bits % HALVES + half >= HALVES));
    }
}

/* Every slice has the same bits as the full tensor: of rows, of columns, of both, in parts, and
 * unaligned. */
Test(ops_stochastic, keyed_by_global_index)
{
    static const struct cut cuts[] = {
        {0, ROWS, 0, COLUMNS}, {37, 53, 0, COLUMNS}, {0, ROWS, 105, 106}, {3, 20, 7, 1}, {89, 1, 200, 11}};
    uint16_t whole[ALL];
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (int parts = 1; parts <= 3; parts += 2) {
            struct fixture fixture = fixture_open(2);
            fixture.shift = (int)c;
            const struct cut *cut = &cuts[c];
            struct adamw_hyper hyper = hyper_at(5);
            expect_whole(&fixture, 5, whole);
            struct state s = state_of(&fixture, cut);
            fixture_register(&fixture, &hyper, sizeof hyper);
            int64_t count = cut->rows * cut->columns;
            for (int p = 0; p < parts; p++) {
                int64_t begin = count * p / parts, end = count * (p + 1) / parts;
                struct adamw op = op_of(&s, cut, &hyper, begin, end - begin);
                cr_assert_eq(adamw(fixture.stream, op), OK, "%s", fail_text());
            }
            cr_assert_eq(stream_sync(fixture.stream), OK);
            for (int64_t e = 0; e < count; e++)
                cr_assert_eq(s.weight[e], whole[global_index(cut, e)], "cut %zu, element %ld", c, (long)e);
            cr_expect(fixture_shorts_are_guarded(s.weight, count) && fixture_is_guarded(s.m, count));
            fixture_close(&fixture);
        }
}

/* Another step draws other random bits: many weights with an inexact update are rounded differently. */
Test(ops_stochastic, keyed_by_step)
{
    uint16_t first[ALL];
    struct fixture fixture = fixture_open(1);
    int differ = 0;
    expect_whole(&fixture, 1, first);
    struct adamw_hyper hyper = hyper_at(2);
    const struct cut all = {0, ROWS, 0, COLUMNS};
    struct state s = state_of(&fixture, &all);
    fixture_register(&fixture, &hyper, sizeof hyper);
    cr_assert_eq(adamw(fixture.stream, op_of(&s, &all, &hyper, 0, ALL)), OK, "%s", fail_text());
    cr_assert_eq(stream_sync(fixture.stream), OK);
    for (int e = 0; e < ALL; e++)
        differ += first[e] != s.weight[e];
    // Two decisions of probability p differ with 2 p (1 - p), a third on average over p.
    cr_expect(differ > ALL / 4 && differ < ALL * 5 / 12, "%d", differ);
    fixture_close(&fixture);
}

/* Updates of an eighth of a unit in the last place: with round-to-nearest a weight would never change.
 * Stochastically each step changes one weight in eight, and after STEPS steps the mean equals fp32's: within
 * sqrt(STEPS / 8 * 7 / 8 / N) of a unit, one standard deviation; 5 of them are allowed. */
Test(ops_stochastic, small_updates_are_not_lost)
{
    enum { N = 4096, STEPS = 32 };
    const float unit = 0x1p-7F, start = 1.25F;
    struct fixture fixture = fixture_open(2);
    struct adamw_hyper hyper = {.lr = unit / 8.0F,
                                .one_minus_beta1 = 1.0F,
                                .one_minus_beta2 = 1.0F,
                                .correction1 = 1.0F,
                                .correction2 = 1.0F,
                                .gradient_scale = 1.0F};
    struct state s = {fixture_shorts(&fixture, N), fixture_floats(&fixture, N), fixture_floats(&fixture, N),
                      fixture_floats(&fixture, N)};
    for (int e = 0; e < N; e++) {
        s.weight[e] = bf16_of(start);
        s.gradient[e] = e % 2 == 0 ? 1.0F : -1.0F; // with beta 0 the step is its sign
        s.m[e] = s.v[e] = 0.0F;
    }
    fixture_register(&fixture, &hyper, sizeof hyper);
    for (int step = 1; step <= STEPS; step++) {
        hyper.step = (uint64_t)step;
        struct adamw op = op_of(&s, &(struct cut){0, 1, 0, 1}, &hyper, 0, N);
        op.stochastic.width = op.stochastic.columns = N;
        cr_assert_eq(adamw(fixture.stream, op), OK, "%s", fail_text());
        cr_assert_eq(stream_sync(fixture.stream), OK);
    }
    cr_assert_eq(narrow_nearest(BF16, start + hyper.lr), narrow_nearest(BF16, start));
    double mean[2] = {0.0}, deviation = sqrt(STEPS / 8.0 * 7.0 / 8.0 / (N / 2.0));
    for (int e = 0; e < N; e++)
        mean[e % 2] += ((double)float_of_bf16(s.weight[e]) - (double)start) / (double)unit / (N / 2.0);
    for (int way = 0; way < 2; way++)
        cr_expect_lt(fabs(mean[way] - (way == 0 ? -1.0 : 1.0) * STEPS / 8.0), 5.0 * deviation, "%g of %d",
                     mean[way], STEPS / 8);
    cr_expect_gt(deviation, 0.0);
    fixture_close(&fixture);
}
