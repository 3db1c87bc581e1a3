// SPDX-License-Identifier: Apache-2.0
/* Shared building blocks of attention's forward and backward passes. Blocks are 64 queries by 64 keys, and a
 * block of scores is stored transposed, one row per key, with queries across the lanes:
 *
 *                 queries  q0 ..... q63           so softmax reduces down the rows, a vector of queries at
 *         key k0     [  s  s  s  s  ]             a time, without horizontal sums; keys and values are
 *         key k1     [  -  s  s  s  ]             read in place; only the queries are transposed,
 *         key k2     [  -  -  s  s  ]             once for all their keys.
 *                       - : above the diagonal, masked or never computed
 *
 * With a window, blocks of keys before the first query's window are never computed either.
 *
 * All block matmuls use one routine, in which every element is a single chain of multiply-adds in the order
 * of its terms: the register tiling does not affect the result. */
#pragma once

#include "kernels/cpu/memory_bound/dropout.h"
#include "kernels/cpu/rows.h"

enum { ATTENTION_BLOCK = 64 };

/* On the diagonal, part of a matmul is not needed or known to be zero; for a tile of rows [r, r + 4), skip
 * ... */
enum triangle {
    WHOLE,            // nothing
    COLUMNS_FROM_ROW, // whole vectors of columns below r
    TERMS_FROM_ROW,   // terms below r
    TERMS_TO_ROW,     // terms from r + 4 on
};

/* c[rows, columns] (+)= a[rows, terms] b[terms, columns]; columns is a multiple of LANES. a has strides a_row
 * and a_term; the rows of b and c are contiguous, with strides b_row and c_row. */
struct block_matmul {
    int64_t rows, columns, terms;
    const float *a, *b;
    float *c;
    int64_t a_row, a_term, b_row, c_row;
    bool accumulate;
    enum triangle triangle;
};
void block_matmul(const struct block_matmul *product);

/* Rows and columns of an fp32 matrix with row stride `stride`. */
struct block_rows {
    const float *data;
    int64_t stride;
};
/* Rows [row, row + rows), columns [column, column + columns) of t: in place, or converted to fp32 in
 * `buffer`, which holds rows * columns floats. */
struct block_rows block_rows(struct tensor t, int64_t row, int64_t column, int64_t rows, int64_t columns,
                             float *buffer);
/* Floats needed for `buffer`: none for fp32, which is read in place. */
static inline int64_t block_buffer_floats(struct tensor t, int64_t floats)
{
    return t.dtype == F32 ? 0 : floats;
}
/* Rounds and stores fp32 rows, `stride` apart, into t. */
void block_store(struct tensor t, int64_t row, int64_t column, const float *from, int64_t stride,
                 int64_t rows, int64_t columns);

/* to[column][row] = scale * from[row][column], lines of ATTENTION_BLOCK floats, 0 for missing rows. rows <=
 * ATTENTION_BLOCK; writes columns rounded up to LANES. */
void block_transpose(struct block_rows from, int64_t rows, int64_t columns, float scale, float *to);

/* to[row] = from[row], zero-padded to `width` columns. */
void block_pad(struct block_rows from, int64_t rows, int64_t columns, float *to, int64_t width);

/* One block of one head of one sequence: query rows [query, query + queries) against key rows [key, key +
 * keys). */
struct attention_tile {
    const struct attention_forward *op;
    int64_t sequence, head; // index in the batch; index among this rank's heads
    int64_t query, queries, key, keys;
    int64_t token, key_row; // key row of the first query in its sequence; row of the first key in k and v
    bool diagonal;          // the first query is the token of the first key
    bool masked;            // some pairs are masked
    float slope;            // of ALiBi; 0: none
};
struct attention_tile attention_tile(const struct attention_forward *op, int64_t sequence, int64_t head,
                                     int64_t query, int64_t key);

/* The first block of keys that any query of the tile attends to. */
static inline int64_t attention_tile_begin(const struct attention_tile *tile)
{
    return attention_first_key(tile->op, tile->token) / ATTENTION_BLOCK * ATTENTION_BLOCK;
}

/* One past the last key row that any query of the tile attends to. */
static inline int64_t attention_tile_end(const struct attention_tile *tile)
{
    return min_i64(attention_keys(tile->op), tile->token + tile->queries);
}

/* Returns true if documents mask all pairs of the tile. */
bool attention_tile_is_empty(const struct attention_tile *tile);

/* Floats per row of a head of q and k, and of v, in full vectors. */
static inline int64_t attention_width(const struct attention_forward *op)
{
    return blocks_of(op->head_dim, LANES) * LANES;
}
static inline int64_t attention_value_width(const struct attention_forward *op)
{
    return blocks_of(attention_value_dim(op), LANES) * LANES;
}

/* The number of keys to process for vector v of the queries: on the diagonal, none after its last query. */
static inline int64_t attention_tile_keys(const struct attention_tile *tile, int64_t v)
{
    return tile->diagonal ? min_i64(tile->keys, (v + 1) * LANES) : tile->keys;
}

/* The queries of vector v that attend to key k of the tile. `document` holds their ids, 0 in unused lanes. */
static inline veci attention_tile_attends(const struct attention_tile *tile, int64_t v, int64_t k,
                                          veci document)
{
    int32_t ahead = (int32_t)(tile->key + k - tile->token - v * LANES);
    veci attends = veci_lanes() >= veci_all(ahead);
    if (tile->op->window > 0)
        attends &= veci_lanes() < veci_all(ahead + (int32_t)tile->op->window);
    if (tile->op->document != NULL)
        attends &= document == veci_all(tile->op->document[tile->key_row + k]);
    return attends;
}
/* Whether scores are scale q k^T as they are, without a cap and a bias. */
static inline bool attention_tile_is_plain(const struct attention_tile *tile)
{
    return tile->slope == 0.0F && tile->op->softcap == 0.0F;
}

/* The score of the queries of vector v and key k, from scale q k^T, and its derivative. */
static inline vec attention_tile_score(const struct attention_tile *tile, int64_t v, int64_t k, vec score,
                                       vec *derivative)
{
    const float cap = tile->op->softcap;
    *derivative = vec_all(1.0F);
    if (cap > 0.0F) {
        vec t = vec_tanh(score * (1.0F / cap));
        *derivative -= t * t;
        score = t * cap;
    }
    if (tile->slope == 0.0F)
        return score;
    int32_t ahead = (int32_t)(tile->key + k - tile->token - v * LANES);
    return vec_fma(vec_all(tile->slope), __builtin_convertvector(veci_all(ahead) - veci_lanes(), vec), score);
}

veci attention_tile_documents(const struct attention_tile *tile, int64_t v);

/* factor[k][q]: the dropout factor of each pair's probability. */
void attention_tile_dropout(const struct attention_tile *tile, float *factor);

/* Parts of an op's scratch memory, as many as threads: a running task acquires a free one. */
struct slots {
    int count;
    int64_t floats;
    float *memory;
    _Atomic int *taken;
};
struct slots slots_create(struct device *device, int64_t floats);
size_t slots_bytes(int threads, int64_t floats); // of cpu_scratch()
float *slot_acquire(const struct slots *slots, int *which);
void slot_release(const struct slots *slots, int which);
