// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>
#include <stdlib.h>

static inline int quantile_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* The quantile q (0 to 1) of the values, interpolated; sorts them in place. NAN without values. */
static inline double quantile(double *values, size_t count, double q)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof *values, quantile_order);
    const double at = q * (double)(count - 1);
    const size_t below = (size_t)at, above = below + 1 < count ? below + 1 : below;
    return values[below] + (at - (double)below) * (values[above] - values[below]);
}
