// SPDX-License-Identifier: Apache-2.0
/* Bucket boundaries in the flat gradient: every element is covered once, boundaries are at blocks only,
 * sizes are as even as blocks allow, and tied tensors are cut alike. */
#include "base/philox.h"
#include "parallel/bucket_plan.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { MAX_RANGES = 24, ROUNDS = 400 };

/* Ranges of random lengths, blocks and units, some in a bucket of their own; returns their number. */
static int draw(uint64_t round, struct bucket_range ranges[MAX_RANGES])
{
    uint32_t word[4];
    struct philox generator = philox_named(round, "bucket_plan");
    philox_words(generator, 0, 0, word);
    int count = 1 + (int)(word[0] % MAX_RANGES), unit = 0;
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        philox_words(generator, 1, (uint64_t)i, word);
        int64_t length = word[0] % 3 == 0 ? word[1] % 20 : word[1] % 20000;
        at += word[2] % 16;
        unit += word[2] % 4 == 0;
        ranges[i] = (struct bucket_range){.begin = at,
                                          .end = at + length,
                                          .block = 1 + word[3] % 1500,
                                          .unit = unit,
                                          .alone = word[3] % 7 == 0};
        at += length;
    }
    return count;
}

/* The longest part of a bucket without an allowed boundary. */
static int64_t longest_block(const struct bucket *bucket, const struct bucket_range *ranges)
{
    int64_t longest = 0;
    for (int i = bucket->first; i < bucket->first + bucket->count; i++) {
        int64_t length = ranges[i].end - ranges[i].begin,
                gap = i > bucket->first ? ranges[i].begin - ranges[i - 1].end : 0;
        length = length < ranges[i].block ? length : ranges[i].block;
        longest = length + gap > longest ? length + gap : longest;
    }
    return longest;
}

static bool may_cut(const struct bucket *bucket, const struct bucket_range *ranges, int64_t at)
{
    for (int i = bucket->first; i < bucket->first + bucket->count; i++)
        if (at > ranges[i].begin && at < ranges[i].end)
            return (at - ranges[i].begin) % ranges[i].block == 0;
    return true;
}

static void check_bucket(const struct bucket *bucket, const struct bucket_range *ranges, int ranks)
{
    int64_t share = (bucket->end - bucket->begin) / ranks, slack = longest_block(bucket, ranges) + 1;
    cr_assert_eq(bucket_slice_begin(bucket, 0), bucket->begin);
    cr_assert_eq(bucket_slice_begin(bucket, ranks), bucket->end);
    for (int r = 0; r < ranks; r++) {
        cr_assert_geq(bucket->counts[r], 0);
        cr_assert(may_cut(bucket, ranges, bucket_slice_begin(bucket, r)));
        cr_assert_leq(llabs(bucket->counts[r] - share), slack, "%lld of %lld", (long long)bucket->counts[r],
                      (long long)share);
    }
}

Test(bucket_plan, cuts_at_blocks_and_evenly)
{
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct bucket_range ranges[MAX_RANGES];
        struct bucket_plan plan;
        int count = draw(round, ranges), ranks = 1 + (int)(round % 9), seen = 0;
        int64_t bytes = round % 3 == 0 ? 1 : round % 3 == 1 ? 100000 : INT64_MAX;
        cr_assert_eq(bucket_plan_create(ranges, count, bytes, ranks, &plan), OK, "%s", fail_text());
        for (int b = 0; b < plan.count; b++) {
            const struct bucket *bucket = &plan.buckets[b];
            cr_assert_eq(bucket->first, seen);
            cr_assert_eq(bucket->begin, ranges[seen].begin);
            seen += bucket->count;
            cr_assert_eq(bucket->end, ranges[seen - 1].end);
            for (int i = bucket->first; i < seen; i++) {
                cr_assert_eq(plan.bucket_of[i], b);
                cr_assert_eq(ranges[i].unit, ranges[bucket->first].unit);
                cr_assert(!ranges[i].alone || bucket->count == 1);
            }
            check_bucket(bucket, ranges, ranks);
        }
        cr_assert_eq(seen, count);
        bucket_plan_destroy(&plan);
    }
}

/* Independent of its offset and its neighbors. */
Test(bucket_plan, single_tensors_are_cut_the_same_way)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        struct bucket_range first[] = {{.end = 5000, .block = 96, .alone = true},
                                       {.begin = 5008, .end = 9000, .block = 7}};
        struct bucket_range second[] = {{.end = 333, .block = 11},
                                        {.begin = 336, .end = 5336, .block = 96, .alone = true}};
        struct bucket_plan a, b;
        cr_assert_eq(bucket_plan_create(first, 2, INT64_MAX, ranks, &a), OK);
        cr_assert_eq(bucket_plan_create(second, 2, 1, ranks, &b), OK);
        cr_assert(a.count == 2 && b.count == 2);
        for (int r = 0; r < ranks; r++)
            cr_assert_eq(a.buckets[0].counts[r], b.buckets[1].counts[r]);
        bucket_plan_destroy(&a);
        bucket_plan_destroy(&b);
    }
}

/* ---- invariants ---- */

static void expect_detected(const struct bucket_plan *plan, const char *words)
{
    cr_expect_eq(bucket_plan_check(plan), BAD_ARGUMENT, "%s was not detected", words);
    cr_expect_str_eq(fail_text(), words);
}

/* One field is changed, and restored. */
#define BREAK(field, value, words)                  \
    do {                                            \
        __typeof__(field) kept_ = (field);          \
        (field) = (value);                          \
        expect_detected(&plan, words);              \
        (field) = kept_;                            \
        cr_assert_eq(bucket_plan_check(&plan), OK); \
    } while (0)

Test(bucket_plan, detects_an_inconsistent_plan)
{
    const struct bucket_range ranges[] = {{.end = 100, .block = 10},
                                          {.begin = 104, .end = 200, .block = 8},
                                          {.begin = 200, .end = 260, .block = 1}};
    struct bucket_plan plan;
    cr_assert_eq(bucket_plan_create(ranges, 3, 4 * 150, 2, &plan), OK);
    cr_assert(plan.count == 2 && plan.buckets[1].first == 2 && bucket_plan_check(&plan) == OK);
    BREAK(plan.buckets[1].first, 1, "bucket 1: ranges [1, 2) do not follow the first 2 of 3");
    BREAK(plan.buckets[1].count, 2, "bucket 1: ranges [2, 4) do not follow the first 2 of 3");
    BREAK(plan.buckets[0].count, 0, "bucket 0: ranges [0, 0) do not follow the first 0 of 3");
    BREAK(plan.count, 1, "buckets: 2 of 3 ranges are in a bucket");
    BREAK(plan.bucket_of[1], 1, "bucket 0: its range 1 is recorded in bucket 1");
    BREAK(plan.buckets[1].begin, 199, "bucket 1: [199, 260) does not follow element 200");
    BREAK(plan.buckets[1].end, 199, "bucket 1: [200, 199) does not follow element 200");
    int64_t *counts = plan.buckets[0].counts;
    cr_assert_eq(counts[0] + counts[1], 200);
    BREAK(counts[1], counts[1] - 10, "bucket 0: 10 elements belong to no rank");
    BREAK(counts[0], 201, "bucket 0: 201 elements for rank 0, of which 200 are left");
    BREAK(counts[0], -1, "bucket 0: -1 elements for rank 0, of which 200 are left");
    bucket_plan_destroy(&plan);
}
