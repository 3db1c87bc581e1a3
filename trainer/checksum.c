// SPDX-License-Identifier: Apache-2.0
#include "trainer/checksum.h"

#include <xxhash.h>

uint64_t checksum_of(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}
