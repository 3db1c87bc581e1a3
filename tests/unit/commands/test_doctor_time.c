// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_time.h"

#include "tools/cli/doctor/doctor_messages.h"

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

/* At 3 us and 1 GB/s two ranks exchange 1000 bytes in 4 us, and eight on two cores in four times as long. */
Test(doctor_time, messages_take_as_long_as_their_copies)
{
    struct cluster_profile *profile = profile_create();
    const struct profile_sample short_one = {.shape = {2, 1, 1000}, .value = 1e-7},
                                crowded = {.shape = {2, 1, 1000}, .node_ranks = 8, .value = 1e-7},
                                long_one = {.shape = {2, 1, 1000}, .value = 5e-6},
                                gather = {.shape = {4, 1, 4000}, .value = 1e-7};
    profile->device.cores = 2;
    profile->node.link_latency_s = 3e-6;
    profile->node.link_bandwidth = 1e9;
    profile_add_sample(profile, MEASURED_P2P, &short_one);
    profile_add_sample(profile, MEASURED_P2P, &crowded);
    profile_add_sample(profile, MEASURED_P2P, &long_one);
    profile_add_sample(profile, MEASURED_ALL_GATHER, &gather);
    profile_add_sample(profile, MEASURED_ALL_REDUCE, &gather);
    doctor_raise_messages(profile);
    const struct profile_sample *p2p = profile->measured[MEASURED_P2P].list;
    cr_expect_float_eq(p2p[0].value, 4e-6, 1e-12);
    cr_expect_float_eq(p2p[1].value, 16e-6, 1e-12);
    cr_expect_float_eq(p2p[2].value, 5e-6, 1e-12);
    cr_expect_float_eq(profile->measured[MEASURED_ALL_GATHER].list[0].value, 2.0 * (3e-6 + 3e-6), 1e-12);
    cr_expect_float_eq(profile->measured[MEASURED_ALL_REDUCE].list[0].value, 2.0 * (3e-6 + 6e-6), 1e-12);
    profile_destroy(profile);
}
