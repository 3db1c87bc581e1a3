// SPDX-License-Identifier: Apache-2.0
#include "parallel/bucket_plan.h"

#include "base/memory.h"

#include <stdlib.h>

static enum status check_ranges(const struct bucket_range *ranges, int count)
{
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (ranges[i].begin < at || ranges[i].end < ranges[i].begin)
            return fail(BAD_ARGUMENT, "buckets: range %d [%lld, %lld) is out of order", i,
                        (long long)ranges[i].begin, (long long)ranges[i].end);
        at = ranges[i].end;
    }
    return OK;
}

/* Closes a bucket after each range that makes it large enough, and before and after ranges marked `alone`. */
static void lay_out(struct bucket_plan *plan, const struct bucket_range *ranges, int64_t bucket_bytes)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->range_count; i++) {
        bool apart =
            i > 0 && (ranges[i].alone || ranges[i - 1].alone || ranges[i].unit != ranges[i - 1].unit);
        if (i == 0 || apart || bytes >= bucket_bytes) {
            plan->buckets[plan->count++] = (struct bucket){.first = i, .begin = ranges[i].begin};
            bytes = 0;
        }
        struct bucket *bucket = &plan->buckets[plan->count - 1];
        bucket->end = ranges[i].end;
        bucket->count++;
        plan->bucket_of[i] = plan->count - 1;
        bytes += (ranges[i].end - ranges[i].begin) * (int64_t)sizeof(float);
    }
}

/* Returns the allowed slice boundary in this range that is nearest to `target`. */
static int64_t boundary_in(const struct bucket_range *range, int64_t target)
{
    int64_t inside = target - range->begin, low = 0, high = range->end - range->begin;
    if (range->block > 0) {
        low = inside / range->block * range->block;
        high = low + range->block < high ? low + range->block : high;
    }
    return range->begin + (inside - low <= high - inside ? low : high);
}

/* Returns the slice boundary nearest to `target`: monotonic, from the bucket's begin to its end. */
static int64_t boundary_near(const struct bucket *bucket, const struct bucket_range *ranges, int64_t target)
{
    for (int i = bucket->first; i < bucket->first + bucket->count; i++)
        if (target < ranges[i].end)
            return target <= ranges[i].begin ? ranges[i].begin : boundary_in(&ranges[i], target);
    return bucket->end;
}

static void assign_slices(struct bucket_plan *plan, const struct bucket_range *ranges)
{
    int64_t *counts = plan->counts;
    for (int b = 0; b < plan->count; b++) {
        struct bucket *bucket = &plan->buckets[b];
        // Quotient and remainder separately: elements * ranks could overflow.
        int64_t all = bucket->end - bucket->begin, share = all / plan->ranks, rest = all % plan->ranks;
        int64_t at = bucket->begin;
        bucket->counts = counts;
        for (int r = 0; r < plan->ranks; r++) {
            int64_t target = bucket->begin + share * (r + 1) + rest * (r + 1) / plan->ranks;
            int64_t end = r + 1 < plan->ranks ? boundary_near(bucket, ranges, target) : bucket->end;
            *counts++ = end - at;
            at = end;
        }
    }
}

static enum status check_slices(const struct bucket_plan *plan, int index)
{
    const struct bucket *bucket = &plan->buckets[index];
    int64_t left = bucket->end - bucket->begin;
    for (int r = 0; r < plan->ranks; r++) {
        if (bucket->counts[r] < 0 || bucket->counts[r] > left)
            return fail(BAD_ARGUMENT, "bucket %d: %lld elements for rank %d, of which %lld are left", index,
                        (long long)bucket->counts[r], r, (long long)left);
        left -= bucket->counts[r];
    }
    return left == 0
               ? OK
               : fail(BAD_ARGUMENT, "bucket %d: %lld elements belong to no rank", index, (long long)left);
}

enum status bucket_plan_check(const struct bucket_plan *plan)
{
    int ranges = 0;
    int64_t at = 0;
    for (int b = 0; b < plan->count; b++) {
        const struct bucket *bucket = &plan->buckets[b];
        if (bucket->first != ranges || bucket->count < 1 || bucket->count > plan->range_count - ranges)
            return fail(BAD_ARGUMENT, "bucket %d: ranges [%d, %d) do not follow the first %d of %d", b,
                        bucket->first, bucket->first + bucket->count, ranges, plan->range_count);
        for (int i = ranges; i < ranges + bucket->count; i++)
            if (plan->bucket_of[i] != b)
                return fail(BAD_ARGUMENT, "bucket %d: its range %d is recorded in bucket %d", b, i,
                            plan->bucket_of[i]);
        if (bucket->begin < at || bucket->end < bucket->begin)
            return fail(BAD_ARGUMENT, "bucket %d: [%lld, %lld) does not follow element %lld", b,
                        (long long)bucket->begin, (long long)bucket->end, (long long)at);
        TRY(check_slices(plan, b));
        ranges += bucket->count;
        at = bucket->end;
    }
    return ranges == plan->range_count
               ? OK
               : fail(BAD_ARGUMENT, "buckets: %d of %d ranges are in a bucket", ranges, plan->range_count);
}

enum status bucket_plan_create(const struct bucket_range *ranges, int count, int64_t bucket_bytes, int ranks,
                               struct bucket_plan *out)
{
    if (bucket_bytes < 1 || count < 0 || ranks < 1)
        return fail(BAD_ARGUMENT, "buckets of %lld bytes for %d ranges and %d ranks", (long long)bucket_bytes,
                    count, ranks);
    TRY(check_ranges(ranges, count));
    size_t n = (size_t)count + 1;
    struct bucket_plan plan = {
        .ranks = ranks,
        .range_count = count,
        .buckets = memory_zeroed(n, sizeof *plan.buckets, "buckets"),
        .bucket_of = memory_zeroed(n, sizeof *plan.bucket_of, "buckets"),
    };
    lay_out(&plan, ranges, bucket_bytes);
    plan.counts =
        memory_zeroed((size_t)(plan.count + 1) * (size_t)ranks, sizeof *plan.counts, "gradient ranges");
    assign_slices(&plan, ranges);
    enum status status = bucket_plan_check(&plan);
    if (status == OK)
        *out = plan;
    else
        bucket_plan_destroy(&plan);
    return status;
}

void bucket_plan_destroy(struct bucket_plan *plan)
{
    free(plan->buckets);
    free(plan->bucket_of);
    free(plan->counts);
    *plan = (struct bucket_plan){0};
}

int64_t bucket_slice_begin(const struct bucket *bucket, int rank)
{
    int64_t at = bucket->begin;
    for (int r = 0; r < rank; r++)
        at += bucket->counts[r];
    return at;
}
