// SPDX-License-Identifier: Apache-2.0
/* Invariants of shardings and slices: violations are detected. (Shards of real tensors: test_param.c.) */
#include "parallel/shard.h"

#include <criterion/criterion.h>

static const int64_t dim[] = {50257, 8};
static const struct sharding rows = {.dim = 0, .axes = AXIS_TP, .parts = 4, .replicas = 1, .multiple = 1};

static void expect_detected(enum status status, const char *words)
{
    cr_expect_eq(status, BAD_ARGUMENT, "%s was not detected", words);
    cr_expect_str_eq(fail_text(), words);
}

Test(shard, detects_an_inconsistent_cut)
{
    struct sharding bad = rows;
    cr_assert_eq(sharding_check(&rows, 2), OK);
    bad.dim = 2;
    expect_detected(sharding_check(&bad, 2), "sharding: there is no dimension 2 of 2");
    bad.dim = -1;
    expect_detected(sharding_check(&bad, 2), "sharding: there is no dimension -1 of 2");
    bad = rows;
    bad.axes = AXIS_TP | AXIS_DP;
    expect_detected(sharding_check(&bad, 2), "sharding: a dimension is sharded along one mesh axis, not 9");
    bad = rows;
    bad.parts = 0;
    expect_detected(sharding_check(&bad, 2),
                    "sharding: 0 parts, 1 replicas, multiples of 1; each is at least 1");
    bad = rows;
    bad.replicas = 0;
    expect_detected(sharding_check(&bad, 2),
                    "sharding: 4 parts, 0 replicas, multiples of 1; each is at least 1");
    bad = rows;
    bad.multiple = 0;
    expect_detected(sharding_check(&bad, 2),
                    "sharding: 4 parts, 1 replicas, multiples of 0; each is at least 1");
}

Test(shard, detects_an_inconsistent_slice)
{
    const struct slice good = shard_slice(2, dim, &rows, 1, (struct mesh_coord){.tp = 3});
    cr_assert(slice_check(&good, dim) == OK && good.begin[0] == 37695 && good.count[0] == 12562);
    struct slice bad = good;
    bad.ndim = 0;
    expect_detected(slice_check(&bad, dim), "slice: 0 dimensions; the maximum is 2");
    bad = good;
    bad.begin[0]++;
    expect_detected(slice_check(&bad, dim),
                    "slice: [37696, 50258) of dimension 0 is not within 50257 indices");
    bad = good;
    bad.begin[1] = -1;
    expect_detected(slice_check(&bad, dim), "slice: [-1, 7) of dimension 1 is not within 8 indices");
    bad = good;
    bad.count[1] = -1;
    expect_detected(slice_check(&bad, dim), "slice: [0, -1) of dimension 1 is not within 8 indices");
    bad = good;
    bad.padded[0] = 12561;
    expect_detected(slice_check(&bad, dim), "slice: 12562 indices of dimension 0 have memory for 12561");
    bad = good;
    bad.ndim = 1; // its columns are no longer those of a dimension
    expect_detected(slice_check(&bad, dim), "slice: [0, 8) of dimension 1 is not within 1 indices");
    bad.count[1] = 1;
    expect_detected(slice_check(&bad, dim), "slice: the unused dimension 1 has 8 indices");
}
