// SPDX-License-Identifier: Apache-2.0
/* The one addition that every CPU transport uses, so that threads and processes give the same bits. */
#pragma once

#include "kernels/tensor.h"
#include "parallel/comm.h"

/* acc[i] = acc[i] + x[i], or the greater of the two. Element by element, so cutting an array into pieces
 * changes nothing. Integers wrap. A NaN on either side stays: a maximum must not hide it. */
void reduce_into(enum dtype dtype, enum reduction how, void *acc, const void *x, int64_t count);
