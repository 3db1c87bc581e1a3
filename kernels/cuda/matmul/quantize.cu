// SPDX-License-Identifier: Apache-2.0
/* Quantization and dequantization, bit-identical to the cpu: the same operations on every element, in the
 * same order. With scale blocks, a thread block processes a tile of 128 columns, which every block width
 * divides, and the rows of one block (or of eight, if each is a single row):
 *
 *     16 threads x 8 columns    the largest magnitude of each column over its rows, to shared memory;
 *     8 such lines of threads   then of each block; then the tile again, rounded
 *
 * Without blocks, all elements share a factor, or those of a row do. Every thread that needs the factor
 * computes it: a division is cheaper than communication. */
#define NUMBER_FUNCTION static __host__ __device__ inline
#include "kernels/cuda/memory_bound/random.h"
#include "kernels/cuda/memory_bound/rows.h"

extern "C" {
#include "kernels/numbers/number_round.h"
}

#include <float.h>

enum {
    TILE = QUANTIZE_BLOCK_MAX,
    GROUPS_OF_COLUMNS = TILE / VECTOR_WIDTH,
    LINES = 8,
    TILE_THREADS = LINES * GROUPS_OF_COLUMNS
};
constexpr uint32_t INFINITE_BITS = 0x7F800000U;

/* An element is scaled by `into` and rounded; multiplying by `back` and by the op's `whole` dequantizes
 * it. */
struct factor {
    float into, back;
};

struct quantizer {
    enum scale_rule scale;
    float largest, scale_largest; // of the format, and of SCALE_E4M3's codes
    int largest_exponent;         // floor(log2(largest))
    struct rounder rounder, scale_rounder;
    const void *magnitude;
    bool wide, each_row; // magnitude: f64; one per row
    double divisor;
    int64_t block_rows, block_columns, period; // 0: no blocks
    struct philox generator;
    const int64_t *sample; // NULL: round to nearest
    const int32_t *sample_offset;
    int64_t columns, column_begin;

    __device__ float given(int64_t row) const
    {
        const double a = wide
                             ? *static_cast<const double *>(magnitude)
                             : static_cast<double>(static_cast<const float *>(magnitude)[each_row ? row : 0]);
        return static_cast<float>(a / divisor);
    }
};

/* 2^e, e >= -127, where it is subnormal. */
static __device__ float power(int e)
{
    return float_of_bits(e >= -126 ? static_cast<uint32_t>(e + 127) << 23 : 1U << 22);
}

/* floor(log2(a)) of a nonzero number, and its fraction bits. */
static __device__ int exponent_of(float a, uint32_t *fraction)
{
    const bool small = bits_of_float(a) < 1U << 23;
    const uint32_t bits = bits_of_float(small ? a * 0x1p24F : a);
    *fraction = bits & 0x7FFFFFU;
    return static_cast<int>(bits >> 23) - 127 - (small ? 24 : 0);
}

/* up: for SCALE_E4M3, the scale of the block scales. */
static __device__ struct factor factor_of(const struct quantizer &f, float a, float up)
{
    if (bits_of_float(a) >= INFINITE_BITS)
        return {NAN, NAN};
    uint32_t fraction = 0, of_largest = 0;
    const int exponent = exponent_of(a, &fraction);
    const int least = exponent - exponent_of(f.largest, &of_largest) + (fraction > of_largest ? 1 : 0);
    switch (f.scale) { // a <= largest * 2^least
    case SCALE_POWER_OF_TWO: {
        const int clamped = least < -126 ? -126 : least > 127 ? 127 : least;
        return a == 0.0F ? factor{1.0F, 1.0F} : factor{power(-clamped), power(clamped)};
    }
    case SCALE_E8M0_DOWN:
    case SCALE_E8M0_UP: {
        const int e = f.scale == SCALE_E8M0_UP ? least : exponent - f.largest_exponent;
        const float scale = a == 0.0F ? 1.0F : power(e < -127 ? -127 : e > 127 ? 127 : e);
        return {1.0F / scale, scale};
    }
    case SCALE_E4M3: {
        const float code = number_round(f.scale_rounder, a / f.largest * up), whole = 1.0F / up;
        return {code > 0.0F ? 1.0F / (code * whole) : 0.0F, code};
    }
    case SCALE_FULL:
        break;
    }
    const float divisor = a < 1e-5F ? 1e-5F : a;
    return {f.largest / divisor, divisor / f.largest};
}

static __device__ float up_of(const struct quantizer &f)
{
    if (f.scale != SCALE_E4M3)
        return 1.0F;
    const float up = f.largest * f.scale_largest / f.given(0);
    return up > FLT_MAX ? FLT_MAX : up;
}

/* Quantizes columns [column, column + VECTOR_WIDTH) of a row. */
static __device__ void round_vector(const struct quantizer &f, int64_t row, int64_t column, float whole,
                                    const struct factor factor[VECTOR_WIDTH], vec<float> &x)
{
    uint32_t word[VECTOR_WIDTH] = {};
    if (f.sample != nullptr) {
        const uint64_t first =
            static_cast<uint64_t>(f.sample_offset[row] * f.columns + f.column_begin + column);
        for (unsigned i = 0; i < VECTOR_WIDTH; i += 4)
            philox_run(f.generator, static_cast<uint64_t>(f.sample[row]), first + i, word + i);
    }
    UNROLL_ALL
    for (int i = 0; i < VECTOR_WIDTH; i++) {
        const float scaled = x.at[i] * factor[i].into;
        const float rounded = f.sample != nullptr ? number_round_stochastic(f.rounder, scaled, word[i])
                                                  : number_round(f.rounder, scaled);
        const bool finite = (bits_of_float(x.at[i]) & 0x7FFFFFFFU) < INFINITE_BITS;
        x.at[i] = finite ? rounded * factor[i].back * whole : NAN;
    }
}

/* ---- without blocks ---- */

template <class T> struct round_all {
    rows<T> in;
    rows<float> out;
    struct quantizer f;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        vec<float> x = in.load(row, column, left);
        struct factor factor[VECTOR_WIDTH];
        factor[0] = factor_of(f, f.given(row), 1.0F);
        for (int i = 1; i < VECTOR_WIDTH; i++)
            factor[i] = factor[0];
        round_vector(f, row, column, 1.0F, factor, x);
        out.store(row, column, left, x);
    }
};

/* ---- with blocks ---- */

/* The rows of one block: strip `strip`; blocks restart every period. */
struct strips {
    int64_t rows, columns, down, period, in_period, count;

    __device__ int64_t begin(int64_t strip) const
    {
        return strip / in_period * period + strip % in_period * down;
    }
    __device__ int64_t end(int64_t strip) const
    {
        const int64_t next = strip / in_period * period + period, last = begin(strip) + down;
        const int64_t end = last < next ? last : next;
        return end < rows ? end : rows;
    }
};

/* The factors of a thread's columns; `line` has the largest magnitudes of 128 columns. */
static __device__ void factors_of(const struct quantizer &f, const uint32_t *line, int column, float up,
                                  struct factor factor[VECTOR_WIDTH])
{
    const int across = static_cast<int>(f.block_columns);
    for (int i = 0; i < VECTOR_WIDTH; i++) {
        const int begin = (column + i) / across * across;
        if (i > 0 && begin < column + i) { // the same block
            factor[i] = factor[i - 1];
            continue;
        }
        uint32_t largest = 0;
        for (int j = begin; j < begin + across; j++)
            largest = line[j] > largest ? line[j] : largest;
        factor[i] = factor_of(f, float_of_bits(largest), up);
    }
}

template <class T>
static __global__ void __launch_bounds__(TILE_THREADS)
    quantize_blocks(rows<T> in, rows<float> out, struct strips strips, struct quantizer f)
{
    SHARED(uint32_t, largest, LINES * TILE);
    const int line = static_cast<int>(threadIdx.x) / GROUPS_OF_COLUMNS;
    const int column = static_cast<int>(threadIdx.x) % GROUPS_OF_COLUMNS * VECTOR_WIDTH;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * TILE + column, left = strips.columns - first;
    const bool single = strips.down == 1;
    const int64_t at_once = single ? LINES : 1, step = single ? 1 : LINES;
    const float up = up_of(f), whole = f.scale == SCALE_E4M3 ? 1.0F / up : 1.0F;
    for (int64_t group = blockIdx.y; group * at_once < strips.count; group += gridDim.y) {
        const int64_t strip = group * at_once + (single ? line : 0);
        const int64_t begin = strips.begin(strip) + (single ? 0 : line);
        const int64_t end = strip < strips.count && left > 0 ? strips.end(strip) : 0;
        uint32_t largest_of_column[VECTOR_WIDTH] = {};
        for (int64_t row = begin; row < end; row += step) {
            vec<float> x = in.load(row, first, left);
            for (int i = 0; i < VECTOR_WIDTH; i++) {
                const uint32_t a = bits_of_float(x.at[i]) & 0x7FFFFFFFU;
                largest_of_column[i] = a > largest_of_column[i] ? a : largest_of_column[i];
            }
        }
        __syncthreads(); // all have read the previous group
        for (int i = 0; i < VECTOR_WIDTH; i++)
            largest[line * TILE + column + i] = largest_of_column[i];
        __syncthreads();
        for (int l = 1; l < LINES && !single; l++) // one thread per column
            if (largest[l * TILE + threadIdx.x] > largest[threadIdx.x])
                largest[threadIdx.x] = largest[l * TILE + threadIdx.x];
        __syncthreads();
        struct factor factor[VECTOR_WIDTH];
        factors_of(f, largest + (single ? line * TILE : 0), column, up, factor);
        for (int64_t row = begin; row < end; row += step) {
            vec<float> x = in.load(row, first, left);
            round_vector(f, row, first, whole, factor, x);
            out.store(row, first, left, x);
        }
    }
}

static struct quantizer quantizer_of(const struct quantize *op)
{
    const struct number_traits *traits = number_traits(op->format);
    struct quantizer f = {};
    f.scale = op->scale;
    f.largest = traits->largest;
    f.scale_largest = number_traits(NUMBER_E4M3)->largest;
    f.largest_exponent = traits->largest_exponent;
    f.rounder = number_rounder(op->format);
    f.scale_rounder = number_rounder(NUMBER_E4M3);
    f.magnitude = op->magnitude.data;
    f.wide = op->magnitude.dtype == F64;
    f.each_row = op->block_rows == 0 && op->magnitude.dim[0] > 1;
    f.divisor = op->divisor > 0.0 ? op->divisor : 1.0;
    f.block_rows = op->block_rows;
    f.block_columns = op->block_columns;
    f.generator = op->generator;
    f.sample = op->sample;
    f.sample_offset = op->sample_offset;
    f.columns = op->columns;
    f.column_begin = op->column_begin;
    return f;
}

template <class T> static enum status round_with_blocks(struct cuda_queue *queue, const struct quantize *op)
{
    struct strips s = {};
    s.rows = op->in.dim[0];
    s.columns = op->in.dim[1];
    s.down = op->block_rows;
    s.period = op->period > 0 ? op->period : s.rows;
    s.in_period = blocks_of(s.period, s.down);
    s.count = s.rows / s.period * s.in_period + blocks_of(s.rows % s.period, s.down);
    const int64_t groups = s.down == 1 ? blocks_of(s.count, LINES) : s.count;
    dim3 grid(static_cast<unsigned>(blocks_of(s.columns, TILE)),
              static_cast<unsigned>(groups < MAX_GRID_Y ? groups : MAX_GRID_Y));
    return LAUNCH(queue, quantize_blocks<T>, grid, TILE_THREADS, 0, rows_of<T>(op->in), floats(op->out), s,
                  quantizer_of(op));
}

enum status cuda_quantize(struct cuda_queue *queue, const struct quantize *op)
{
    return with_type(op->in.dtype, [=](auto number) {
        using T = decltype(number);
        if (op->block_rows > 0)
            return round_with_blocks<T>(queue, op);
        round_all<T> f = {rows_of<T>(op->in), floats(op->out), quantizer_of(op)};
        return run_each_vector(queue, f, op->in.dim[0], op->in.dim[1]);
    });
}
