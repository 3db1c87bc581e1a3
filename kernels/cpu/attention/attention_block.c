// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention_block.h"

#include "kernels/position_embedding.h"

#include <stdatomic.h>

/* Register tile of c: 4 x 4 of AVX-512's 32 vectors, 4 x 2 of 16 elsewhere. */
enum { TILE_ROWS = 4 };
#if defined(__AVX512F__)
enum { TILE_VECTORS = 4 };
#else
enum { TILE_VECTORS = 2 };
#endif

/* `rows` and `vectors` are constants at each call, so the sums stay in registers. */
VECTOR_INLINE void tile(int rows, int vectors, const struct block_matmul *p, int64_t row, int64_t column)
{
    int64_t begin = p->triangle == TERMS_FROM_ROW ? row : 0;
    int64_t end = p->triangle == TERMS_TO_ROW ? min_i64(row + TILE_ROWS, p->terms) : p->terms;
    vec sum[TILE_ROWS][TILE_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] =
                p->accumulate ? vec_load(p->c + (row + r) * p->c_row + column + v * LANES) : vec_all(0);

    const float *a = p->a + row * p->a_row, *b = p->b + column;
    for (int64_t k = begin; k < end; k++) {
        vec line[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            line[v] = vec_load(b + k * p->b_row + v * LANES);
        for (int r = 0; r < rows; r++) {
            vec factor = vec_all(a[r * p->a_row + k * p->a_term]);
            for (int v = 0; v < vectors; v++)
                sum[r][v] = vec_fma(factor, line[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            vec_store(p->c + (row + r) * p->c_row + column + v * LANES, sum[r][v]);
}

VECTOR_INLINE void tile_of_vectors(int rows, int64_t vectors, const struct block_matmul *p, int64_t row,
                                   int64_t column)
{
    switch (vectors) {
    case 1:
        tile(rows, 1, p, row, column);
        break;
    case 2:
        tile(rows, 2, p, row, column);
        break;
#if defined(__AVX512F__)
    case 3:
        tile(rows, 3, p, row, column);
        break;
    case 4:
        tile(rows, 4, p, row, column);
        break;
#endif
    default:
        break;
    }
}

void block_matmul(const struct block_matmul *product)
{
    const struct block_matmul p = *product;
    for (int64_t panel = 0; panel < p.columns; panel += (int64_t)TILE_VECTORS * LANES) {
        int64_t panel_end = min_i64(panel + (int64_t)TILE_VECTORS * LANES, p.columns);
        for (int64_t row = 0; row < p.rows;) {
            int64_t first = p.triangle == COLUMNS_FROM_ROW ? row / LANES * LANES : 0;
            int64_t column = panel > first ? panel : first;
            int64_t vectors = column < panel_end ? (panel_end - column) / LANES : 0;
            if (row + TILE_ROWS <= p.rows) {
                tile_of_vectors(TILE_ROWS, vectors, &p, row, column);
                row += TILE_ROWS;
            } else {
                tile_of_vectors(1, vectors, &p, row, column);
                row += 1;
            }
        }
    }
}

/* Transposes LANES rows of LANES by log2(LANES) perfect shuffles of the rows: each step interleaves the lanes
 * of rows i and i + LANES/2 into rows 2i and 2i + 1. */
VECTOR_INLINE void transpose_lanes(vec x[LANES])
{
    for (int step = 1; step < LANES; step *= 2) {
        vec y[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = vec_interleave_first(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = vec_interleave_second(x[i], x[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; i++)
            x[i] = y[i];
    }
}

struct block_rows block_rows(struct tensor t, int64_t row, int64_t column, int64_t rows, int64_t columns,
                             float *buffer)
{
    if (t.dtype == F32)
        return (struct block_rows){f32_row(t, row) + column, t.stride[0]};
    for (int64_t r = 0; r < rows; r++)
        row_in(t, (struct segment){row + r, column, columns}, buffer + r * columns);
    return (struct block_rows){buffer, columns};
}

void block_store(struct tensor t, int64_t row, int64_t column, const float *from, int64_t stride,
                 int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        narrow_floats(t.dtype, from + r * stride, row_bytes(t, row + r, column), columns);
}

void block_transpose(struct block_rows from, int64_t rows, int64_t columns, float scale, float *to)
{
    for (int64_t column = 0; column < columns; column += LANES) {
        int64_t width = min_i64(LANES, columns - column);
        for (int64_t row = 0; row < ATTENTION_BLOCK; row += LANES) {
            vec x[LANES];
            for (int i = 0; i < LANES; i++) {
                const float *line = from.data + (row + i) * from.stride + column;
                x[i] = row + i < rows ? vec_load_part(line, width) * scale : vec_all(0);
            }
            transpose_lanes(x);
            for (int i = 0; i < LANES; i++)
                vec_store(to + (column + i) * ATTENTION_BLOCK + row, x[i]);
        }
    }
}

void block_pad(struct block_rows from, int64_t rows, int64_t columns, float *to, int64_t width)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i += LANES)
            vec_store(to + row * width + i,
                      vec_load_part(from.data + row * from.stride + i, min_i64(LANES, columns - i)));
}

/* The slope of ALiBi of head `head` of q; 0: none. */
static float slope_of(const struct attention_forward *op, int64_t head)
{
    return op->alibi.heads > 0 ? (float)alibi_slope(op->alibi.heads, op->alibi.begin + head) : 0.0F;
}

struct attention_tile attention_tile(const struct attention_forward *op, int64_t sequence, int64_t head,
                                     int64_t query, int64_t key)
{
    const int64_t all = attention_keys(op), token = op->query_begin + query;
    return (struct attention_tile){.op = op,
                                   .sequence = sequence,
                                   .head = head,
                                   .query = query,
                                   .queries = min_i64(ATTENTION_BLOCK, op->sequence - query),
                                   .key = key,
                                   .keys = min_i64(ATTENTION_BLOCK, all - key),
                                   .token = token,
                                   .key_row = sequence * all + key,
                                   .diagonal = token == key,
                                   .masked = key + ATTENTION_BLOCK > token || op->document != NULL ||
                                             key < attention_first_key(op, token + ATTENTION_BLOCK - 1),
                                   .slope = slope_of(op, head)};
}

bool attention_tile_is_empty(const struct attention_tile *tile)
{
    if (tile->op->document == NULL)
        return false;
    const int32_t *document = tile->op->document + tile->key_row - tile->key;
    int32_t query_min = INT32_MAX, query_max = INT32_MIN, key_min = INT32_MAX, key_max = INT32_MIN;
    for (int64_t q = tile->token; q < tile->token + tile->queries; q++) {
        query_min = document[q] < query_min ? document[q] : query_min;
        query_max = document[q] > query_max ? document[q] : query_max;
    }
    for (int64_t k = tile->key; k < tile->key + tile->keys; k++) {
        key_min = document[k] < key_min ? document[k] : key_min;
        key_max = document[k] > key_max ? document[k] : key_max;
    }
    return query_max < key_min || key_max < query_min;
}

veci attention_tile_documents(const struct attention_tile *tile, int64_t v)
{
    int32_t lane[LANES] = {0};
    const int64_t first = tile->key_row - tile->key + tile->token;
    for (int64_t l = 0; tile->op->document != NULL && l < LANES && v * LANES + l < tile->queries; l++)
        lane[l] = tile->op->document[first + v * LANES + l];
    veci document;
    memcpy(&document, lane, sizeof document);
    return document;
}

/* The counters of a vector of elements, and for each element the index among its counter's four words. */
VECTOR_INLINE void mask_counters(const uint64_t index[LANES], uint64_t sample, vecu c[4], vecu *word)
{
    for (int l = 0; l < LANES; l++) {
        c[0][l] = (uint32_t)(index[l] / 4);
        c[1][l] = (uint32_t)(index[l] / 4 >> 32);
        (*word)[l] = (uint32_t)index[l] % 4;
    }
    c[2] = (vecu){0} + (uint32_t)sample;
    c[3] = (vecu){0} + (uint32_t)(sample >> 32);
}

/* One counter serves four neighbouring keys of a query if the query's elements begin at a counter, that is if
 * K is a multiple of 4. Otherwise each key computes its own. */
void attention_tile_dropout(const struct attention_tile *tile, float *factor)
{
    const struct attention_forward *op = tile->op;
    struct dropout_rule rule = dropout_rule(&op->dropout);
    int64_t first = tile->sequence * op->sequence + tile->query;
    uint64_t head = (uint64_t)(op->dropout.column_begin + tile->head), s = (uint64_t)attention_keys(op);
    int step = s % 4 == 0 ? 4 : 1;
    for (int64_t v = 0; v < blocks_of(tile->queries, LANES); v++) {
        for (int64_t k = 0; k < attention_tile_keys(tile, v); k += step) {
            uint64_t index[LANES];
            for (uint64_t l = 0; l < LANES; l++)
                index[l] =
                    (head * s + (uint64_t)(tile->token + v * LANES) + l) * s + (uint64_t)(tile->key + k);
            vecu c[4], word;
            mask_counters(index, (uint64_t)op->dropout.sample[first], c, &word);
            philox_words_vec(rule.generator, c);
            for (int w = 0; w < 4 && step == 4; w++)
                vec_store(factor + (k + w) * ATTENTION_BLOCK + v * LANES, dropout_factor(&rule, c[w]));
            if (step == 1) {
                vecu drawn = c[0];
                for (uint32_t w = 1; w < 4; w++)
                    drawn = (vecu)vec_select((veci)(word == w), (vec)c[w], (vec)drawn);
                vec_store(factor + k * ATTENTION_BLOCK + v * LANES, dropout_factor(&rule, drawn));
            }
        }
    }
}

/* Size of one slot, in full vectors. */
static int64_t slot_floats(int64_t floats)
{
    return blocks_of(floats, LANES) * LANES;
}

size_t slots_bytes(int threads, int64_t floats)
{
    return (size_t)threads * ((size_t)slot_floats(floats) * sizeof(float) + sizeof(_Atomic int));
}

struct slots slots_create(struct device *device, int64_t floats)
{
    struct slots slots = {.count = device->threads, .floats = slot_floats(floats)};
    char *scratch = cpu_scratch(device, slots_bytes(slots.count, floats));
    slots.memory = (float *)(void *)scratch;
    slots.taken = (_Atomic int *)(void *)(scratch + (size_t)(slots.count * slots.floats) * sizeof(float));
    for (int s = 0; s < slots.count; s++)
        atomic_init(&slots.taken[s], 0);
    return slots;
}

float *slot_acquire(const struct slots *slots, int *which)
{
    for (int s = 0;; s = (s + 1) % slots->count) {
        if (atomic_exchange(&slots->taken[s], 1) == 0) {
            *which = s;
            return slots->memory + s * slots->floats;
        }
    }
}

void slot_release(const struct slots *slots, int which)
{
    atomic_store(&slots->taken[which], 0);
}
