// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/parallel/comm_narrow.h"

#include "tests/support/narrow/narrow_reference.h"

#include <stdlib.h>

void narrow_sums_round_once(struct rank_test *test)
{
    int n = test->world->size, rank = test->world->rank;
    const int64_t some_counts[] = {3, 2050, 5003};
    for (int c = 0; c < 3; c++) {
        int64_t k = some_counts[c], count = n * k, wrong = 0, early = 0;
        uint16_t *host = malloc((size_t)count * sizeof *host);
        for (int64_t i = 0; i < count; i++)
            host[i] = narrow_nearest(BF16, order_sensitive(rank, i, c));
        struct buffer all = device_copy(test, host, (size_t)count * sizeof *host),
                      in = device_copy(test, host, (size_t)count * sizeof *host),
                      out = device_copy(test, host, (size_t)k * 2);
        EXPECT_OK(test,
                  group_all_reduce(test->all, test->stream, tensor_1d(all.data, BF16, count), REDUCE_SUM));
        EXPECT_OK(test, group_reduce_scatter(test->all, test->stream, tensor_1d(in.data, BF16, count),
                                             tensor_1d(out.data, BF16, k)));
        host_copy(test, &all, host, (size_t)count * sizeof *host);
        uint16_t *mine = malloc((size_t)k * sizeof *mine);
        host_copy(test, &out, mine, (size_t)k * sizeof *mine);
        for (int64_t i = 0; i < count; i++) {
            float sum = (float)narrow_value(BF16, narrow_nearest(BF16, order_sensitive(0, i, c))),
                  twice = sum;
            for (int r = 1; r < n; r++) {
                float x = (float)narrow_value(BF16, narrow_nearest(BF16, order_sensitive(r, i, c)));
                sum += x;
                twice = (float)narrow_value(BF16, narrow_nearest(BF16, twice + x));
            }
            uint16_t want = narrow_nearest(BF16, sum);
            wrong += host[i] != want || (i / k == rank && mine[i % k] != want);
            early += want != narrow_nearest(BF16, twice);
        }
        expect(test, wrong == 0, "sums of %lld bf16: %lld wrong", (long long)count, (long long)wrong);
        expect(test, n == 2 || count < 1000 || early > 0,
               "rounding at each rank would not have been detected");
        buffer_free(&all);
        buffer_free(&in);
        buffer_free(&out);
        free(host);
        free(mine);
    }
}
