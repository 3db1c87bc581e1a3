// SPDX-License-Identifier: Apache-2.0
/* Which part of a named tensor a rank holds. One dimension is cut into `parts` consecutive shares of
 * ceil(n / parts) indices; the last shares may be short, or empty. In memory each share is padded to
 * ceil(n / parts), rounded up to `multiple`: padding does not move the cuts, so sums over shares do not
 * depend on it. Where parts are fewer than the ranks on the axis, `replicas` neighbouring
 * ranks hold the same share (key/value heads under a larger tp).
 *     V 50257, tp 4:           shares of 12565 rows; the last holds 12562 and pads 3
 *     4 kv heads, tp 8:        parts 4, replicas 2: ranks 0,1 -> share 0, ranks 2,3 -> share 1, ...
 * Pure arithmetic. */
#pragma once

#include "parallel/mesh.h"

#include <stdint.h>

struct cut {
    int dim;          // which dimension
    int axes;         // AXIS_...: along which axis of the mesh it is cut; one axis
    int parts;        // shares
    int replicas;     // ranks that hold each share; parts * replicas is the axis' degree
    int64_t multiple; // a share is padded to a multiple of this many indices; 1 where nothing asks for more
};

enum { SHARD_MAX_DIMS = 2 };

/* This rank's rectangle of a global tensor of one or two dimensions. */
struct slice {
    int ndim;
    int64_t begin[SHARD_MAX_DIMS];
    int64_t count[SHARD_MAX_DIMS];  // indices that exist
    int64_t padded[SHARD_MAX_DIMS]; // indices in memory: count, or more
    bool first; // of all ranks that hold this very share, along every axis but data, the first
};

struct slice shard_slice(int ndim, const int64_t *dim, const struct cut *cuts, int cut_count,
                         struct place place);

int64_t slice_count(const struct slice *slice);  // elements that exist
int64_t slice_padded(const struct slice *slice); // elements in memory
