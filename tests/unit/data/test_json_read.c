// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/json_read.h"

#include "base/text.h"
#include "tests/support/sanitized.h"

#include <criterion/criterion.h>
#include <sys/resource.h>
#include <unistd.h>

/* A million empty arrays, for which jansson allocates more than 100 MB. */
static void add_arrays(struct text *out)
{
    text_add(out, "[[]");
    for (int i = 1; i < 1000000; i++)
        text_add_bytes(out, ",[]", 3);
    text_add(out, "]");
}

static void limit_memory(size_t more)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    cr_assert_eq(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}), 0);
}

/* Valid JSON: without memory for it the program exits, and does not return NULL. */
Test(json_read, out_of_memory_is_not_invalid_json, .exit_code = 1)
{
    if (UNDER_ASAN || UNDER_TSAN) // these reserve their own address space
        _exit(1);
    struct text text = {0};
    add_arrays(&text);
    limit_memory(32 << 20);
    _exit(json_read(text_chars(&text), text.length, 0, NULL) == NULL ? 2 : 0);
}

Test(json_read, invalid_json_gives_null)
{
    cr_assert_null(json_read("[1,", 3, 0, NULL));
}

/* A million empty objects would take 250 MB. */
Test(json_read, refuses_tiny_objects)
{
    struct text text = {0};
    text_add(&text, "[{}");
    for (int i = 0; i < 1000000; i++)
        text_add_bytes(&text, ",{}", 3);
    text_add(&text, "]");
    cr_assert_null(json_read(text_chars(&text), text.length, 0, NULL));
    text_free(&text);
}
