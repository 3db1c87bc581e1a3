// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include "base/text.h"

static _Noreturn void end_without(size_t count, size_t element_bytes, const char *what)
{
    size_t bytes;
    char size[NUMBER_CHARS] = "more than fits in an address";
    if (!__builtin_mul_overflow(count, element_bytes, &bytes) && bytes <= INT64_MAX)
        bytes_text((int64_t)bytes, size);
    die_of(NO_MEMORY, "out of memory: %s for %s", size, what);
}

void *memory_zeroed(size_t count, size_t element_bytes, const char *what)
{
    void *memory = calloc(count > 0 ? count : 1, element_bytes);
    if (memory == NULL)
        end_without(count, element_bytes, what);
    return memory;
}

void *memory_resized(void *memory, size_t count, size_t element_bytes, const char *what)
{
    void *resized = reallocarray(memory, count > 0 ? count : 1, element_bytes);
    if (resized == NULL)
        end_without(count, element_bytes, what);
    return resized;
}
