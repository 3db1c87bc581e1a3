// SPDX-License-Identifier: Apache-2.0
/* Magnitudes of a matrix, and the random Hadamard transform: the steps before quantization (quantize.cu).
 * Magnitudes are compared as integers, with infinity and NaN largest, and summed in units of 2^-24: neither
 * result depends on the order of the threads. */
#define NUMBER_FUNCTION static __host__ __device__ inline
#include "kernels/cuda/memory_bound/reduce.h"

#include "kernels/numbers/float_bits.h"

enum { THREADS = 256, MAX_BLOCKS = MAGNITUDE_BLOCKS, TRANSFORM_THREADS = 128 };

struct larger_bits {
    __device__ uint32_t operator()(uint32_t a, uint32_t b) const
    {
        return a > b ? a : b;
    }
};

static __device__ uint32_t magnitude_bits(float x)
{
    return bits_of_float(x) & 0x7FFFFFFFU;
}

/* The reduction: the value of one element, and the combination of two results. */
struct find_largest {
    using type = uint32_t;
    using op = larger_bits;
    using out = float;
    static __device__ uint32_t of(float x)
    {
        return magnitude_bits(x);
    }
    static __device__ uint32_t taken(float before)
    {
        return magnitude_bits(before);
    }
    static __device__ float given(uint32_t largest)
    {
        return float_of_bits(largest);
    }
};

struct find_sum {
    using type = double;
    using op = plus;
    using out = double;
    static __device__ double of(float x)
    {
        return rint(fabs(static_cast<double>(x)) * 0x1p24);
    }
    static __device__ double taken(double before)
    {
        return before * 0x1p24;
    }
    static __device__ double given(double units)
    {
        return units * 0x1p-24;
    }
};

/* Over the columns of one row, by one block. */
template <class F, class T>
static __device__ typename F::type of_row(const rows<T> &in, int64_t row, int64_t columns)
{
    typename F::type all = 0;
    walk_row(in, row, columns, 0.0F, [&](const vec<float> &x) {
        for (int i = 0; i < VECTOR_WIDTH; i++)
            all = typename F::op()(all, F::of(x.at[i]));
    });
    return all;
}

template <class F, class T>
static __global__ void __launch_bounds__(THREADS)
    magnitude_partial(rows<T> in, int64_t row_count, int64_t columns, typename F::type *partial)
{
    typename F::type all = 0;
    for (int64_t row = blockIdx.x; row < row_count; row += gridDim.x)
        all = typename F::op()(all, of_row<F>(in, row, columns));
    all = block_reduce(all, typename F::op(), typename F::type());
    if (threadIdx.x == 0)
        partial[blockIdx.x] = all;
}

template <class F>
static __global__ void __launch_bounds__(THREADS)
    magnitude_finish(const typename F::type *partial, int blocks, typename F::out *out, bool accumulate)
{
    typename F::type all = 0;
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += THREADS)
        all = typename F::op()(all, partial[b]);
    all = block_reduce(all, typename F::op(), typename F::type());
    if (threadIdx.x == 0)
        *out = F::given(accumulate ? typename F::op()(F::taken(*out), all) : all);
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    magnitude_of_rows(rows<T> in, int64_t row_count, int64_t columns, float *out, bool accumulate)
{
    for (int64_t row = blockIdx.x; row < row_count; row += gridDim.x) {
        uint32_t largest = block_reduce(of_row<find_largest>(in, row, columns), larger_bits(), 0U);
        if (threadIdx.x == 0)
            out[row] = float_of_bits(accumulate ? larger_bits()(magnitude_bits(out[row]), largest) : largest);
    }
}

/* At most as many threads as have several vectors each. */
static int threads_of_row(const struct magnitude *op)
{
    return threads_for(blocks_of(op->in.dim[1], VECTOR_WIDTH * VECTORS_AT_ONCE), THREADS);
}

template <class F, class T> static enum status find_one(struct cuda_queue *queue, const struct magnitude *op)
{
    using type = typename F::type;
    void *partial;
    const int64_t rows = op->in.dim[0];
    const int blocks = rows < MAX_BLOCKS ? static_cast<int>(rows) : MAX_BLOCKS;
    TRY(cuda_scratch(queue, static_cast<size_t>(blocks) * sizeof(type), &partial));
    TRY(LAUNCH(queue, (magnitude_partial<F, T>), dim3(static_cast<unsigned>(blocks)), threads_of_row(op), 0,
               rows_of<T>(op->in), rows, op->in.dim[1], static_cast<type *>(partial)));
    return LAUNCH(queue, magnitude_finish<F>, dim3(1), THREADS, 0, static_cast<const type *>(partial), blocks,
                  static_cast<typename F::out *>(op->out.data), op->accumulate);
}

template <class T> static enum status find_magnitude(struct cuda_queue *queue, const struct magnitude *op)
{
    switch (op->kind) {
    case MAGNITUDE_LARGEST:
        return find_one<find_largest, T>(queue, op);
    case MAGNITUDE_SUM:
        return find_one<find_sum, T>(queue, op);
    case MAGNITUDE_LARGEST_IN_ROW:
        break;
    }
    const int64_t rows = op->in.dim[0];
    return LAUNCH(queue, magnitude_of_rows<T>,
                  dim3(static_cast<unsigned>(rows < MAX_GRID_Y ? rows : MAX_GRID_Y)), threads_of_row(op), 0,
                  rows_of<T>(op->in), rows, op->in.dim[1], static_cast<float *>(op->out.data),
                  op->accumulate);
}

enum status cuda_magnitude(struct cuda_queue *queue, const struct magnitude *op)
{
    return with_type(op->in.dtype, [=](auto number) { return find_magnitude<decltype(number)>(queue, op); });
}

/* ---- the Hadamard transform ---- */

struct signs {
    float at[HADAMARD_ROWS]; // includes the factor 1/4, which is exact
};

/* One thread per column of 16 rows: accesses are coalesced. */
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    hadamard_transform(struct any_rows in, rows<float> out, int64_t blocks, int64_t columns,
                       struct signs sign)
{
    const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t block = blockIdx.y; block < blocks && column < columns; block += gridDim.y) {
        const int64_t row = block * HADAMARD_ROWS;
        float x[HADAMARD_ROWS];
        UNROLL_ALL
        for (int i = 0; i < HADAMARD_ROWS; i++)
            x[i] = in.load(row + i, column) * sign.at[i];
        UNROLL_ALL
        for (int apart = 1; apart < HADAMARD_ROWS; apart *= 2) {
            UNROLL_ALL
            for (int i = 0; i < HADAMARD_ROWS; i++) {
                if ((i & apart) != 0)
                    continue;
                const float a = x[i], b = x[i + apart];
                x[i] = a + b;
                x[i + apart] = a - b;
            }
        }
        UNROLL_ALL
        for (int i = 0; i < HADAMARD_ROWS; i++)
            out.row(row + i)[column] = x[i];
    }
}

enum status cuda_hadamard(struct cuda_queue *queue, const struct hadamard *op)
{
    struct signs sign;
    for (unsigned i = 0; i < HADAMARD_ROWS; i++)
        sign.at[i] = (philox_word(op->signs, 0, i) & 1) != 0 ? -0.25F : 0.25F;
    const int64_t blocks = op->in.dim[0] / HADAMARD_ROWS, columns = op->in.dim[1];
    const int threads = threads_for(columns, TRANSFORM_THREADS);
    dim3 grid(static_cast<unsigned>(blocks_of(columns, threads)),
              static_cast<unsigned>(blocks < MAX_GRID_Y ? blocks : MAX_GRID_Y));
    return LAUNCH(queue, hadamard_transform, grid, threads, 0, any_rows_of(op->in), floats(op->out), blocks,
                  columns, sign);
}
