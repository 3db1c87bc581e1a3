// SPDX-License-Identifier: Apache-2.0
/* Element-wise steps of the tensor-core attention kernels: the mask, dropout, and the gradient of a score. A
 * warp has 16 rows of scores, and a lane holds s[n][i] in the accumulator layout of mma and wgmma (mma.h):
 * row g + 8 (i / 2), column 8 n + 2 t + i % 2, with g = lane / 4 and t = lane % 4. Rows are queries, or keys.
 *
 * Caution: kept_weights() shuffles between lanes, so all lanes of the warp must call it. */
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/memory_bound/rows.h"

template <class T> struct operands {
    rows<T> q, k, v, out, dout, dq, dk, dv;
    rows<float> lse;
    const float *delta;                  // [A, T]
    int sequence, window, heads, groups; // without a window, `window` is the sequence
    int64_t tokens;
    float scale, scale_log2; // e^(scale x) = 2^(scale_log2 x)
    float cap, to_cap;       // soft cap of the scores before scaling, and its reciprocal; 0: none
    struct slopes slopes;
    const int32_t *document;
    struct pair_dropout dropout;

    /* Document ids of a sequence's tokens; NULL: none. */
    __device__ const int32_t *documents_of(int64_t row) const
    {
        return document != nullptr ? document + row : nullptr;
    }

    /* ALiBi's slope of a head, in units of the scores before scaling. */
    __device__ float slope_of(int head) const
    {
        return slopes.of(head) / scale;
    }

    /* The first key that a query attends to, rounded down to a multiple of `tile`. */
    __device__ int first_key(int query, int tile) const
    {
        return query < window ? 0 : (query - window + 1) / tile * tile;
    }

    /* One past the last query that attends to a key. */
    __device__ int end_query(int key) const
    {
        return sequence - key < window ? sequence : key + window;
    }

    /* Whether some of the pairs of consecutive queries and keys attend, and whether all do. */
    __device__ bool some_attend(int query, int queries, int key, int keys) const
    {
        return key < query + queries && query - (key + keys - 1) < window;
    }

    __device__ bool all_attend(int query, int queries, int key, int keys) const
    {
        return key + keys - 1 <= query && query + queries - 1 - key < window;
    }
};

constexpr float LOG2_E = 1.44269504F;

/* Which of this lane's weights are kept, bit 4 n + i for [n][i]. One Philox counter covers four neighbouring
 * keys, of which a lane holds two if queries are rows, one if keys are rows: the lanes of a quad compute
 * different counters and exchange the results. This needs complete quads, S % 4 == 0; otherwise each lane
 * computes a counter per weight. `row` is this lane's first; the second is 8 further. */
template <int N, bool KEYS_ARE_ROWS>
__device__ uint32_t kept_weights(const struct pair_dropout &d, const struct block_coord &at, int row,
                                 int column)
{
    const unsigned lane = threadIdx.x % WARP, group = lane / 4, in_group = lane % 4;
    const uint64_t sample = static_cast<uint64_t>(d.sample[at.row]);
    uint32_t kept = 0;
    if (d.sequence % 4 != 0) {
        UNROLL(1)
        for (int i = 0; i < 4 * N; i++) {
            const int r = row + i % 4 / 2 * 8,
                      c = column + i / 4 * 8 + 2 * static_cast<int>(in_group) + i % 2;
            const uint64_t element =
                first_pair(d, at, KEYS_ARE_ROWS ? c : r) + static_cast<uint64_t>(KEYS_ARE_ROWS ? r : c);
            kept |= keeps(d, sample, element) ? 1U << i : 0U;
        }
        return kept;
    }
    UNROLL(1) // ten rounds of Philox: limits code size
    for (int n = 0; n < N; n += KEYS_ARE_ROWS ? 1 : 2) {
        if (KEYS_ARE_ROWS) { // lanes of four neighbouring keys: the lane with key 4 j + i computes element i
                             // for all
            const unsigned i = group % 4;
            const int query = column + 8 * n + static_cast<int>(2 * in_group + i % 2),
                      key = (row & ~3) + static_cast<int>(i / 2 * 8);
            const unsigned mine =
                kept_quad(d, sample, (first_pair(d, at, query) + static_cast<uint64_t>(key)) / 4);
            for (unsigned from = 0; from < 4; from++)
                kept |= (__shfl_sync(ALL_LANES, mine, ((group & ~3U) + from) * 4 + in_group) >> i & 1U)
                        << (4 * n + static_cast<int>(from));
        } else { // an even lane and its neighbour: one computes tile n, the other n + 1
            const bool odd = in_group % 2 != 0;
            UNROLL(1)
            for (int half = 0; half < 2; half++) {
                const int key = column + 8 * (n + (odd ? 1 : 0)) + static_cast<int>(in_group / 2 * 4);
                const unsigned mine = kept_quad(
                    d, sample, (first_pair(d, at, row + 8 * half) + static_cast<uint64_t>(key)) / 4);
                const unsigned other = __shfl_xor_sync(ALL_LANES, mine, 1);
                kept |= (odd ? other >> 2 : mine & 3U) << (4 * n + 2 * half);
                kept |= (odd ? mine >> 2 : other & 3U) << (4 * n + 4 + 2 * half);
            }
        }
    }
    return kept;
}

/* Sets masked scores, or weights, to `hidden`. `row` is this lane's first, `column` the tile's. With
 * documents, row_document[r] is the id of row r, column_document[c] that of the tile's column c. */
template <bool KEYS_ARE_ROWS, int M, int N>
__device__ void mask_scores(float s[M][N][4], float hidden, int row, int column, int sequence, int window,
                            const int32_t *row_document, const int32_t *column_document)
{
    const int in_group = static_cast<int>(threadIdx.x % 4);
    UNROLL_ALL
    for (int i = 0; i < 2 * M; i++) {
        const int r = row + 8 * i;
        const int32_t document = row_document != nullptr && r < sequence ? row_document[r] : 0;
        UNROLL_ALL
        for (int j = 0; j < 2 * N; j++) {
            const int c = j / 2 * 8 + in_group * 2 + j % 2;
            const int distance = KEYS_ARE_ROWS ? column + c - r : r - (column + c);
            bool attends = distance >= 0 && distance < window;
            if (row_document != nullptr)
                attends = attends && document == column_document[c];
            float &score = s[i / 2][j / 2][i % 2 * 2 + j % 2];
            score = attends ? score : hidden;
        }
    }
}

/* A bit for each of a lane's pairs: bit 4 (n % 8) + i of word n / 8 for [n][i]. */
template <int N> struct pair_bits {
    uint32_t word[N / 8];

    __device__ __forceinline__ bool at(int n, int i) const
    {
        return (word[n / 8] >> (n % 8 * 4 + i) & 1) != 0;
    }
};

/* kept_weights() of a tile. */
template <bool KEYS_ARE_ROWS, int N>
__device__ __forceinline__ void compute_kept(struct pair_bits<N> &kept, const struct pair_dropout &d,
                                             const struct block_coord &at, int row, int column)
{
    UNROLL(1)
    for (int i = 0; i < N / 8; i++) { // constant indices keep the words in registers
        UNROLL_ALL
        for (int j = 0; j + 1 < N / 8; j++)
            kept.word[j] = kept.word[j + 1];
        kept.word[N / 8 - 1] = kept_weights<8, KEYS_ARE_ROWS>(d, at, row, column + 64 * i);
    }
}

/* Which pairs are in the same document: row_document[r] is that of row r < sequence, column_document[c] that
 * of the tile's column c < columns. */
template <int N>
__device__ __forceinline__ void compute_same_document(struct pair_bits<N> &same, int row, int sequence,
                                                      const int32_t *row_document,
                                                      const int32_t *column_document, int columns)
{
    const int first = static_cast<int>(threadIdx.x % 4) * 2;
    int32_t document[2] = {};
    UNROLL_ALL
    for (int i = 0; i < 2; i++)
        if (row + 8 * i < sequence)
            document[i] = row_document[row + 8 * i];
    same = {};
    UNROLL_ALL
    for (int j = 0; j < 2 * N; j++) {
        const int c = first + j / 2 * 8 + j % 2;
        const int32_t other = c < columns ? column_document[c] : 0;
        UNROLL_ALL
        for (int i = 0; i < 2; i++)
            same.word[j / 16] |= document[i] == other ? 1U << (j / 2 % 8 * 4 + 2 * i + j % 2) : 0U;
    }
}

/* The causal mask and the window: as mask_scores(), but comparing one distance with a constant for each pair,
 * which takes two registers instead of one per column. */
template <bool KEYS_ARE_ROWS, int N>
__device__ __forceinline__ void mask_distances(float (&s)[N][4], float hidden, int row, int column,
                                               int window)
{
    const int first = column + static_cast<int>(threadIdx.x % 4) * 2,
              distance = KEYS_ARE_ROWS ? first - row : row - first, past = distance - window;
    UNROLL_ALL
    for (int j = 0; j < 4 * N; j++) {
        const int c = j / 4 * 8 + j % 2, r = j / 2 % 2 * 8, less = KEYS_ARE_ROWS ? r - c : c - r;
        float &score = s[j / 4][j % 4];
        score = distance >= less && past < less ? score : hidden;
    }
}

/* Sets the scores, or weights, whose bit is 0 to `hidden`. */
template <int N>
__device__ __forceinline__ void mask_bits(float (&s)[N][4], float hidden, const struct pair_bits<N> &shown)
{
    UNROLL_ALL
    for (int i = 0; i < 4 * N; i++)
        s[i / 4][i % 4] = shown.at(i / 4, i % 4) ? s[i / 4][i % 4] : hidden;
}

/* Adds ALiBi's bias to the scores. */
template <bool KEYS_ARE_ROWS, int M, int N>
__device__ void bias_scores(float s[M][N][4], float slope, int row, int column)
{
    const int first = column + static_cast<int>(threadIdx.x % 4) * 2;
    UNROLL_ALL
    for (int i = 0; i < 2 * M; i++)
        UNROLL_ALL
    for (int j = 0; j < 2 * N; j++) {
        const int c = first + j / 2 * 8 + j % 2, r = row + 8 * i;
        float &score = s[i / 2][j / 2][i % 2 * 2 + j % 2];
        score = fmaf(slope, static_cast<float>(KEYS_ARE_ROWS ? r - c : c - r), score);
    }
}

/* Caps the scores: x becomes cap tanh(x / cap). */
template <int M, int N> __device__ void cap_scores(float s[M][N][4], float cap, float to_cap)
{
    UNROLL_ALL
    for (int i = 0; i < 4 * M * N; i++) {
        float &score = s[i / (4 * N)][i / 4 % N][i % 4];
        score = tanhf(score * to_cap) * cap;
    }
}

/* lse and delta of queries, lse in units of log 2. */
struct of_query {
    float lse, delta;
};

/* For one pair: s becomes the weight that multiplies w, dp becomes ds. CAPPED: s is a capped score, or
 * -infinity if masked; the derivative of the cap is 1 - (s / cap)^2. */
template <bool CAPPED>
static __device__ inline void make_gradient(float &s, float &dp, const struct of_query &query, bool kept,
                                            float scale_log2, float factor, float to_cap)
{
    const float p = exp2_fast(fmaf(s, scale_log2, -query.lse)), t = CAPPED ? s * to_cap : 0.0F;
    dp = p * ((kept ? dp * factor : 0.0F) - query.delta);
    if (CAPPED)
        dp *= fmaxf(fmaf(-t, t, 1.0F), 0.0F);
    s = kept ? p : 0.0F;
}

template <class T> static struct operands<T> operands_of(const struct attention_forward *op) {
    struct operands<T> a = {
    };
    a.q = rows_of<T>(op->q);
    a.k = rows_of<T>(op->k);
    a.v = rows_of<T>(op->v);
    a.out = rows_of<T>(op->out);
    a.lse = floats(op->lse);
    a.sequence = static_cast<int>(op->sequence);
    a.window = static_cast<int>(window_of(op));
    a.tokens = op->q.dim[0];
    a.heads = static_cast<int>(op->q.dim[1] / op->head_dim);
    a.groups = static_cast<int>(op->k.dim[1] / op->head_dim);
    a.scale = op->scale;
    a.scale_log2 = op->scale * LOG2_E;
    a.cap = op->softcap / op->scale;
    a.to_cap = op->softcap > 0.0F ? op->scale / op->softcap : 0.0F;
    a.slopes = slopes_of(op);
    a.document = op->document;
    a.dropout = pair_dropout_of(op);
    return a;
}

template <class T>
static struct operands<T> operands_of(const struct attention_backward *op, const float *delta) {
    struct operands<T> a = operands_of<T>(&op->forward);
    a.dout = rows_of<T>(op->dout);
    a.dq = rows_of<T>(op->dq);
    a.dk = rows_of<T>(op->dk);
    a.dv = rows_of<T>(op->dv);
    a.delta = delta;
    return a;
}
