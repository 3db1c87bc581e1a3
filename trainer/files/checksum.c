// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/checksum.h"

#include "base/status.h"

#ifdef HAVE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> // names the functions below as those that choose
#else
#include <xxhash.h>
#endif

uint64_t checksum_of(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}

/* `struct checksum` wraps the state of the library. */
struct checksum *checksum_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        die_of(NO_MEMORY, "out of memory for a checksum");
    XXH3_64bits_reset(state);
    return (struct checksum *)state;
}

void checksum_add(struct checksum *sum, const void *bytes, size_t length)
{
    XXH3_64bits_update((XXH3_state_t *)sum, bytes, length);
}

uint64_t checksum_now(const struct checksum *sum)
{
    return XXH3_64bits_digest((const XXH3_state_t *)sum);
}

void checksum_free(struct checksum *sum)
{
    XXH3_freeState((XXH3_state_t *)sum);
}
