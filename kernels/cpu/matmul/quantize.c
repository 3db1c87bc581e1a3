// SPDX-License-Identifier: Apache-2.0
/* Quantization and dequantization. A strip is the rows of one block; it is processed in chunks of 128
 * columns, which every block width divides:
 *
 *     strip   [ 128 columns | 128 columns | ... ]     chunk: the largest magnitude of each column, then of
 *             [             |             |     ]     each block; per column a factor into the format and
 *             [             |             |     ]     one back; then per row x -> round(x * into) * back
 *
 * Magnitudes are compared as integers, in which floats without sign keep their order, with infinity and NaN
 * largest: the result does not depend on the order of comparisons, and NaN propagates. */
#include "kernels/cpu/rows.h"
#include "kernels/numbers/number_round.h"

#include "base/normal.h"

#include <float.h>
#include <math.h>

enum { CHUNK = QUANTIZE_BLOCK_MAX, INFINITE_BITS = 0x7F800000 };

/* An element is scaled by `into` and rounded; multiplying by `back` and by the op's `whole` dequantizes
 * it. */
struct factor {
    float into, back;
};

struct quantize_task {
    const struct quantize *op;
    const struct number_traits *traits;
    struct rounder rounder, scale_rounder; // scale_rounder: for SCALE_E4M3's codes
    float up, whole;                       // for SCALE_E4M3; else 1
    struct factor one;                     // without blocks: for all rows
    bool each_row;                         // or each row has its own
    int64_t period, strips_in_period, strips, strips_each;
};

/* The scale 2^e. */
static struct factor power_of_two(int e)
{
    int clamped = e < -126 ? -126 : e > 127 ? 127 : e;
    return (struct factor){ldexpf(1.0F, -clamped), ldexpf(1.0F, clamped)};
}

static struct factor factor_of(const struct quantize_task *args, float a)
{
    int exponent, largest_exponent;
    float fraction = frexpf(a, &exponent), largest = args->traits->largest;
    if (!isfinite(a))
        return (struct factor){NAN, NAN};
    float largest_fraction = frexpf(largest, &largest_exponent);
    const int least = exponent - largest_exponent + (fraction > largest_fraction); // a <= largest * 2^least
    switch (args->op->scale) {
    case SCALE_POWER_OF_TWO:
        return a == 0.0F ? (struct factor){1.0F, 1.0F} : power_of_two(least);
    case SCALE_E8M0_DOWN:
    case SCALE_E8M0_UP: {
        int e = args->op->scale == SCALE_E8M0_UP ? least : exponent - 1 - args->traits->largest_exponent;
        float scale = a == 0.0F ? 1.0F : e8m0_decode(e8m0_encode(e));
        return (struct factor){1.0F / scale, scale};
    }
    case SCALE_E4M3: {
        float code = number_round(args->scale_rounder, a / largest * args->up);
        // A block whose scale rounds to zero becomes zero.
        return (struct factor){code > 0.0F ? 1.0F / (code * args->whole) : 0.0F, code};
    }
    case SCALE_FULL: {
        float divisor = a < 1e-5F ? 1e-5F : a;
        return (struct factor){largest / divisor, divisor / largest};
    }
    }
    die(__FILE__, __LINE__, "scale rule", "unknown scale rule %d", (int)args->op->scale);
}

static float given_magnitude(const struct quantize *op, int64_t row)
{
    double divisor = op->divisor > 0.0 ? op->divisor : 1.0;
    if (op->magnitude.dtype == F64)
        return (float)(((const double *)op->magnitude.data)[0] / divisor);
    return (float)((double)((const float *)op->magnitude.data)[row] / divisor);
}

/* into[j] and back[j] for the columns of one chunk of a strip. */
struct chunk {
    int64_t first_row, last_row, column;
    int columns;
    float into[CHUNK], back[CHUNK];
};

static void set_factors(struct chunk *chunk, int begin, int end, struct factor factor)
{
    for (int j = begin; j < end; j++) {
        chunk->into[j] = factor.into;
        chunk->back[j] = factor.back;
    }
}

static void find_factors(const struct quantize_task *args, struct chunk *chunk)
{
    uint32_t largest[CHUNK] = {0};
    float buffer[CHUNK];
    for (int64_t r = chunk->first_row; r < chunk->last_row; r++) {
        const float *x = row_in(args->op->in, (struct segment){r, chunk->column, chunk->columns}, buffer);
        for (int j = 0; j < chunk->columns; j++) {
            uint32_t a = bits_of_float(x[j]) & 0x7FFFFFFFU;
            largest[j] = a > largest[j] ? a : largest[j];
        }
    }
    int across = (int)args->op->block_columns;
    for (int begin = 0; begin < chunk->columns; begin += across) {
        int end = begin + across < chunk->columns ? begin + across : chunk->columns;
        uint32_t of_block = 0;
        for (int j = begin; j < end; j++)
            of_block = largest[j] > of_block ? largest[j] : of_block;
        set_factors(chunk, begin, end, factor_of(args, float_of_bits(of_block)));
    }
}

static inline float kept(float x, float rounded)
{
    return (bits_of_float(x) & 0x7FFFFFFFU) < INFINITE_BITS ? rounded : NAN;
}

static void round_row(const struct quantize_task *args, const struct chunk *chunk, const float *in,
                      float *out)
{
    const struct rounder rounder = args->rounder;
    const float whole = args->whole;
    for (int j = 0; j < chunk->columns; j++)
        out[j] = kept(in[j], number_round(rounder, in[j] * chunk->into[j]) * chunk->back[j] * whole);
}

/* The words of elements [index, index + count) of the stream `high`. */
static void draw(struct philox generator, uint64_t high, int64_t index, int count, uint32_t *out)
{
    enum { DRAWN = 4 * NORMAL_BLOCK };
    uint32_t words[4][NORMAL_BLOCK];
    for (int done = 0; done < count;) {
        int64_t first = (index + done) / 4;
        normal_words(generator, high, (uint64_t)first, normal_counters((index + count + 3) / 4 - first),
                     words);
        for (; done < count && index + done < 4 * first + DRAWN; done++)
            out[done] = words[(index + done) % 4][(index + done) / 4 - first];
    }
}

static void round_row_stochastic(const struct quantize_task *args, const struct chunk *chunk, int64_t row,
                                 const float *in, float *out)
{
    const struct quantize *op = args->op;
    const struct rounder rounder = args->rounder;
    const float whole = args->whole;
    uint32_t word[CHUNK];
    draw(op->generator, (uint64_t)op->sample[row],
         op->sample_offset[row] * op->columns + op->column_begin + chunk->column, chunk->columns, word);
    for (int j = 0; j < chunk->columns; j++)
        out[j] = kept(in[j], number_round_stochastic(rounder, in[j] * chunk->into[j], word[j]) *
                                 chunk->back[j] * whole);
}

static void run_chunk(const struct quantize_task *args, struct chunk *chunk)
{
    const struct quantize *op = args->op;
    float buffer[CHUNK];
    if (op->block_rows > 0)
        find_factors(args, chunk);
    else
        set_factors(chunk, 0, chunk->columns, args->one);
    for (int64_t r = chunk->first_row; r < chunk->last_row; r++) {
        const float *in = row_in(op->in, (struct segment){r, chunk->column, chunk->columns}, buffer);
        float *out = f32_row(op->out, r) + chunk->column;
        if (args->each_row)
            set_factors(chunk, 0, chunk->columns, factor_of(args, given_magnitude(op, r)));
        if (op->sample != NULL)
            round_row_stochastic(args, chunk, r, in, out);
        else
            round_row(args, chunk, in, out);
    }
}

static void run_task(void *context, int64_t task)
{
    const struct quantize_task *args = context;
    const struct quantize *op = args->op;
    int64_t rows = op->in.dim[0], columns = op->in.dim[1], down = op->block_rows > 0 ? op->block_rows : 1;
    int64_t end = min_i64((task + 1) * args->strips_each, args->strips);
    for (int64_t strip = task * args->strips_each; strip < end; strip++) {
        int64_t begin = strip / args->strips_in_period * args->period;
        struct chunk chunk = {.first_row = begin + strip % args->strips_in_period * down};
        chunk.last_row = min_i64(min_i64(chunk.first_row + down, begin + args->period), rows);
        for (; chunk.column < columns; chunk.column += CHUNK) {
            chunk.columns = (int)min_i64(CHUNK, columns - chunk.column);
            run_chunk(args, &chunk);
        }
    }
}

void cpu_quantize(struct device *device, const struct quantize *op)
{
    int64_t rows = op->in.dim[0], columns = op->in.dim[1], down = op->block_rows > 0 ? op->block_rows : 1;
    struct quantize_task args = {
        .op = op,
        .traits = number_traits(op->format),
        .rounder = number_rounder(op->format),
        .scale_rounder = number_rounder(NUMBER_E4M3),
        .up = 1.0F,
        .whole = 1.0F,
        .each_row = op->block_rows == 0 && op->magnitude.dim[0] > 1,
        .period = op->period > 0 && op->block_rows > 0 ? op->period : rows,
    };
    if (op->scale == SCALE_E4M3) {
        float up = args.traits->largest * number_traits(NUMBER_E4M3)->largest / given_magnitude(op, 0);
        args.up = up > FLT_MAX ? FLT_MAX : up; // not for NaN, which must propagate
        args.whole = 1.0F / args.up;
    } else if (op->block_rows == 0 && !args.each_row) {
        args.one = factor_of(&args, given_magnitude(op, 0));
    }
    args.strips_in_period = blocks_of(args.period, down);
    args.strips = rows / args.period * args.strips_in_period + blocks_of(rows % args.period, down);
    args.strips_each = rows_each_task(down * columns);
    cpu_parallel(device, blocks_of(args.strips, args.strips_each), run_task, &args);
}
