// SPDX-License-Identifier: Apache-2.0
/* How many cases tests run. Under a sanitizer code runs ten to thirty times slower, and repetitions find
 * nothing more: tests may do fewer. tools/test runs a sample of the combinations, `tools/soak long` all. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

#if !defined(__has_feature)
#define __has_feature(name) 0 // gcc 13 and before
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
enum { UNDER_ASAN = 1 };
#else
enum { UNDER_ASAN = 0 };
#endif

enum { UNDER_SANITIZER = UNDER_TSAN || UNDER_ASAN };

/* The number of random cases to run. */
static inline int sampled(int count)
{
    return UNDER_SANITIZER ? count / 5 : count;
}

/* All combinations. */
static inline bool long_tests(void)
{
    return !UNDER_SANITIZER && getenv("CUBOID_LONG_TESTS") != NULL;
}
