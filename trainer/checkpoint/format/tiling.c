// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/format/tiling.h"

#include "base/memory.h"
#include "trainer/files/checksum.h"

#include <stdlib.h>
#include <string.h>

struct corner {
    int64_t row, column;
};

static int by_position(const void *a, const void *b)
{
    const struct corner *x = a, *y = b;
    int order = (x->row > y->row) - (x->row < y->row);
    return order != 0 ? order : (x->column > y->column) - (x->column < y->column);
}

static bool same_shape(const struct shard *a, const struct shard *b)
{
    return a->slice.ndim == b->slice.ndim && a->dtype == b->dtype && a->dim[0] == b->dim[0] &&
           a->dim[1] == b->dim[1];
}

/* Checks for odd counts at the corners of the whole and even counts elsewhere. The four corners of the whole
 * are added once, so that all counts must be even. */
static bool corners_agree(struct corner *corners, int64_t count)
{
    qsort(corners, (size_t)count, sizeof *corners, by_position);
    for (int64_t i = 0, same; i < count; i += same) {
        for (same = 1; i + same < count && by_position(&corners[i], &corners[i + same]) == 0;)
            same++;
        if (same % 2 != 0)
            return false;
    }
    return true;
}

static void add_corners(struct corner *out, const int64_t *begin, const int64_t *count)
{
    for (int i = 0; i < 4; i++)
        out[i] = (struct corner){begin[0] + i / 2 * count[0], begin[1] + i % 2 * count[1]};
}

enum status shards_tile(const struct shard *shards, int count, const char *path)
{
    static const int64_t origin[SHARD_MAX_DIMS] = {0};
    int64_t whole = 0, covered = 0;
    for (int i = 0; i < count; i++)
        if (!shard_is_sound(&shards[i]) || !same_shape(&shards[i], &shards[0]))
            return fail(BAD_CHECKPOINT, "%s: a shard of %s exceeds its shape", path, shards[i].name);
    whole = shards[0].dim[0] * shards[0].dim[1];
    for (int i = 0; i < count; i++)
        if (__builtin_add_overflow(covered, slice_count(&shards[i].slice), &covered) || covered > whole)
            return fail(BAD_CHECKPOINT, "%s: two shards of %s overlap", path, shards[0].name);
    if (covered != whole)
        return fail(BAD_CHECKPOINT, "%s: the shards of %s contain %lld of its %lld elements", path,
                    shards[0].name, (long long)covered, (long long)whole);
    AUTO_FREE struct corner *corners =
        memory_zeroed((size_t)count + 1, 4 * sizeof *corners, "the corners of shards");
    add_corners(corners, origin, shards[0].dim);
    for (int i = 0; i < count; i++)
        add_corners(corners + 4 * ((int64_t)i + 1), shards[i].slice.begin, shards[i].slice.count);
    return corners_agree(corners, 4 * ((int64_t)count + 1))
               ? OK
               : fail(BAD_CHECKPOINT, "%s: two shards of %s overlap", path, shards[0].name);
}

/* ---- covers ---- */

/* The hash of a corner depends on the name, the type and the shape of the tensor. */
static uint64_t corner_hash(const struct shard *shard, int64_t row, int64_t column)
{
    struct {
        char name[SHARD_NAME_CHARS];
        int64_t dtype, ndim, dim[SHARD_MAX_DIMS], row, column;
    } key;
    memset(&key, 0, sizeof key);
    memcpy(key.name, shard->name, strlen(shard->name));
    key.dtype = (int64_t)shard->dtype;
    key.ndim = shard->slice.ndim;
    memcpy(key.dim, shard->dim, sizeof key.dim);
    key.row = row;
    key.column = column;
    return checksum_of(&key, sizeof key);
}

static void add_rectangle(struct cover *cover, const struct shard *shard, const int64_t *begin,
                          const int64_t *count)
{
    struct corner corners[4];
    add_corners(corners, begin, count);
    for (int i = 0; i < 4; i++)
        cover->corners ^= corner_hash(shard, corners[i].row, corners[i].column);
    cover->elements += (uint64_t)count[0] * (uint64_t)count[1];
}

void cover_add(struct cover *cover, const struct shard *shard)
{
    add_rectangle(cover, shard, shard->slice.begin, shard->slice.count);
}

void cover_add_whole(struct cover *cover, const struct shard *shard)
{
    static const int64_t origin[SHARD_MAX_DIMS] = {0};
    add_rectangle(cover, shard, origin, shard->dim);
}

void cover_join(struct cover *cover, const struct cover *other)
{
    cover->elements += other->elements;
    cover->corners ^= other->corners;
}

bool cover_equal(const struct cover *a, const struct cover *b)
{
    return a->elements == b->elements && a->corners == b->corners;
}
