// SPDX-License-Identifier: Apache-2.0
#include "parallel/shard.h"

static int coordinate(struct mesh_coord coord, int axis)
{
    switch (axis) {
    case AXIS_TP:
        return coord.tp;
    case AXIS_CP:
        return coord.cp;
    case AXIS_EP:
        return coord.ep;
    case AXIS_DP:
        return coord.dp;
    case AXIS_PP:
        return coord.pp;
    }
    die(__FILE__, __LINE__, "sharding", "a dimension is sharded along one mesh axis, not %d", axis);
}

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

enum status sharding_check(const struct sharding *cut, int ndim)
{
    if (cut->dim < 0 || cut->dim >= ndim)
        return fail(BAD_ARGUMENT, "sharding: there is no dimension %d of %d", cut->dim, ndim);
    if (cut->axes != AXIS_TP && cut->axes != AXIS_CP && cut->axes != AXIS_EP && cut->axes != AXIS_DP &&
        cut->axes != AXIS_PP)
        return fail(BAD_ARGUMENT, "sharding: a dimension is sharded along one mesh axis, not %d", cut->axes);
    if (cut->parts < 1 || cut->replicas < 1 || cut->multiple < 1)
        return fail(BAD_ARGUMENT, "sharding: %d parts, %d replicas, multiples of %lld; each is at least 1",
                    cut->parts, cut->replicas, (long long)cut->multiple);
    return OK;
}

enum status slice_check(const struct slice *slice, const int64_t *dim)
{
    if (slice->ndim < 1 || slice->ndim > SHARD_MAX_DIMS)
        return fail(BAD_ARGUMENT, "slice: %d dimensions; the maximum is %d", slice->ndim, SHARD_MAX_DIMS);
    for (int i = 0; i < SHARD_MAX_DIMS; i++) {
        int64_t begin = slice->begin[i], count = slice->count[i], whole = i < slice->ndim ? dim[i] : 1;
        if (begin < 0 || count < 0 || begin > whole || count > whole - begin)
            return fail(BAD_ARGUMENT, "slice: [%lld, %lld) of dimension %d is not within %lld indices",
                        (long long)begin, (long long)(begin + count), i, (long long)whole);
        if (slice->padded[i] < count)
            return fail(BAD_ARGUMENT, "slice: %lld indices of dimension %d have memory for %lld",
                        (long long)count, i, (long long)slice->padded[i]);
        if (i >= slice->ndim && (count != 1 || slice->padded[i] != 1))
            return fail(BAD_ARGUMENT, "slice: the unused dimension %d has %lld indices", i,
                        (long long)slice->padded[i]);
    }
    return OK;
}

struct slice shard_slice(int ndim, const int64_t *dim, const struct sharding *shardings, int sharding_count,
                         struct mesh_coord coord)
{
    CHECK(ndim >= 1 && ndim <= SHARD_MAX_DIMS);
    struct slice slice = {.ndim = ndim, .first_replica = true};
    for (int i = 0; i < SHARD_MAX_DIMS; i++)
        slice.count[i] = slice.padded[i] = i < ndim ? dim[i] : 1;

    bool tp_seen = false;
    for (int c = 0; c < sharding_count; c++) {
        const struct sharding *sharding = &shardings[c];
        MUST(sharding_check(sharding, ndim));
        int index = coordinate(coord, sharding->axes), part = index / sharding->replicas;
        CHECK(part < sharding->parts);
        int64_t whole = dim[sharding->dim];
        int64_t share = (whole + sharding->parts - 1) / sharding->parts;
        int64_t begin = share * part < whole ? share * part : whole;
        int64_t end = begin + share < whole ? begin + share : whole;
        slice.begin[sharding->dim] = begin;
        slice.count[sharding->dim] = end - begin;
        slice.padded[sharding->dim] = round_up(share, sharding->multiple);
        slice.first_replica = slice.first_replica && index % sharding->replicas == 0;
        tp_seen = tp_seen || sharding->axes == AXIS_TP;
    }
    // A tensor that is not sharded over tp is replicated over tp; the first tp rank is its primary.
    slice.first_replica = slice.first_replica && (tp_seen || coord.tp == 0);
    MUST(slice_check(&slice, dim));
    return slice;
}

int64_t slice_count(const struct slice *slice)
{
    return slice->count[0] * slice->count[1];
}

int64_t slice_padded(const struct slice *slice)
{
    return slice->padded[0] * slice->padded[1];
}
