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
    die(__FILE__, __LINE__, "cut", "a cut names one axis, not %d", axis);
}

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

struct slice shard_slice(int ndim, const int64_t *dim, const struct cut *cuts, int cut_count,
                         struct mesh_coord coord)
{
    CHECK(ndim >= 1 && ndim <= SHARD_MAX_DIMS);
    struct slice slice = {.ndim = ndim, .first = true};
    for (int i = 0; i < SHARD_MAX_DIMS; i++)
        slice.count[i] = slice.padded[i] = i < ndim ? dim[i] : 1;

    bool tp_seen = false;
    for (int c = 0; c < cut_count; c++) {
        const struct cut *cut = &cuts[c];
        int index = coordinate(coord, cut->axes), part = index / cut->replicas;
        CHECK(part < cut->parts && cut->dim < ndim);
        int64_t whole = dim[cut->dim];
        int64_t share = (whole + cut->parts - 1) / cut->parts;
        int64_t begin = share * part < whole ? share * part : whole;
        int64_t end = begin + share < whole ? begin + share : whole;
        slice.begin[cut->dim] = begin;
        slice.count[cut->dim] = end - begin;
        slice.padded[cut->dim] = round_up(share, cut->multiple);
        slice.first = slice.first && index % cut->replicas == 0;
        tp_seen = tp_seen || cut->axes == AXIS_TP;
    }
    // A tensor that tp does not cut is replicated over tp; the first tp rank is its primary.
    slice.first = slice.first && (tp_seen || coord.tp == 0);
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
