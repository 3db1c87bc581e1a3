// SPDX-License-Identifier: Apache-2.0
/* The one addition that every CPU transport uses, so that threads and processes give the same bits. */
#pragma once

#include "kernels/tensor.h"
#include "parallel/comm.h"

/* Several arrays added up, element by element in the order in which they come, so cutting an array into
 * pieces changes nothing. bf16 and f16 are added in fp32 and rounded once, at the end:
 *
 *     float room[n];
 *     void *acc = reduce_begin(dtype, out, first, room, n);    out itself, or room where out is too narrow
 *     reduce_into(dtype, how, acc, second, n);                 and so on
 *     reduce_end(dtype, acc, out, n);
 *
 * `first` may be out, and no other array may. Integers wrap. A NaN on either side stays: a maximum must not
 * hide it. */
void *reduce_begin(enum dtype dtype, void *out, const void *first, float *room, int64_t count);
/* acc[i] = acc[i] + x[i], or the greater of the two. */
void reduce_into(enum dtype dtype, enum reduction how, void *acc, const void *x, int64_t count);
void reduce_end(enum dtype dtype, const void *acc, void *out, int64_t count);
