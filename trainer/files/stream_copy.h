// SPDX-License-Identifier: Apache-2.0
/* memcpy() past the caches: for a destination that is not read soon, from a source that is in a cache. The
 * destination is not read before it is written, as by memcpy(), which does so only for large sizes. */
#pragma once

#include "trainer/files/checksum.h"

void stream_copy(void *to, const void *from, size_t bytes);

/* Returns the checksum of `bytes` at `from`, and copies `length` of them, from `begin` on, in the same pass.
 * Also for a source that is in no cache: its next lines are loaded during the checksum of the last ones.
 * `sum` from checksum_begin() is overwritten. */
uint64_t stream_copy_checksum(struct checksum *sum, const void *from, size_t bytes, size_t begin,
                              size_t length, void *to);
