// SPDX-License-Identifier: Apache-2.0
/* memcpy() past the caches: for a destination that is not read soon, from a source that is in a cache. The
 * destination is not read before it is written, as by memcpy(), which does so only for large sizes. */
#pragma once

#include <stddef.h>

void stream_copy(void *to, const void *from, size_t bytes);
