// SPDX-License-Identifier: Apache-2.0
/* Embedding lookup, rotary position embedding, and the gradient of the embedding table.
 *
 * backward: several tokens may have the same id, and their gradients are added in token order. Tokens are
 * therefore sorted by id, by counting the predecessors of each (T^2 integer comparisons, negligible next to T
 * rows of gradients at the lengths of a microbatch), and the block of the first token of each id loops over
 * all tokens with that id:
 *
 *     id     7 2 7 5 2      position of each: 3 0 4 2 1      order: 1 4 | 3 | 0 2 */
#include "kernels/cuda/memory_bound/reduce.h"
#include "kernels/position_embedding.h"

template <class T> struct gather {
    rows<T> table, out;
    const int32_t *id;
    int64_t begin, row_count;
    bool accumulate;
    struct in {
        bool here;
        vec<T> row, before;
    };

    __device__ in read(int64_t t, int64_t column, int64_t left) const
    {
        const int64_t row = static_cast<int64_t>(id[t]) - begin;
        in p = {};
        p.here = row >= 0 && row < row_count;
        if (p.here)
            p.row = table.read(row, column, left);
        if (p.here && accumulate)
            p.before = out.read(t, column, left);
        return p;
    }

    __device__ void write(const in &p, int64_t t, int64_t column, int64_t left) const
    {
        if (!p.here && accumulate)
            return;
        vec<float> q = rows<T>::widened(p.row);
        if (accumulate) {
            const vec<float> before = rows<T>::widened(p.before);
            for (int i = 0; i < VECTOR_WIDTH; i++)
                q.at[i] = before.at[i] + q.at[i];
        }
        out.store(t, column, left, q);
    }
};

enum status cuda_embedding_forward(struct cuda_queue *queue, const struct embedding_forward *op)
{
    return with_type(op->out.dtype, [=](auto number) {
        using T = decltype(number);
        gather<T> f = {rows_of<T>(op->table), rows_of<T>(op->out), op->id, op->begin, op->rows,
                       op->accumulate};
        return run_each_two_vectors(queue, f, op->out.dim[0], op->out.dim[1]);
    });
}

constexpr int SORT_THREADS = 256, SCATTER_THREADS = 128;

/* A token in the order of (id, token), and the number of tokens with its id from it on. */
struct sorted {
    int32_t token, alike;
};
static_assert(sizeof(struct sorted) == SORTED_TOKEN_BYTES, "scratch.h has another size");

/* order[position of t] = t, the position by (id, t). */
static __global__ void embedding_sort_tokens(const int32_t *id, int64_t count, struct sorted *order)
{
    SHARED(int32_t, tile, SORT_THREADS);
    const int64_t t = static_cast<int64_t>(blockIdx.x) * SORT_THREADS + threadIdx.x;
    const int32_t mine = t < count ? id[t] : 0;
    int32_t before = 0, alike = 0;
    for (int64_t first = 0; first < count; first += SORT_THREADS) {
        __syncthreads();
        if (first + threadIdx.x < count)
            tile[threadIdx.x] = id[first + threadIdx.x];
        __syncthreads();
        const int64_t filled = count - first < SORT_THREADS ? count - first : SORT_THREADS;
        for (int64_t i = 0; i < filled; i++) {
            const bool same = tile[i] == mine, is_before = first + i < t;
            before += tile[i] < mine || (same && is_before) ? 1 : 0;
            alike += same && !is_before ? 1 : 0;
        }
    }
    if (t < count)
        order[before] = {static_cast<int32_t>(t), alike};
}

/* Adds the rows of an id in order, with several loads in flight: a frequent id has hundreds. */
template <class T>
__global__ void embedding_bwd(rows<T> dout, rows<float> dtable, const int32_t *id, const struct sorted *order,
                              int64_t begin, int64_t row_count, int64_t columns)
{
    enum { AT_ONCE = 8 };
    const int64_t position = blockIdx.x;
    const struct sorted first = order[position];
    const int64_t row = static_cast<int64_t>(id[first.token]) - begin;
    const int64_t column = VECTOR_WIDTH * (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x),
                  left = columns - column;
    if (row < 0 || row >= row_count || left <= 0 ||
        (position > 0 && order[position - 1].alike == first.alike + 1))
        return;
    vec<float> sum = dtable.load(row, column, left);
    const int64_t end = position + first.alike;
    for (int64_t p = position; p < end; p += AT_ONCE) {
        vec<T> in[AT_ONCE] = {};
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++)
            if (p + k < end)
                in[k] = dout.read(order[p + k].token, column, left);
        UNROLL_ALL
        for (int k = 0; k < AT_ONCE; k++) {
            const vec<float> q = rows<T>::widened(in[k]);
            for (int i = 0; p + k < end && i < VECTOR_WIDTH; i++)
                sum.at[i] += q.at[i];
        }
    }
    dtable.store(row, column, left, sum);
}

enum status cuda_embedding_backward(struct cuda_queue *queue, const struct embedding_backward *op)
{
    const int64_t count = op->dout.dim[0], columns = op->dout.dim[1],
                  vectors = blocks_of(columns, VECTOR_WIDTH);
    void *scratch;
    TRY(cuda_scratch(queue, static_cast<size_t>(count) * SORTED_TOKEN_BYTES, &scratch));
    struct sorted *order = static_cast<struct sorted *>(scratch);
    dim3 sorters(static_cast<unsigned>(blocks_of(count, SORT_THREADS)));
    TRY(LAUNCH(queue, embedding_sort_tokens, sorters, SORT_THREADS, 0, op->id, count, order));
    int threads = threads_for(vectors, SCATTER_THREADS);
    dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(blocks_of(vectors, threads)));
    return with_type(op->dout.dtype, [=](auto number) {
        using T = decltype(number);
        return LAUNCH(queue, embedding_bwd<T>, grid, threads, 0, rows_of<T>(op->dout), floats(op->dtable),
                      op->id, order, op->begin, op->rows, columns);
    });
}

/* Rotary position embedding: all heads of a token share its sines and cosines, so a block handles several
 * tokens, computes their tables in shared memory, and rotates every head. Angles are computed in double
 * precision and rounded once; the tokens of a block share the cost of each power. */
enum { ROPE_THREADS = 128, ROPE_TOKENS = 4 };

/* How a head is rotated: 2 half of its head_dim channels. */
struct rotation {
    int head_dim, half;
    double base;
    struct rope_scaling scaling;
    bool inverse;
};

/* table[token][cosines, then sines]; all threads of the block. */
static __device__ void make_tables(const int32_t *position, int tokens, const rotation &r, double *frequency,
                                   float *table)
{
    const int half = r.half;
    const double magnitude = rope_magnitude(r.scaling);
    for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x))
        frequency[i] = rope_frequency(r.scaling, r.base, 2 * half, i);
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < tokens * half; e += static_cast<int>(blockDim.x)) {
        const int t = e / half, i = e % half;
        double sine, cosine;
        sincos(static_cast<double>(position[t]) * frequency[i], &sine, &cosine);
        table[2 * t * half + i] = static_cast<float>(cosine * magnitude);
        table[(2 * t + 1) * half + i] = static_cast<float>((r.inverse ? -sine : sine) * magnitude);
    }
    __syncthreads();
}

template <class T>
static __device__ void rotate_vector(const vec<T> was[2], const float *table, int half, int left,
                                     vec<float> now[2])
{
    const vec<float> a = rows<T>::widened(was[0]), b = rows<T>::widened(was[1]);
    for (int k = 0; k < VECTOR_WIDTH; k++) {
        const float c = k < left ? table[k] : 0.0F, s = k < left ? table[half + k] : 0.0F;
        now[0].at[k] = a.at[k] * c - b.at[k] * s;
        now[1].at[k] = b.at[k] * c + a.at[k] * s;
    }
}

/* Rotates columns i and i + half of a head; loads of several tokens are in flight. */
template <class T>
__global__ void __launch_bounds__(ROPE_THREADS)
    rope_apply(rows<T> x, const int32_t *position, int64_t tokens, int heads, rotation r)
{
    DYNAMIC_SHARED(double, frequency);
    const int half = r.half;
    float *const table = reinterpret_cast<float *>(frequency + half);
    const int64_t first = ROPE_TOKENS * static_cast<int64_t>(blockIdx.x);
    const int here = tokens - first < ROPE_TOKENS ? static_cast<int>(tokens - first) : ROPE_TOKENS;
    make_tables(position + first, here, r, frequency, table);
    const int vectors = (half + VECTOR_WIDTH - 1) / VECTOR_WIDTH; // per half head
    for (int p = static_cast<int>(threadIdx.x); p < heads * vectors; p += static_cast<int>(blockDim.x)) {
        const int head = p / vectors, i = (p - head * vectors) * VECTOR_WIDTH, left = half - i;
        const int64_t column = static_cast<int64_t>(head) * r.head_dim + i;
        vec<T> in[ROPE_TOKENS][2] = {};
        UNROLL_ALL
        for (int t = 0; t < ROPE_TOKENS; t++) {
            if (t < here) {
                in[t][0] = x.read(first + t, column, left);
                in[t][1] = x.read(first + t, column + half, left);
            }
        }
        UNROLL_ALL
        for (int t = 0; t < ROPE_TOKENS; t++) {
            if (t >= here)
                break;
            vec<float> out[2];
            rotate_vector<T>(in[t], table + 2 * t * half + i, half, left, out);
            x.store(first + t, column, left, out[0]);
            x.store(first + t, column + half, left, out[1]);
        }
    }
}

/* Rotates columns 2 i and 2 i + 1 of a head: a vector has whole pairs. */
template <class T>
__global__ void __launch_bounds__(ROPE_THREADS)
    rope_apply_interleaved(rows<T> x, const int32_t *position, int64_t tokens, int heads, rotation r)
{
    DYNAMIC_SHARED(double, frequency);
    const int half = r.half;
    float *const table = reinterpret_cast<float *>(frequency + half);
    const int64_t first = ROPE_TOKENS * static_cast<int64_t>(blockIdx.x);
    const int here = tokens - first < ROPE_TOKENS ? static_cast<int>(tokens - first) : ROPE_TOKENS;
    make_tables(position + first, here, r, frequency, table);
    const int vectors = (2 * half + VECTOR_WIDTH - 1) / VECTOR_WIDTH; // per head
    for (int p = static_cast<int>(threadIdx.x); p < heads * vectors; p += static_cast<int>(blockDim.x)) {
        const int head = p / vectors, i = (p - head * vectors) * VECTOR_WIDTH, left = 2 * half - i;
        const int64_t column = static_cast<int64_t>(head) * r.head_dim + i;
        for (int t = 0; t < here; t++) {
            const vec<float> was = x.load(first + t, column, left);
            const float *const cosine = table + 2 * t * half + i / 2, *const sine = cosine + half;
            vec<float> now = {};
            for (int k = 0; k + 1 < VECTOR_WIDTH && k < left; k += 2) {
                now.at[k] = was.at[k] * cosine[k / 2] - was.at[k + 1] * sine[k / 2];
                now.at[k + 1] = was.at[k + 1] * cosine[k / 2] + was.at[k] * sine[k / 2];
            }
            x.store(first + t, column, left, now);
        }
    }
}

enum status cuda_rope(struct cuda_queue *queue, const struct rope *op)
{
    const int64_t tokens = op->x.dim[0], half = rope_rotated(op) / 2, heads = op->x.dim[1] / op->head_dim;
    const rotation r = {static_cast<int>(op->head_dim), static_cast<int>(half), op->base, op->scaling,
                        op->inverse};
    const size_t tables = static_cast<size_t>(half) * (sizeof(double) + 2 * ROPE_TOKENS * sizeof(float));
    return with_type(op->x.dtype, [=](auto number) {
        using T = decltype(number);
        rows<T> x = rows_of<T>(op->x);
        const dim3 grid(static_cast<unsigned>(blocks_of(tokens, ROPE_TOKENS)));
        const int64_t vectors =
            op->interleaved ? blocks_of(2 * half, VECTOR_WIDTH) : blocks_of(half, VECTOR_WIDTH);
        const int threads = threads_for(heads * vectors, ROPE_THREADS);
        // Whether every vector is aligned, and whole.
        x.wide = x.wide && op->head_dim % VECTOR_WIDTH == 0 &&
                 (op->interleaved ? 2 * half : half) % VECTOR_WIDTH == 0;
        return op->interleaved ? LAUNCH(queue, rope_apply_interleaved<T>, grid, threads, tables, x,
                                        op->position, tokens, static_cast<int>(heads), r)
                               : LAUNCH(queue, rope_apply<T>, grid, threads, tables, x, op->position, tokens,
                                        static_cast<int>(heads), r);
    });
}
