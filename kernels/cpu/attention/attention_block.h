// SPDX-License-Identifier: Apache-2.0
/* The pieces both directions of attention are made of. Work goes by blocks of 64 queries against 64
 * keys, and a block of scores lies on its side, one row a key, queries across the lanes:
 *
 *                 queries  q0 ..... q63           so a softmax runs down the rows, a vector of queries at
 *         key k0     [  s  s  s  s  ]             once, without a sum across lanes; keys and values are
 *         key k1     [  -  s  s  s  ]             read where they lie; and only the queries are turned
 *         key k2     [  -  -  s  s  ]             over, once for all their keys.
 *                       - : above the diagonal, masked or never computed
 *
 * All products of blocks go through one routine, whose every element is one chain of multiply-adds in
 * the order of its terms: how it is tiled into registers cannot be seen in the result. */
#pragma once

#include "kernels/cpu/memory_bound/dropout.h"
#include "kernels/cpu/rows.h"

enum { ATTENTION_BLOCK = 64 };

/* On the diagonal, part of a product is not needed or is known to be zero; of a tile of rows
 * [r, r + 4), leave out ... */
enum triangle {
    WHOLE,            // nothing
    COLUMNS_FROM_ROW, // whole vectors of columns below r
    TERMS_FROM_ROW,   // terms below r
    TERMS_TO_ROW,     // terms from r + 4 on
};

/* c[rows, columns] (+)= a[rows, terms] b[terms, columns]; columns is a multiple of LANES. a's elements lie
 * a_row and a_term apart; the rows of b and c are dense, b_row and c_row apart. */
struct block_product {
    int64_t rows, columns, terms;
    const float *a, *b;
    float *c;
    int64_t a_row, a_term, b_row, c_row;
    bool accumulate;
    enum triangle triangle;
};
void block_product(const struct block_product *product);

/* Rows and columns of a matrix in fp32, `stride` apart. */
struct block_rows {
    const float *data;
    int64_t stride;
};
/* Rows [row, row + rows), columns [column, column + columns) of t: where they lie, or widened into `room`,
 * which has rows * columns floats. */
struct block_rows block_rows(struct tensor t, int64_t row, int64_t column, int64_t rows, int64_t columns,
                             float *room);
/* Floats of that room: none where fp32 is read where it lies. */
static inline int64_t block_room(struct tensor t, int64_t floats)
{
    return t.dtype == F32 ? 0 : floats;
}
/* The other way: rounds rows of fp32, `stride` apart, into t. */
void block_store(struct tensor t, int64_t row, int64_t column, const float *from, int64_t stride,
                 int64_t rows, int64_t columns);

/* to[column][row] = scale * from[row][column], lines of ATTENTION_BLOCK floats, 0 for rows that are not
 * there. rows <= ATTENTION_BLOCK; writes columns rounded up to LANES. */
void block_transpose(struct block_rows from, int64_t rows, int64_t columns, float scale, float *to);

/* to[row] = from[row], filled up with zeros to `width` columns. */
void block_pad(struct block_rows from, int64_t rows, int64_t columns, float *to, int64_t width);

/* One block of one head of one sequence: queries [query, query + queries) of the sequence against keys
 * [key, key + keys). */
struct attention_tile {
    const struct attention_forward *op;
    int64_t sequence, head; // which of the batch; which of this rank's heads
    int64_t query, queries, key, keys;
    bool diagonal; // query == key
    bool masked;   // some pair may not see each other
};
struct attention_tile attention_tile(const struct attention_forward *op, int64_t sequence, int64_t head,
                                     int64_t query, int64_t key);

/* True when documents part every query of the tile from every key. */
bool attention_tile_is_empty(const struct attention_tile *tile);

/* Keys that vector v of the queries has to look at: on the diagonal none behind its last query. */
static inline int64_t attention_tile_keys(const struct attention_tile *tile, int64_t v)
{
    return tile->diagonal ? min_i64(tile->keys, (v + 1) * LANES) : tile->keys;
}

/* Which of the queries of vector v see key k of the tile. `document` holds theirs, 0 in lanes that
 * are no queries. */
static inline veci attention_tile_sees(const struct attention_tile *tile, int64_t v, int64_t k, veci document)
{
    int32_t ahead = (int32_t)(tile->key + k - tile->query - v * LANES);
    veci sees = veci_lanes() >= veci_all(ahead);
    if (tile->op->document != NULL)
        sees &= document == veci_all(tile->op->document[tile->sequence * tile->op->sequence + tile->key + k]);
    return sees;
}
veci attention_tile_documents(const struct attention_tile *tile, int64_t v);

/* factor[k][q]: what dropout multiplies the probability of each pair by. */
void attention_tile_dropout(const struct attention_tile *tile, float *factor);

/* Pieces of an op's scratch, one for each task that runs. A task takes a free one, so there need be no
 * more of them than threads. */
struct slots {
    int count;
    int64_t floats;
    float *memory;
    _Atomic int *taken;
};
struct slots slots_create(struct device *device, int64_t floats);
size_t slots_bytes(int threads, int64_t floats); // of cpu_scratch()
float *slot_take(const struct slots *slots, int *which);
void slot_give(const struct slots *slots, int which);
