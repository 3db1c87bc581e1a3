// SPDX-License-Identifier: Apache-2.0
/* The sum of squares for the global norm, the clip factor, and AdamW in one pass. The last two do the cpu's
 * arithmetic in the cpu's order, and round stochastically with its bits. */
#include "kernels/cuda/random.h"
#include "kernels/cuda/reduce.h"

enum { THREADS = 256 };

/* x[0] + x[1] + ... in index order: the block brings them in, one thread adds. */
static __device__ double sum_in_order(const double *x, int64_t count)
{
    SHARED(double, tile, THREADS);
    double sum = 0.0;
    for (int64_t first = 0; first < count; first += THREADS) {
        __syncthreads();
        if (first + threadIdx.x < count)
            tile[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        for (int64_t i = 0; threadIdx.x == 0 && i < THREADS && first + i < count; i++)
            sum += tile[i];
    }
    return sum; // of thread 0
}

/* A warp to a block: blocks are small, and threads of a warp need not wait for those of another. */
static __global__ void __launch_bounds__(THREADS)
    square_blocks(rows<float> x, int64_t count, int64_t each, int64_t blocks, double *out)
{
    enum { AT_ONCE = 4, LINE = EACH * WARP };
    const int64_t block = static_cast<int64_t>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (block >= blocks)
        return;
    const int64_t begin = block * each, end = begin + each < count ? begin + each : count;
    double sum = 0.0;
    for (int64_t i = begin + EACH * (threadIdx.x % WARP); i < end; i += AT_ONCE * LINE) {
        piece<float> in[AT_ONCE] = {};
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * LINE < end)
                in[k] = x.read(0, i + k * LINE, end - i - k * LINE);
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++)
            for (int e = 0; e < EACH; e++)
                sum += static_cast<double>(in[k].at[e]) * static_cast<double>(in[k].at[e]); // exact products
    }
    sum = warp_reduce(sum, plus());
    if (threadIdx.x % WARP == 0)
        out[block] = sum;
}

/* A thread adds up every SUM_THREADS-th, and the threads' sums go up a tree: in index order one thread would
 * add for as long as a microbatch takes, where a tensor has a hundred thousand blocks. */
enum { SUM_THREADS = 1024 };
static __global__ void __launch_bounds__(SUM_THREADS)
    add_blocks(const double *block, int64_t blocks, double *out)
{
    double sum = 0.0;
    UNROLL(8)
    for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x)
        sum += block[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

enum status cuda_squares(struct cuda_queue *queue, const struct squares *op)
{
    const int64_t count = tensor_count(op->x), columns = op->x.ndim == 1 ? 1 : op->x.dim[1];
    const int64_t blocks = tensor_count(op->out);
    struct tensor x = tensor_1d(op->x.data, F32, count);
    return LAUNCH(queue, square_blocks, dim3(static_cast<unsigned>(blocks_of(blocks, THREADS / WARP))),
                  THREADS, 0, floats(x), count, squares_block_rows(columns) * columns, blocks,
                  static_cast<double *>(op->out.data));
}

enum status cuda_sum(struct cuda_queue *queue, const struct sum *op)
{
    return LAUNCH(queue, add_blocks, dim3(1), threads_for(op->x.dim[0], SUM_THREADS), 0,
                  static_cast<const double *>(op->x.data), op->x.dim[0], static_cast<double *>(op->out.data));
}

struct clip_sums {
    const double *loss, *tokens, *squares;
    int64_t samples, tensors;
    double limit;
    const float *loss_scale;
    struct adamw_hyper *hyper;
    double *result;
};

static __global__ void __launch_bounds__(THREADS) clip_gradients(struct clip_sums op)
{
    const double tokens = sum_in_order(op.tokens, op.samples), squares = sum_in_order(op.squares, op.tensors);
    const double loss = sum_in_order(op.loss, op.samples);
    if (threadIdx.x != 0)
        return;
    const double scale = op.loss_scale != nullptr ? static_cast<double>(*op.loss_scale) : 1.0;
    const double count = tokens > 0.0 ? tokens : 1.0, norm = sqrt(squares) / count / scale;
    const double coefficient = op.limit > 0.0 ? op.limit / (norm + 1e-6) : 1.0;
    const bool skips = op.loss_scale != nullptr && !(norm < INFINITY);
    op.result[0] = loss / count;
    op.result[1] = norm;
    op.result[2] = tokens;
    op.result[3] = scale;
    op.hyper->gradient_scale =
        skips ? 0.0F : static_cast<float>((coefficient < 1.0 ? coefficient : 1.0) / count / scale);
    op.hyper->skip = skips ? 1.0F : 0.0F;
}

enum status cuda_clip(struct cuda_queue *queue, const struct clip *op)
{
    struct clip_sums args = {static_cast<const double *>(op->loss.data),
                             static_cast<const double *>(op->tokens.data),
                             static_cast<const double *>(op->squares.data),
                             op->loss.dim[0],
                             op->squares.dim[0],
                             op->limit,
                             op->loss_scale,
                             op->hyper,
                             static_cast<double *>(op->result.data)};
    return LAUNCH(queue, clip_gradients, dim3(1), THREADS, 0, args);
}

/* m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g;
 * w -= lr ((m / correction1) / (sqrt(v / correction2) + epsilon) + weight_decay w) */
static __device__ inline void adamw_step(const struct adamw_hyper &h, float weight_decay,
                                         const piece<float> &gradient, piece<float> &w, piece<float> &m,
                                         piece<float> &v)
{
    for (int i = 0; i < EACH; i++) {
        const float g = gradient.at[i] * h.gradient_scale;
        m.at[i] = h.beta1 * m.at[i] + (1.0F - h.beta1) * g;
        v.at[i] = h.beta2 * v.at[i] + (1.0F - h.beta2) * g * g;
        const float step = (m.at[i] / h.correction1) / (sqrtf(v.at[i] / h.correction2) + h.epsilon);
        w.at[i] -= h.lr * (step + weight_decay * w.at[i]);
    }
}

template <class T> struct adamw_piece {
    rows<float> weight, gradient, m, v;
    rows<T> working;
    const struct adamw_hyper *hyper;
    bool decay;

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        const struct adamw_hyper h = *hyper;
        if (h.skip != 0.0F)
            return;
        const float weight_decay = decay ? h.weight_decay : 0.0F;
        piece<float> w = weight.load(row, column, left), g = gradient.load(row, column, left);
        piece<float> a = m.load(row, column, left), b = v.load(row, column, left);
        adamw_step(h, weight_decay, g, w, a, b);
        weight.store(row, column, left, w);
        if (working.data != nullptr)
            working.store(row, column, left, w);
        m.store(row, column, left, a);
        v.store(row, column, left, b);
    }
};

/* bf16_of_stochastic(), in fp32: what the store then makes of it is exact, or the nearest. */
static __device__ inline float round_stochastic(float x, uint32_t half)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffU) <= 0x7f7f0000U)
        bits = (bits + half) & 0xffff0000U;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Without masters. */
struct adamw_piece_in_bf16 {
    rows<bf16> weight;
    rows<float> gradient, m, v;
    const struct adamw_hyper *hyper;
    bool decay;
    struct stochastic at;

    __device__ void round(piece<float> &w, int64_t column, uint64_t step) const
    {
        int64_t drawn = -1;
        uint32_t word[4] = {};
        for (int i = 0; i < EACH; i++) {
            const int64_t e = at.first + column + i;
            const int64_t number = at.begin + e / at.width * at.columns + e % at.width;
            if (number / 8 != drawn)
                philox_quad(at.generator, step, static_cast<uint64_t>(number / 8), word);
            drawn = number / 8;
            uint32_t mine = 0;
            for (int k = 0; k < 4; k++) // constant indices keep the words in registers
                mine = k == number % 8 / 2 ? word[k] : mine;
            w.at[i] = round_stochastic(w.at[i], mine >> 16 * (number % 2) & 0xffffU);
        }
    }

    __device__ void operator()(int64_t row, int64_t column, int64_t left) const
    {
        const struct adamw_hyper h = *hyper;
        if (h.skip != 0.0F)
            return;
        piece<float> w = weight.load(row, column, left), g = gradient.load(row, column, left);
        piece<float> a = m.load(row, column, left), b = v.load(row, column, left);
        adamw_step(h, decay ? h.weight_decay : 0.0F, g, w, a, b);
        round(w, column, h.step);
        weight.store(row, column, left, w);
        m.store(row, column, left, a);
        v.store(row, column, left, b);
    }
};

enum status cuda_adamw(struct cuda_queue *queue, const struct adamw *op)
{
    if (op->weight.dtype == BF16) {
        adamw_piece_in_bf16 f = {rows_of<bf16>(op->weight),
                                 floats(op->gradient),
                                 floats(op->m),
                                 floats(op->v),
                                 op->hyper,
                                 op->decay,
                                 op->stochastic};
        return run_each_piece(queue, f, 1, tensor_count(op->weight));
    }
    return with_type(op->working.data != nullptr ? op->working.dtype : F32, [=](auto number) {
        using T = decltype(number);
        adamw_piece<T> f = {floats(op->weight), floats(op->gradient),    floats(op->m),
                            floats(op->v),      rows_of<T>(op->working), op->hyper,
                            op->decay};
        return run_each_piece(queue, f, 1, tensor_count(op->weight));
    });
}
