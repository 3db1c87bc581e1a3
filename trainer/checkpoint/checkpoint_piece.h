// SPDX-License-Identifier: Apache-2.0
/* A piece is what one rank keeps of one tensor: a rectangle of the global tensor, by the global name.
 *
 *     embedding.weight [257, 192], tp 2       rank 0: rows 0..129      rank 1: rows 129..257 (padding stays
 * home) optimizer.m.embedding.weight            the same rectangles
 *
 * Saved on one layout and loaded on another, a slice is put together from the parts of the pieces that it
 * overlaps; names and rectangles are all that the two layouts share. Nothing here touches a file or a device.
 *
 * With ZeRO a data rank's piece is what it owns (layers/parameters/weights.h): some rows of that rectangle.
 *
 * The trap: every element has exactly one writer. Copies (over data without ZeRO, over replicated key/value
 * heads, over the two holders of a stage in a two-way pipeline, second uses of a tied weight) stay silent. */
#pragma once

#include "layers/parameters/weights.h"
#include "trainer/checkpoint/format/safetensors.h"
#include "trainer/engine/rank_state.h"

/* What is kept of a parameter. */
enum state { STATE_VALUE, STATE_M, STATE_V, STATE_COUNT };

enum { PIECE_NAME_CHARS = PARAM_NAME_CHARS + 16 };

/* "optimizer.m.norm.weight". */
void state_name(enum state state, const char *param_name, char out[PIECE_NAME_CHARS]);
/* "precision.amax.layers.0.mlp.fc1.weight", [OPERAND_COUNT, steps], newest first: of delayed scaling, the
 * same on every rank (amax_history.h). The first one writes it. */
void amax_name(const char *param_name, char out[PIECE_NAME_CHARS]);
/* The view of what is owned; data NULL where there is none. */
struct tensor state_tensor(const struct owned *owned, enum state state);

struct piece {
    char name[PIECE_NAME_CHARS];
    int file; // index of the file it lies in
    enum safetensors_dtype dtype;
    int ndim;
    int64_t dim[SHARD_MAX_DIMS];                          // of the whole tensor
    int64_t begin[SHARD_MAX_DIMS], count[SHARD_MAX_DIMS]; // begin 0 and count 1 past ndim
    uint64_t checksum;                                    // of its bytes, in version 1
};

int64_t piece_elements(const struct piece *piece);

/* The rectangle of `row` that `rank` writes, the same for all of its states; false: none. With ZeRO, what it
 * owns of this rectangle, and that may be nothing. A function of the layout, so that every rank knows it of
 * every other. */
bool piece_of_rank(const struct run *run, const struct param *row, int rank, struct slice *out);
/* True when it writes anything at all; with ZeRO, when it may. */
bool piece_of_rank_any(const struct run *run, const struct params *params, int rank);

/* "129,0 257,192": begin and whole shape. The counts are the file's own shape. */
enum { PIECE_TEXT_CHARS = 128 };
const char *piece_text(const struct piece *piece, char out[PIECE_TEXT_CHARS]);
/* False when `text` is no such thing. ndim and count are left alone. */
bool piece_parse(const char *text, int ndim, struct piece *out);

/* 16 hexadecimal digits, and back. */
enum { HEX_CHARS = 17 };
const char *hex_text(uint64_t value, char out[HEX_CHARS]);
bool hex_parse(const char *text, uint64_t *out);

/* Closes the gaps that padding leaves: [padded[0], padded[1]] becomes [count[0], count[1]], in place. */
void piece_close_gaps(const struct slice *slice, void *local, size_t element_bytes);

/* Elements [first, first + count) of the piece, in row-major order: those that lie in `want` go to their
 * place in `local`, f32[padded[0], padded[1]]. Returns how many did. */
int64_t piece_give(const struct piece *piece, int64_t first, int64_t count, const float *values,
                   const struct slice *want, float *local);
/* True when piece and slice have an element in common. */
bool piece_meets(const struct piece *piece, const struct slice *want);
