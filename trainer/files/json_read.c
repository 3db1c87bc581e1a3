// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/json_read.h"

#include "base/status.h"

#include <jansson.h>
#include <stdlib.h>

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL && bytes > 0)
        die_of(NO_MEMORY, "out of memory: no %zu bytes to parse JSON; raise the limit (ulimit -v)", bytes);
    return memory;
}

/* Runs before main(), since ranks as threads parse concurrently. */
__attribute__((constructor)) static void set_allocator(void)
{
    json_set_alloc_funcs(allocate, free);
}

json_t *json_read(const char *bytes, size_t length, size_t flags, json_error_t *error)
{
    return json_loadb(bytes, length, flags, error);
}
