// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_blend.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

/* The result of Megatron-LM's build_blending_indices for 0.7 and 0.3, and for 0.5, 0.25, 0.25. */
Test(data_blend, matches_megatron)
{
    const int seven[20] = {0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0};
    const int seven_ordinal[20] = {0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 7, 3, 8, 9, 4, 10, 11, 5, 12, 13};
    const int half[8] = {0, 1, 2, 0, 0, 1, 2, 0};
    struct blend *b = NULL;
    b = blend_create((const double[]){0.7, 0.3}, 2);
    for (int i = 0; i < 20; i++) {
        int source;
        uint64_t ordinal;
        blend_at(b, (uint64_t)i, &source, &ordinal);
        cr_assert(source == seven[i] && ordinal == (uint64_t)seven_ordinal[i], "sample %d", i);
    }
    blend_destroy(b);
    b = blend_create((const double[]){2, 1, 1}, 3);
    for (int i = 0; i < 8; i++) {
        int source;
        uint64_t ordinal;
        blend_at(b, (uint64_t)i, &source, &ordinal);
        cr_assert_eq(source, half[i]);
    }
    blend_destroy(b);
}

/* Each source's samples are counted without gaps, and its share deviates by a few at most. */
static void check_blend(const double *weights, int count, int64_t samples)
{
    struct blend *b = NULL;
    double sum = 0.0;
    for (int k = 0; k < count; k++)
        sum += weights[k];
    b = blend_create(weights, count);
    uint64_t *given = calloc((size_t)count, sizeof *given);
    for (int64_t i = 0; i < samples; i++) {
        int source;
        uint64_t ordinal;
        blend_at(b, (uint64_t)i, &source, &ordinal);
        cr_assert_eq(ordinal, given[source], "sample %d", (int)i);
        given[source]++;
        int64_t period, share = blend_share(b, source, &period);
        double due = (double)share / (double)period * (double)(i + 1);
        cr_assert(fabs((double)share / (double)period - weights[source] / sum) < 1.0 / 1048576.0);
        cr_assert(fabs((double)given[source] - due) < 1.0 + log(count), "sample %d: %d given, %g due", (int)i,
                  (int)given[source], due);
    }
    int64_t *counts = calloc((size_t)count, sizeof *counts);
    blend_counts(b, samples, counts);
    for (int k = 0; k < count; k++)
        cr_assert_eq(counts[k], (int64_t)given[k]);
    free(counts);
    free(given);
    blend_destroy(b);
}

Test(data_blend, shares_match_the_weights)
{
    check_blend((const double[]){1.0}, 1, 100);
    check_blend((const double[]){1.0, 1.0, 1.0}, 3, 1000);
    check_blend((const double[]){0.999, 0.001}, 2, 5000);
    check_blend((const double[]){0.0334, 0.1212, 0.8454}, 3, 40000);
    check_blend((const double[]){1.0, sqrt(2.0), 3.14159265358979}, 3, 2500000); // more than a period
    check_blend((const double[]){1e-300, 1e-300}, 2, 100);
    check_blend((const double[]){1e307, 5e307, 1e308}, 3, 1000);
    double many[50];
    for (int k = 0; k < 50; k++)
        many[k] = 1.0 / (k + 1);
    check_blend(many, 50, 200000);
}

Test(data_blend, tiny_weights_are_kept)
{
    struct blend *b = NULL;
    int64_t period;
    b = blend_create((const double[]){1e-12, 1.0, 1e-12}, 3);
    cr_assert(blend_share(b, 0, &period) == 1 && blend_share(b, 2, &period) == 1);
    cr_assert_eq(blend_share(b, 1, &period), period - 2);
    blend_destroy(b);
}
