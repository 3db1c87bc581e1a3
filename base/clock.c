// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

double clock_s(void)
{
    return 1e-9 * (double)clock_ns();
}
