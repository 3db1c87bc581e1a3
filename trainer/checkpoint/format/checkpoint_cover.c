// SPDX-License-Identifier: Apache-2.0
/* Counts for each corner point the rectangles with a corner there. If these counts are odd at the four
 * corners of the whole and even everywhere else, the number of rectangles over an element (the counts are its
 * second difference) is odd inside the whole, so at least 1; if in addition the areas add up to that of the
 * whole, it is exactly 1. */
#include "trainer/checkpoint/format/checkpoint_cover.h"

#include <stdlib.h>

struct corner {
    int64_t row, column;
};

static int by_place(const void *a, const void *b)
{
    const struct corner *x = a, *y = b;
    int order = (x->row > y->row) - (x->row < y->row);
    return order != 0 ? order : (x->column > y->column) - (x->column < y->column);
}

/* True if the shard is non-empty and inside its tensor; *elements: of the whole tensor. */
static bool is_sound(const struct shard *shard, int64_t *elements)
{
    for (int d = 0; d < SHARD_MAX_DIMS; d++)
        if (shard->begin[d] < 0 || shard->count[d] < 1 || shard->begin[d] > shard->dim[d] ||
            shard->count[d] > shard->dim[d] - shard->begin[d])
            return false;
    return !__builtin_mul_overflow(shard->dim[0], shard->dim[1], elements);
}

static bool same_whole(const struct shard *a, const struct shard *b)
{
    return a->ndim == b->ndim && a->dtype == b->dtype && a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1];
}

/* Checks for odd counts at the corners of the whole and even counts elsewhere. The four corners of the whole
 * are added once, so that all counts must be even. */
static bool corners_agree(struct corner *corners, int64_t count)
{
    qsort(corners, (size_t)count, sizeof *corners, by_place);
    for (int64_t i = 0, same; i < count; i += same) {
        for (same = 1; i + same < count && by_place(&corners[i], &corners[i + same]) == 0;)
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
        if (!is_sound(&shards[i], &whole) || !same_whole(&shards[i], &shards[0]))
            return fail(BAD_CHECKPOINT, "%s: a shard of %s exceeds its shape", path, shards[i].name);
    for (int i = 0; i < count; i++)
        if (__builtin_add_overflow(covered, shard_elements(&shards[i]), &covered) || covered > whole)
            return fail(BAD_CHECKPOINT, "%s: two shards of %s overlap", path, shards[0].name);
    if (covered != whole)
        return fail(BAD_CHECKPOINT, "%s: the shards of %s contain %lld of its %lld elements", path,
                    shards[0].name, (long long)covered, (long long)whole);
    struct corner *corners = calloc((size_t)count + 1, 4 * sizeof *corners);
    if (corners == NULL)
        return fail(NO_MEMORY, "%s: no memory for the shards of %s", path, shards[0].name);
    add_corners(corners, origin, shards[0].dim);
    for (int i = 0; i < count; i++)
        add_corners(corners + 4 * ((int64_t)i + 1), shards[i].begin, shards[i].count);
    bool agree = corners_agree(corners, 4 * ((int64_t)count + 1));
    free(corners);
    return agree ? OK : fail(BAD_CHECKPOINT, "%s: two shards of %s overlap", path, shards[0].name);
}
