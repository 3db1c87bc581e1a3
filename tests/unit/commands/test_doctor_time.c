// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_time.h"

#include <criterion/criterion.h>
#include <string.h>

enum { MOST = 6 };

static void expect_rising(const double *before, const double *after, int count)
{
    double values[MOST];
    memcpy(values, before, (size_t)count * sizeof *values);
    doctor_make_rising(values, count);
    for (int i = 0; i < count; i++)
        cr_expect_float_eq(values[i], after[i], 1e-12, "%d of %d: %g", i, count, values[i]);
}

/* Neighbors that fall become their mean, also with what was pooled before them. */
Test(doctor_time, rising)
{
    expect_rising((double[]){1, 2, 2, 5}, (double[]){1, 2, 2, 5}, 4);
    expect_rising((double[]){1, 4, 2, 5}, (double[]){1, 3, 3, 5}, 4);
    expect_rising((double[]){6, 4, 2, 5}, (double[]){4, 4, 4, 5}, 4);
    expect_rising((double[]){6, 4, 2, 0}, (double[]){3, 3, 3, 3}, 4);
    expect_rising((double[]){1, 9, 7, 2, 4, 20}, (double[]){1, 5.5, 5.5, 5.5, 5.5, 20}, 6);
    expect_rising((double[]){3, 1, 2, -4}, (double[]){0.5, 0.5, 0.5, 0.5}, 4);
    expect_rising((double[]){7}, (double[]){7}, 1);
}
