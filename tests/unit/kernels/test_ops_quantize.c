// SPDX-License-Identifier: Apache-2.0
/* Quantization, bitwise: the reference finds an element's block by testing every other element, its scale by
 * trying exponents, and its value by trying every code. Where a published recipe multiplies in fp32, so does
 * the reference, in that order. The Hadamard transform against its matrix in double precision. */
#include "kernels/numbers/number_round.h"
#include "tests/support/narrow/narrow_reference.h"
#include "tests/support/ops_fixture.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The scaling of one element: x * into is rounded; dequantization is * back * whole. */
struct scaled {
    float into, back, whole;
};

static bool same_block(const struct quantize *q, int64_t r, int64_t c, int64_t row, int64_t column)
{
    int64_t period = q->period > 0 ? q->period : INT64_MAX;
    return r / period == row / period && r % period / q->block_rows == row % period / q->block_rows &&
           c / q->block_columns == column / q->block_columns;
}

static const float *element(struct tensor t, int64_t row, int64_t column)
{
    return (const float *)t.data + row * t.stride[0] + column;
}

static double largest_of_block(const struct quantize *q, int64_t row, int64_t column)
{
    double largest = 0.0;
    for (int64_t r = 0; r < q->in.dim[0]; r++)
        for (int64_t c = 0; c < q->in.dim[1]; c++)
            if (same_block(q, r, c, row, column))
                largest = fmax(largest, fabs((double)*element(q->in, r, c)));
    return largest;
}

static struct scaled power(int exponent)
{
    return (struct scaled){(float)ldexp(1.0, -exponent), (float)ldexp(1.0, exponent), 1.0F};
}

static double largest_number(enum number_format format)
{
    static const double largest[] = {448.0, 57344.0, 6.0, 127.0, 1.0};
    return largest[format];
}

static struct scaled reference_scale(const struct quantize *q, int64_t row, double a)
{
    double largest = largest_number(q->format);
    int e = -126;
    switch (q->scale) {
    case SCALE_POWER_OF_TWO:
        while (ldexp(largest, e) < a)
            e++;
        return power(a > 0.0 ? e : 0);
    case SCALE_E8M0_UP:
        while (ldexp(largest, e - 1) < a)
            e++;
        return power(a > 0.0 ? e - 1 : 0); // from 2^-127 on
    case SCALE_E8M0_DOWN:
        while (ldexp(1.0, e + 1) <= a)
            e++;
        return power(a > 0.0 ? e - (q->format == NUMBER_E4M3 ? 8 : q->format == NUMBER_E5M2 ? 15 : 2) : 0);
    case SCALE_E4M3: {
        float up = 6.0F * 448.0F / *element(q->magnitude, 0, 0), down = 1.0F / up;
        float code = number_decode(NUMBER_E4M3, number_encode(NUMBER_E4M3, (float)a / 6.0F * up));
        return (struct scaled){1.0F / (code * down), code, down};
    }
    case SCALE_FULL: {
        double given = q->magnitude.dtype == F64 ? *(const double *)q->magnitude.data / q->divisor
                                                 : (double)((const float *)q->magnitude.data)[row];
        float least = fmaxf((float)given, 1e-5F);
        return (struct scaled){(float)largest / least, least / (float)largest, 1.0F};
    }
    }
    return (struct scaled){0};
}

static float nearest(enum number_format format, float x)
{
    double best = NAN, largest = largest_number(format), clamped = fmax(-largest, fmin(largest, (double)x));
    int best_code = 0;
    for (int code = 0; code < 256; code++) {
        double value = (double)number_decode(format, (uint8_t)code);
        if (!isfinite(value))
            continue;
        double closer = isnan(best) ? 1.0 : fabs(best - clamped) - fabs(value - clamped);
        if (closer > 0.0 || (closer == 0.0 && (code & 1) == 0 && (best_code & 1) != 0)) {
            best = value;
            best_code = code;
        }
    }
    return (float)best;
}

static float reference_element(const struct quantize *q, int64_t row, int64_t column)
{
    double a = q->block_rows > 0           ? largest_of_block(q, row, column)
               : q->magnitude.dtype == F64 ? *(const double *)q->magnitude.data
               : q->magnitude.dim[0] > 1   ? (double)((const float *)q->magnitude.data)[row]
                                           : (double)*(const float *)q->magnitude.data;
    struct scaled s = reference_scale(q, row, a);
    float x = *element(q->in, row, column) * s.into;
    if (q->sample == NULL)
        return nearest(q->format, x) * s.back * s.whole;
    uint32_t word = philox_word(q->generator, (uint64_t)q->sample[row],
                                (uint64_t)(q->sample_offset[row] * q->columns + q->column_begin + column));
    return number_round_stochastic(number_rounder(q->format), x, word) * s.back * s.whole;
}

static int64_t mistakes(const struct quantize *q, const float *got, int64_t row_stride)
{
    int64_t wrong = 0;
    for (int64_t r = 0; r < q->in.dim[0]; r++)
        for (int64_t c = 0; c < q->in.dim[1]; c++)
            wrong += !(got[r * row_stride + c] == reference_element(q, r, c));
    return wrong;
}

static struct tensor rows_of(float *data, int64_t rows, int64_t columns, int64_t stride)
{
    struct tensor t = tensor_2d(data, F32, rows, columns);
    t.stride[0] = stride;
    return t;
}

struct shape {
    enum number_format format;
    enum scale_rule scale;
    int64_t block_rows, block_columns, period, rows, columns;
};

/* The same values in 16 bits each. */
static struct tensor narrowed(struct fixture *fixture, enum dtype dtype, struct tensor wide)
{
    int64_t count = wide.dim[0] * wide.stride[0];
    uint16_t *bits = fixture_shorts(fixture, count);
    for (int64_t i = 0; i < count; i++) {
        float *x = (float *)wide.data + i;
        bits[i] = narrow_nearest(dtype, *x);
        *x = (float)narrow_value(dtype, bits[i]);
    }
    struct tensor t = wide;
    t.data = bits;
    t.dtype = dtype;
    return t;
}

/* Values of very different sizes, a column of zeros, and an all-zero block. */
static float *uneven(struct fixture *fixture, int64_t rows, int64_t stride)
{
    float *x = fixture_normals(fixture, "x", rows * stride, 1.0);
    for (int64_t i = 0; i < rows * stride; i++)
        x[i] *= ldexpf(1.0F, (int)(philox_word(philox_named(1, "size"), 0, (uint64_t)i) % 24) - 12);
    for (int64_t r = 0; r < rows; r++)
        x[r * stride] = 0.0F;
    return x;
}

static void check_shape(const struct shape *s, int threads, int shift)
{
    struct fixture fixture = fixture_open(threads);
    fixture.shift = shift;
    int64_t stride = s->columns + 3;
    float *x = uneven(&fixture, s->rows, stride), *out = fixture_floats(&fixture, s->rows * stride);
    float *given = fixture_floats(&fixture, 1);
    struct quantize q = {
        .in = rows_of(x, s->rows, s->columns, stride),
        .out = rows_of(out, s->rows, s->columns, stride),
        .format = s->format,
        .scale = s->scale,
        .block_rows = s->block_rows,
        .block_columns = s->block_columns,
        .period = s->period,
        .magnitude = tensor_1d(given, F32, 1),
    };
    MUST(magnitude(fixture.stream, (struct magnitude){.in = q.in, .out = q.magnitude}));
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(mistakes(&q, out, stride), 0, "%s, scale %d, blocks %lld x %lld, period %lld, %lld x %lld",
                 number_traits(s->format)->name, (int)s->scale, (long long)s->block_rows,
                 (long long)s->block_columns, (long long)s->period, (long long)s->rows,
                 (long long)s->columns);
    for (int64_t r = 0; r < s->rows; r++)
        cr_expect(isnan(out[r * stride + s->columns]), "after row %lld", (long long)r);
    cr_expect(fixture_is_guarded(out, s->rows * stride));
    // 16-bit types: bit-identical to their fp32 values.
    float *again = fixture_floats(&fixture, s->rows * stride), *joined = fixture_floats(&fixture, 1);
    struct quantize narrow = q;
    narrow.in = narrowed(&fixture, threads % 2 != 0 ? BF16 : F16, q.in);
    narrow.out = rows_of(again, s->rows, s->columns, stride);
    narrow.magnitude = tensor_1d(joined, F32, 1);
    MUST(magnitude(fixture.stream, (struct magnitude){.in = narrow.in, .out = narrow.magnitude}));
    MUST(quantize(fixture.stream, narrow));
    MUST(magnitude(fixture.stream, (struct magnitude){.in = q.in, .out = q.magnitude}));
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(given[0], joined[0]);
    for (int64_t r = 0; r < s->rows; r++)
        cr_expect(same_bits(again + r * stride, out + r * stride, s->columns));
    // In place, bit-identical.
    float *kept = fixture_copy(&fixture, x, s->rows * stride);
    q.out = q.in;
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    q.in = rows_of(kept, s->rows, s->columns, stride);
    cr_expect_eq(mistakes(&q, x, stride), 0);
    fixture_close(&fixture);
}

Test(ops_quantize, block_scales_follow_their_rule)
{
    static const struct shape shapes[] = {
        {NUMBER_E4M3, SCALE_E8M0_DOWN, 1, 32, 0, 3, 70},
        {NUMBER_E4M3, SCALE_E8M0_DOWN, 32, 1, 0, 70, 5},
        {NUMBER_E4M3, SCALE_E8M0_DOWN, 32, 1, 40, 100, 3},
        {NUMBER_E5M2, SCALE_E8M0_DOWN, 1, 32, 0, 2, 64},
        {NUMBER_E4M3, SCALE_E8M0_UP, 1, 32, 0, 3, 70},
        {NUMBER_E4M3, SCALE_E8M0_UP, 32, 1, 0, 70, 5},
        {NUMBER_E4M3, SCALE_E8M0_UP, 32, 1, 40, 100, 3},
        {NUMBER_E5M2, SCALE_E8M0_UP, 1, 32, 0, 2, 64},
        {NUMBER_E4M3, SCALE_POWER_OF_TWO, 1, 128, 0, 3, 200},
        {NUMBER_E5M2, SCALE_POWER_OF_TWO, 128, 1, 0, 150, 2},
        {NUMBER_E4M3, SCALE_POWER_OF_TWO, 16, 16, 0, 20, 40},
        {NUMBER_E2M1, SCALE_E4M3, 1, 16, 0, 4, 40},
        {NUMBER_E2M1, SCALE_E4M3, 16, 1, 24, 50, 6},
        {NUMBER_E2M1, SCALE_E4M3, 16, 16, 0, 33, 33},
        {NUMBER_E2M1, SCALE_E8M0_DOWN, 1, 32, 0, 2, 33},
        {NUMBER_E4M3, SCALE_POWER_OF_TWO, 0, 0, 0, 7, 11},
        {NUMBER_E5M2, SCALE_POWER_OF_TWO, 0, 0, 0, 1, 300},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i], 1 + (int)i % 3, (int)i % 2);
}

Test(ops_quantize, scale_rules_at_exponent_limits)
{
    const float least = 0x1p-149F,
                values[] = {least, 0x1p-126F, 0x1p-100F, 448.0F, 448.00003F, 1.0F, 0x1.fffffep127F};
    struct fixture fixture = fixture_open(1);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        float *x = fixture_floats(&fixture, 2), *out = fixture_floats(&fixture, 2);
        x[0] = values[i];
        x[1] = -values[i] / 4.0F;
        struct quantize q = {.in = tensor_2d(x, F32, 1, 2),
                             .out = tensor_2d(out, F32, 1, 2),
                             .block_rows = 1,
                             .block_columns = 2};
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        cr_expect_eq(mistakes(&q, out, 2), 0, "%g gives %g", (double)x[0], (double)out[0]);
        q.scale = SCALE_E8M0_UP;
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        cr_expect_eq(mistakes(&q, out, 2), 0, "%g gives %g", (double)x[0], (double)out[0]);
        bool inside = values[i] >= 0x1p-110F && values[i] < 0x1p127F; // rounded up, the last has no float
        cr_expect(!inside || fabsf(out[0] - x[0]) <= 0x1p-4F * x[0], "%g saturates at %g", (double)x[0],
                  (double)out[0]);
        q.scale = SCALE_E8M0_DOWN;
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        cr_expect(values[i] < 0x1p-110F || mistakes(&q, out, 2) == 0, "%g gives %g", (double)x[0],
                  (double)out[0]);
        cr_expect(values[i] < 0x1p-110F || fabsf(out[0] - x[0]) <= 0.125F * x[0], "%g gives %g", (double)x[0],
                  (double)out[0]);
    }
    fixture_close(&fixture);
}

Test(ops_quantize, bitnet_scales_by_row_and_mean)
{
    enum { ROWS = 9, COLUMNS = 30 };
    struct fixture fixture = fixture_open(2);
    float *x = fixture_normals(&fixture, "b", ROWS * COLUMNS, 0.02),
          *out = fixture_floats(&fixture, ROWS * COLUMNS);
    float *rows = fixture_floats(&fixture, ROWS);
    double *sum = fixture_doubles(&fixture, 1), want = 0.0;
    for (int c = 0; c < COLUMNS; c++)
        x[c] = 0.0F; // a zero row
    struct quantize q = {.in = tensor_2d(x, F32, ROWS, COLUMNS),
                         .out = tensor_2d(out, F32, ROWS, COLUMNS),
                         .format = NUMBER_INT8,
                         .scale = SCALE_FULL,
                         .magnitude = tensor_1d(rows, F32, ROWS)};
    MUST(magnitude(fixture.stream,
                   (struct magnitude){.kind = MAGNITUDE_LARGEST_IN_ROW, .in = q.in, .out = q.magnitude}));
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(mistakes(&q, out, COLUMNS), 0);
    for (int r = 1; r < ROWS; r++)
        cr_expect(rows[r] > 0.02F && rows[0] == 0.0F);

    q.format = NUMBER_TERNARY;
    q.magnitude = tensor_1d(sum, F64, 1);
    q.divisor = ROWS * COLUMNS;
    MUST(
        magnitude(fixture.stream, (struct magnitude){.kind = MAGNITUDE_SUM, .in = q.in, .out = q.magnitude}));
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(mistakes(&q, out, COLUMNS), 0);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        want += rint(fabs((double)x[i]) * 0x1p24) * 0x1p-24;
    cr_expect_eq(*sum, want);
    fixture_close(&fixture);
}

Test(ops_quantize, amax_accumulates_and_propagates_nan)
{
    struct fixture fixture = fixture_open(3);
    const int64_t rows = 400, columns = 1100; // more than one pass of a GPU
    float *x = fixture_normals(&fixture, "m", rows * columns, 1.0), *out = fixture_floats(&fixture, rows);
    struct tensor in = tensor_2d(x, F32, rows, columns);
    x[317 * columns + 1003] = -77.0F;
    out[0] = 100.0F;
    struct magnitude m = {.in = in, .out = tensor_1d(out, F32, 1), .accumulate = true};
    MUST(magnitude(fixture.stream, m));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(out[0], 100.0F);
    m.accumulate = false;
    MUST(magnitude(fixture.stream, m));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(out[0], 77.0F);
    m.kind = MAGNITUDE_LARGEST_IN_ROW;
    m.out = tensor_1d(out, F32, rows);
    MUST(magnitude(fixture.stream, m));
    MUST(stream_sync(fixture.stream));
    cr_expect(out[317] == 77.0F && out[316] < 10.0F);
    x[5] = NAN;
    x[6] = INFINITY;
    m.kind = MAGNITUDE_LARGEST;
    m.out = tensor_1d(out, F32, 1);
    MUST(magnitude(fixture.stream, m));
    MUST(stream_sync(fixture.stream));
    cr_expect(isnan(out[0]));
    double *sum = fixture_doubles(&fixture, 1);
    m.kind = MAGNITUDE_SUM;
    m.out = tensor_1d(sum, F64, 1);
    MUST(magnitude(fixture.stream, m));
    MUST(stream_sync(fixture.stream));
    cr_expect(isnan(*sum));
    fixture_close(&fixture);
}

Test(ops_quantize, propagates_non_finite_values)
{
    struct fixture fixture = fixture_open(1);
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        float *x = fixture_normals(&fixture, "n", 128, 1.0), *out = fixture_floats(&fixture, 128);
        float *one = fixture_floats(&fixture, 1);
        one[0] = 1.0F;
        x[40] = bad[i];
        struct quantize q = {.in = tensor_2d(x, F32, 2, 64),
                             .out = tensor_2d(out, F32, 2, 64),
                             .scale = SCALE_E8M0_UP,
                             .block_rows = 1,
                             .block_columns = 32};
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        for (int j = 0; j < 128; j++)
            cr_expect((isnan(out[j]) != 0) == (j >= 32 && j < 64), "%d", j);
        q.scale = SCALE_POWER_OF_TWO;
        q.block_rows = q.block_columns = 0;
        q.magnitude = tensor_1d(one, F32, 1);
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        for (int j = 0; j < 128; j++)
            cr_expect((isnan(out[j]) != 0) == (j == 40), "%d", j);
    }
    fixture_close(&fixture);
}

/* The same elements of a wider matrix, at other addresses and on other ranks. */
Test(ops_quantize, stochastic_rounding_is_keyed_by_sample_and_position)
{
    enum { ROWS = 40, COLUMNS = 300, BEGIN = 130 };
    struct fixture fixture = fixture_open(3);
    float *x = fixture_normals(&fixture, "s", ROWS * COLUMNS, 1.0),
          *whole = fixture_floats(&fixture, ROWS * COLUMNS);
    float *part = fixture_floats(&fixture, ROWS * COLUMNS), *tensor = fixture_floats(&fixture, 1);
    int64_t *sample = fixture_longs(&fixture, ROWS);
    int32_t *place = fixture_ints(&fixture, ROWS);
    for (int r = 0; r < ROWS; r++) {
        sample[r] = 1000 + r / 16;
        place[r] = r % 16;
    }
    struct quantize q = {.in = tensor_2d(x, F32, ROWS, COLUMNS),
                         .out = tensor_2d(whole, F32, ROWS, COLUMNS),
                         .format = NUMBER_E2M1,
                         .scale = SCALE_E4M3,
                         .block_rows = 16,
                         .block_columns = 1,
                         .period = 16,
                         .magnitude = tensor_1d(tensor, F32, 1),
                         .generator = philox_named(3, "layers.0.mlp.fc2.weight"),
                         .sample = sample,
                         .sample_offset = place,
                         .columns = COLUMNS};
    MUST(magnitude(fixture.stream, (struct magnitude){.in = q.in, .out = q.magnitude}));
    MUST(quantize(fixture.stream, q));
    MUST(stream_sync(fixture.stream));
    cr_expect_eq(mistakes(&q, whole, COLUMNS), 0);
    // Rows 16.. and columns 130.., as another rank and another microbatch would have them.
    struct quantize block = q;
    block.in = tensor_columns(tensor_rows(q.in, 16, ROWS), BEGIN, COLUMNS);
    block.out = tensor_2d(part, F32, ROWS - 16, COLUMNS - BEGIN);
    block.sample = sample + 16;
    block.sample_offset = place + 16;
    block.column_begin = BEGIN;
    MUST(quantize(fixture.stream, block));
    MUST(stream_sync(fixture.stream));
    for (int r = 16; r < ROWS; r++)
        cr_expect(
            same_bits(part + (r - 16) * (COLUMNS - BEGIN), whole + r * COLUMNS + BEGIN, COLUMNS - BEGIN));
    fixture_close(&fixture);
}

Test(ops_quantize, hadamard_matches_its_matrix_and_preserves_dot_products)
{
    enum { ROWS = 48, COLUMNS = 70 };
    struct fixture fixture = fixture_open(2);
    float *x = fixture_normals(&fixture, "h", ROWS * COLUMNS, 1.0),
          *y = fixture_floats(&fixture, ROWS * COLUMNS);
    struct philox signs = philox_named(5, "signs");
    float *z = fixture_floats(&fixture, ROWS * COLUMNS);
    struct hadamard h = {tensor_2d(x, F32, ROWS, COLUMNS), tensor_2d(y, F32, ROWS, COLUMNS), signs};
    struct hadamard narrow = {narrowed(&fixture, BF16, h.in), tensor_2d(z, F32, ROWS, COLUMNS), signs};
    MUST(hadamard(fixture.stream, h));
    MUST(hadamard(fixture.stream, narrow));
    MUST(stream_sync(fixture.stream));
    cr_expect(same_bits(y, z, ROWS * COLUMNS));
    int64_t outside = 0, negative = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < COLUMNS; c++) {
            double want = 0.0, terms = 0.0;
            for (int j = 0; j < 16; j++) {
                bool minus = (philox_word(signs, 0, (uint64_t)j) & 1) != 0;
                negative += minus && r == 0 && c == 0;
                double term = (double)x[(r / 16 * 16 + j) * COLUMNS + c] / (minus ? -4.0 : 4.0);
                want += __builtin_popcount((unsigned)(r % 16 & j)) % 2 != 0 ? -term : term;
                terms += fabs(term);
            }
            // Four additions, each of at most all terms.
            outside += !(fabs((double)y[r * COLUMNS + c] - want) <= 4.1 * UNIT * terms);
        }
    }
    cr_expect_eq(outside, 0);
    cr_expect(negative > 0 && negative < 16, "all signs are equal");
    // x^T x = y^T y: both sums round, over 48 rows.
    double before = 0.0, after = 0.0, size = 0.0;
    for (int r = 0; r < ROWS; r++) {
        before += (double)x[r * COLUMNS] * (double)x[r * COLUMNS + 1];
        after += (double)y[r * COLUMNS] * (double)y[r * COLUMNS + 1];
        size += fabs((double)y[r * COLUMNS] * (double)y[r * COLUMNS + 1]);
    }
    cr_expect(fabs(before - after) < 32.0 * UNIT * (size + fabs(before)) && size > 1.0);
    fixture_close(&fixture);
}

Test(ops_quantize, threads_change_no_bit)
{
    enum { ROWS = 300, COLUMNS = 257 };
    float *out[2];
    struct fixture fixtures[2];
    for (int i = 0; i < 2; i++) {
        struct fixture *fixture = &fixtures[i];
        *fixture = fixture_open(1 + 3 * i);
        float *x = uneven(fixture, ROWS, COLUMNS);
        out[i] = fixture_floats(fixture, ROWS * COLUMNS);
        struct quantize q = {.in = tensor_2d(x, F32, ROWS, COLUMNS),
                             .out = tensor_2d(out[i], F32, ROWS, COLUMNS),
                             .scale = SCALE_E8M0_UP,
                             .block_rows = 32,
                             .block_columns = 1,
                             .period = 100};
        MUST(quantize(fixture->stream, q));
        MUST(stream_sync(fixture->stream));
    }
    cr_expect(same_bits(out[0], out[1], ROWS * COLUMNS));
    fixture_close(&fixtures[0]);
    fixture_close(&fixtures[1]);
}

Test(ops_quantize, checks_reject_invalid_shapes)
{
    struct fixture fixture = fixture_open(1);
    float *x = fixture_normals(&fixture, "x", 64, 1.0);
    struct tensor t = tensor_2d(x, F32, 4, 16);
    const struct quantize bad[] = {
        {.in = t, .out = tensor_2d(x, F32, 4, 15), .block_rows = 1, .block_columns = 16},
        {.in = t, .out = t, .block_rows = 1, .block_columns = 24},
        {.in = t, .out = t, .block_rows = 129, .block_columns = 1},
        {.in = t, .out = t, .block_rows = 1},
        {.in = t, .out = t},
        {.in = t, .out = t, .scale = SCALE_E4M3, .block_rows = 1, .block_columns = 16},
        {.in = t, .out = t, .scale = SCALE_E4M3, .magnitude = tensor_1d(x, F32, 1)},
        {.in = t, .out = t, .magnitude = tensor_1d(x, F32, 3)},
        {.in = t, .out = t, .format = NUMBER_FORMAT_COUNT, .block_rows = 1, .block_columns = 16},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(quantize(fixture.stream, bad[i]), BAD_ARGUMENT, "%zu", i);
    cr_expect_eq(hadamard(fixture.stream, (struct hadamard){.in = t, .out = t}), BAD_ARGUMENT);
    cr_expect_eq(magnitude(fixture.stream, (struct magnitude){.in = t, .out = tensor_1d(x, F32, 2)}),
                 BAD_ARGUMENT);
    cr_expect_eq(magnitude(fixture.stream,
                           (struct magnitude){.kind = MAGNITUDE_SUM, .in = t, .out = tensor_1d(x, F32, 1)}),
                 BAD_ARGUMENT);
    fixture_close(&fixture);
}

/* With a scale that is rounded down, magnitudes above 448 times the scale saturate, by up to an eighth; with
 * one that is rounded up, none does. */
Test(ops_quantize, an_mxfp8_scale_is_rounded_up_or_down)
{
    struct fixture fixture = fixture_open(1);
    float *x = fixture_floats(&fixture, 32), *out = fixture_floats(&fixture, 32);
    const struct {
        enum scale_rule rule;
        float largest, becomes; // 500 in steps of 32 up to 448, or of 64 up to 896
    } cases[] = {{SCALE_E8M0_DOWN, 500.0F, 448.0F}, {SCALE_E8M0_UP, 500.0F, 512.0F},
                 {SCALE_E8M0_DOWN, 448.0F, 448.0F}, {SCALE_E8M0_UP, 448.0F, 448.0F},
                 {SCALE_E8M0_DOWN, 300.0F, 288.0F}, {SCALE_E8M0_UP, 300.0F, 288.0F}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int i = 0; i < 32; i++)
            x[i] = i == 9 ? -cases[c].largest : 1.0F;
        struct quantize q = {.in = tensor_2d(x, F32, 1, 32),
                             .out = tensor_2d(out, F32, 1, 32),
                             .format = NUMBER_E4M3,
                             .scale = cases[c].rule,
                             .block_rows = 1,
                             .block_columns = 32};
        MUST(quantize(fixture.stream, q));
        MUST(stream_sync(fixture.stream));
        cr_expect_eq(out[9], -cases[c].becomes, "%g becomes %g", (double)x[9], (double)out[9]);
        cr_expect_eq(out[8], 1.0F);
    }
    fixture_close(&fixture);
}
