// SPDX-License-Identifier: Apache-2.0
/* The shard of a named tensor on a rank. One dimension is split into `parts` consecutive shares of ceil(n
 * / parts) indices; the last shares may be shorter, or empty. In memory each share is padded to ceil(n /
 * parts), rounded up to `multiple`. Padding does not move the boundaries, so sums over shares do not
 * depend on it. If there are fewer parts than ranks on the axis, `replicas` neighbouring ranks hold the
 * same share (key/value heads under a larger tp).
 *
 *     V 50257, tp 4:           shares of 12565 rows; the last holds 12562 and pads 3
 *     4 kv heads, tp 8:        parts 4, replicas 2: ranks 0,1 -> share 0, ranks 2,3 -> share 1, ...
 *
 * Pure arithmetic. */
#pragma once

#include "parallel/mesh.h"

#include <stdint.h>

struct sharding {
    int dim;          // dimension of the tensor
    int axes;         // AXIS_...: mesh axis along which it is sharded; exactly one
    int parts;        // shares
    int replicas;     // ranks that hold each share; parts * replicas is the axis' degree
    int64_t multiple; // a share is padded to a multiple of this many indices; 1: no padding
};

enum { SHARD_MAX_DIMS = 2 };

/* This rank's rectangle of a global tensor of one or two dimensions. */
struct slice {
    int ndim;
    int64_t begin[SHARD_MAX_DIMS];
    int64_t count[SHARD_MAX_DIMS];  // indices without padding
    int64_t padded[SHARD_MAX_DIMS]; // indices in memory, with padding
    bool first_replica;             // first of all ranks that hold this share, along every axis but data
};

struct slice shard_slice(int ndim, const int64_t *dim, const struct sharding *shardings, int sharding_count,
                         struct mesh_coord coord);

/* Invariants; BAD_ARGUMENT names the violated one. Of a sharding of a tensor with `ndim` dimensions: an
 * existing dimension, one axis, at least one part, replica and multiple. Of a slice of a tensor with `dim`:
 * within the tensor, memory for at least as many indices as it has, and one index in unused dimensions. */
MUST_USE enum status sharding_check(const struct sharding *cut, int ndim);
MUST_USE enum status slice_check(const struct slice *slice, const int64_t *dim);

int64_t slice_count(const struct slice *slice);  // elements without padding
int64_t slice_padded(const struct slice *slice); // elements in memory
