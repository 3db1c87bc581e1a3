// SPDX-License-Identifier: Apache-2.0
/* Host memory, and what is freed at the end of a scope.
 *
 * A program that cannot get its memory ends with status 1 and a line that says what it was for: after launch
 * no rank could continue without the others, and before it there is nothing else to do. Only where a file, a
 * library or the command line dictates the size is that an error (malloc() and fail()).
 *
 *     struct entry *entries = memory_zeroed(count, sizeof *entries, "the entries of a table");
 *     AUTO(text) line = {0};      // text_free(&line) at the end of the scope, also by TRY() and return
 *     AUTO_FREE int *order = memory_zeroed(count, sizeof *order, "an order");
 *
 * Caution: what is AUTO and also given away is freed twice; set it to NULL or {0} then. */
#pragma once

#include <stddef.h>
#include <stdlib.h>

/* Memory for `count` elements, zeroed; free() releases it. Not NULL, also for no elements. what: "the slots
 * of a rank". */
__attribute__((returns_nonnull, malloc)) void *memory_zeroed(size_t count, size_t element_bytes,
                                                             const char *what);
/* realloc() to `count` elements; new ones are not zeroed. */
__attribute__((returns_nonnull)) void *memory_resized(void *memory, size_t count, size_t element_bytes,
                                                      const char *what);

static inline void memory_free_at(void *pointer)
{
    free(*(void **)pointer);
}
#define AUTO_FREE  __attribute__((cleanup(memory_free_at)))
#define AUTO(type) __attribute__((cleanup(type##_free))) struct type
