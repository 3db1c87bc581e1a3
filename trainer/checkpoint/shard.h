// SPDX-License-Identifier: Apache-2.0
/* A checkpoint shard is the slice (parallel/shard.h) of a tensor that one rank writes, under the
 * name of the tensor.
 *
 *     embedding.weight [257, 192], tp 2       rank 0: rows 0..129      rank 1: rows 129..257 (no padding)
 *     optimizer.m.embedding.weight            the same slices
 *
 * On another layout, a slice is assembled from its intersections with the shards; the two layouts share only
 * names and slices. This file accesses neither files nor devices.
 *
 * save_plan.h determines which rank writes which slice. */
#pragma once

#include "layers/parameters/weights.h"
#include "trainer/checkpoint/format/safetensors.h"
#include "trainer/engine/rank.h"

/* The saved states of a parameter. */
enum state { STATE_VALUE, STATE_M, STATE_V, STATE_COUNT };

enum { SHARD_NAME_CHARS = PARAM_NAME_CHARS + 16 };

/* "optimizer.m.norm.weight". */
void state_name(enum state state, const char *param_name, char out[SHARD_NAME_CHARS]);
/* "precision.amax.layers.0.mlp.fc1.weight", [OPERAND_COUNT, steps], newest first: the history of delayed
 * scaling, the same on every rank (amax_history.h). Rank 0 writes it. */
void amax_name(const char *param_name, char out[SHARD_NAME_CHARS]);
/* View of the owned part; data is NULL if nothing is owned. */
struct tensor state_tensor(const struct owned_param *owned, enum state state);

/* The type of a state in a file; `main`: that of the values, f32 or bf16. */
enum safetensors_dtype shard_dtype(enum state state, enum dtype main);

struct shard {
    char name[SHARD_NAME_CHARS];
    int file; // index of its file
    enum safetensors_dtype dtype;
    int64_t dim[SHARD_MAX_DIMS]; // of the global tensor; 1 past slice.ndim
    struct slice slice;          // padded: in the memory of the rank that writes it; in a file equal to count
};

/* A whole tensor, without padding. */
struct slice slice_whole(int ndim, const int64_t *dim);
/* Sets *out to the common elements, without padding; false if there are none. */
bool slice_intersect(const struct slice *a, const struct slice *b, struct slice *out);
/* The same elements, whatever their padding. */
bool slice_equal(const struct slice *a, const struct slice *b);

/* Formats "129,0 257,192": begin and global shape. The counts are the shape of the tensor in the file. */
enum { SHARD_TEXT_CHARS = 128 };
const char *shard_text(const struct shard *shard, char out[SHARD_TEXT_CHARS]);
/* Parses it; returns false if `text` is malformed. Sets only dim and slice.begin. */
bool shard_parse(const char *text, int ndim, struct shard *out);

/* Formats and parses 16 hexadecimal digits. */
enum { HEX_CHARS = 17 };
const char *hex_text(uint64_t value, char out[HEX_CHARS]);
bool hex_parse(const char *text, uint64_t *out);

/* Removes the padding between rows in place: [padded[0], padded[1]] becomes [count[0], count[1]]. */
void shard_remove_padding(const struct slice *slice, void *local, size_t element_bytes);

/* Copies elements [first, first + count) of the shard, in row-major order, to their offsets in `local`,
 * f32[padded[0], padded[1]], if they are in `want`. Returns the number of copied elements. */
int64_t shard_copy(const struct shard *shard, int64_t first, int64_t count, const float *values,
                   const struct slice *want, float *local);
/* True if the shard is not empty and lies inside its tensor, whose size in bytes fits into 63 bits with any
 * dtype. */
bool shard_is_sound(const struct shard *shard);
