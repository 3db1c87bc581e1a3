// SPDX-License-Identifier: Apache-2.0
#include "trainer/generate/sampler.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The example of sampler.h: 0.644 0.237 0.087 0.032, with the ids shuffled, so that ids are not sorted by
 * probability. */
enum { IDS = 4, DRAWS = 20000 };
static const float example[IDS] = {0.0F, 2.0F, -1.0F, 1.0F};

static int32_t draw(struct sampling sampling, const float *logits, int64_t count, int64_t index)
{
    struct sampler *sampler = NULL;
    int32_t id = -1;
    cr_assert_eq(sampler_create(&sampling, count, &sampler), OK, "%s", fail_text());
    cr_assert_eq(sampler_draw(sampler, logits, 0, index, &id), OK, "%s", fail_text());
    sampler_destroy(sampler);
    return id;
}

/* How often each id of the example is sampled in DRAWS draws. */
static void count_draws(struct sampling sampling, int counts[IDS])
{
    struct sampler *sampler = NULL;
    memset(counts, 0, IDS * sizeof *counts);
    cr_assert_eq(sampler_create(&sampling, IDS, &sampler), OK);
    for (int64_t i = 0; i < DRAWS; i++) {
        int32_t id = -1;
        cr_assert_eq(sampler_draw(sampler, example, 0, i, &id), OK);
        cr_assert(id >= 0 && id < IDS);
        counts[id]++;
    }
    sampler_destroy(sampler);
}

/* Counts are binomial: six standard deviations, exceeded by a correct sampler once in 10^9 tests. An id of
 * probability 0 must never occur. */
static void expect_shares(struct sampling sampling, const double shares[IDS])
{
    int counts[IDS];
    count_draws(sampling, counts);
    for (int i = 0; i < IDS; i++) {
        double bound = 6.0 * sqrt(DRAWS * shares[i] * (1.0 - shares[i]));
        cr_expect(fabs(counts[i] - DRAWS * shares[i]) <= bound,
                  "id %d was sampled %d times, expected %.0f +- %.0f", i, counts[i], DRAWS * shares[i],
                  bound);
    }
}

/* e^(logit / temperature), normalized over the kept ids. */
static void shares_of(double temperature, const bool kept[IDS], double shares[IDS])
{
    double sum = 0.0;
    for (int i = 0; i < IDS; i++)
        sum += kept[i] ? exp((double)example[i] / temperature) : 0.0;
    for (int i = 0; i < IDS; i++)
        shares[i] = kept[i] ? exp((double)example[i] / temperature) / sum : 0.0;
}

Test(sampler, draws_the_models_distribution)
{
    const bool all[IDS] = {true, true, true, true};
    const double temperatures[] = {1.0, 0.5, 3.0};
    for (int t = 0; t < 3; t++) {
        double shares[IDS];
        shares_of(temperatures[t], all, shares);
        expect_shares((struct sampling){.temperature = temperatures[t], .top_p = 1.0, .seed = 5}, shares);
    }
}

Test(sampler, top_k_keeps_the_most_likely)
{
    const bool two[IDS] = {false, true, false, true};
    double shares[IDS];
    shares_of(1.0, two, shares);
    expect_shares((struct sampling){.temperature = 1.0, .top_k = 2, .top_p = 1.0, .seed = 6}, shares);
}

Test(sampler, top_p_keeps_the_smallest_sufficient_set)
{
    const bool three[IDS] = {true, true, false, true}, two[IDS] = {false, true, false, true},
               one[IDS] = {false, true, false, false};
    double shares[IDS];
    shares_of(1.0, three, shares); // 0.644 + 0.237 is 0.881: the third is needed
    expect_shares((struct sampling){.temperature = 1.0, .top_p = 0.9, .seed = 7}, shares);
    shares_of(1.0, two, shares);
    expect_shares((struct sampling){.temperature = 1.0, .top_p = 0.88, .seed = 8}, shares);
    shares_of(1.0, one, shares);
    expect_shares((struct sampling){.temperature = 1.0, .top_p = 0.64, .seed = 9}, shares);
    // Of the two that top-k leaves, the first alone has 0.731.
    expect_shares((struct sampling){.temperature = 1.0, .top_k = 2, .top_p = 0.7, .seed = 10}, shares);
    // The temperature comes first: at 0.5 the first alone has 0.867.
    expect_shares((struct sampling){.temperature = 0.5, .top_p = 0.86, .seed = 11}, shares);
}

Test(sampler, temperature_zero_is_greedy)
{
    for (int64_t i = 0; i < 100; i++) {
        cr_assert_eq(
            draw((struct sampling){.temperature = 0.0, .top_p = 1.0, .seed = (uint64_t)i}, example, IDS, i),
            1);
        cr_assert_eq(draw((struct sampling){.temperature = 5.0, .top_k = 1, .top_p = 1.0}, example, IDS, i),
                     1);
        cr_assert_eq(draw((struct sampling){.temperature = 5e-324, .top_p = 1.0}, example, IDS, i), 1);
    }
}

Test(sampler, ties_go_to_the_lower_id)
{
    const float equal[6] = {-1.0F, 3.0F, 0.0F, 3.0F, 3.0F, -2.0F};
    for (int64_t i = 0; i < 200; i++) {
        int32_t first = draw((struct sampling){.temperature = 1.0, .top_k = 1, .top_p = 1.0}, equal, 6, i);
        int32_t second = draw((struct sampling){.temperature = 1.0, .top_k = 2, .top_p = 1.0}, equal, 6, i);
        cr_assert_eq(draw((struct sampling){.temperature = 0.0, .top_p = 1.0}, equal, 6, i), 1);
        cr_assert_eq(first, 1);
        cr_assert(second == 1 || second == 3);
    }
}

Test(sampler, a_draw_is_a_function_of_seed_and_index)
{
    const struct sampling a = {.temperature = 1.0, .top_p = 1.0, .seed = 1},
                          b = {.temperature = 1.0, .top_p = 1.0, .seed = 2};
    struct sampler *sampler = NULL;
    int differ = 0, moved = 0;
    cr_assert_eq(sampler_create(&a, IDS, &sampler), OK);
    for (int64_t i = 199; i >= 0; i--) { // in reverse: earlier draws do not matter
        int32_t id = -1;
        cr_assert_eq(sampler_draw(sampler, example, 0, i, &id), OK);
        cr_assert_eq(id, draw(a, example, IDS, i));
        differ += id != draw(b, example, IDS, i);
        moved += id != draw(a, example, IDS, i + 1);
    }
    sampler_destroy(sampler);
    cr_assert_gt(differ, 0);
    cr_assert_gt(moved, 0);
}

Test(sampler, large_logits_do_not_overflow)
{
    const float large[3] = {3e38F, 2.9e38F, -3e38F};
    for (int64_t i = 0; i < 20; i++)
        cr_assert_eq(draw((struct sampling){.temperature = 1e3, .top_p = 1.0}, large, 3, i), 0);
}

Test(sampler, rejects_nan_logits)
{
    struct sampler *sampler = NULL;
    const float bad[2][3] = {{0.0F, NAN, 1.0F}, {0.0F, 1.0F, INFINITY}};
    const double temperatures[] = {0.0, 1.0};
    int32_t id = 77;
    for (int t = 0; t < 2; t++) {
        cr_assert_eq(
            sampler_create(&(struct sampling){.temperature = temperatures[t], .top_p = 1.0}, 3, &sampler),
            OK);
        for (int b = 0; b < 2; b++)
            cr_assert_eq(sampler_draw(sampler, bad[b], 0, 0, &id), NOT_FINITE);
        sampler_destroy(sampler);
    }
    cr_assert_eq(id, 77);
    cr_assert_str_eq(fail_text(), "the logit of id 2 is inf: the weights are not usable");
}

Test(sampler, rejects_options_out_of_range)
{
    const struct sampling bad[] = {
        {.temperature = -1.0, .top_p = 1.0},
        {.temperature = NAN, .top_p = 1.0},
        {.temperature = INFINITY, .top_p = 1.0},
        {.temperature = 1.0, .top_p = 0.0},
        {.temperature = 1.0, .top_p = 1.5},
        {.temperature = 1.0, .top_p = NAN},
        {.temperature = 1.0, .top_p = 1.0, .top_k = -1},
    };
    struct sampler *sampler = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(sampler_create(&bad[i], 3, &sampler), BAD_ARGUMENT, "case %zu", i);
    cr_assert_eq(sampler_create(&(struct sampling){.top_p = 1.0}, 0, &sampler), BAD_ARGUMENT);
    cr_assert_null(sampler);
    sampler_destroy(NULL);
}
