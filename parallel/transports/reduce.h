// SPDX-License-Identifier: Apache-2.0
/* Reductions shared by all CPU transports, so that threads and processes give identical bits. */
#pragma once

#include "kernels/tensor.h"
#include "parallel/comm.h"

/* Reduces several arrays element by element in call order; splitting an array into chunks changes nothing.
 * bf16 and f16 are accumulated in fp32 and rounded once, at the end:
 *
 *     float buffer[n];
 *     void *acc = reduce_begin(dtype, out, first, buffer, n);    out itself, or buffer if out is too narrow
 *     reduce_into(dtype, how, acc, second, n);                 and so on
 *     reduce_end(dtype, acc, out, n);
 *
 * `first` may alias out; other arrays may not. Integers wrap. NaN on either side propagates, also through a
 * maximum. */
void *reduce_begin(enum dtype dtype, void *out, const void *first, float *buffer, int64_t count);
/* acc[i] = acc[i] + x[i], or their maximum. */
void reduce_into(enum dtype dtype, enum reduction how, void *acc, const void *x, int64_t count);
void reduce_end(enum dtype dtype, const void *acc, void *out, int64_t count);
