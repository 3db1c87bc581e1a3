// SPDX-License-Identifier: Apache-2.0
/* The memory of a slot (progress.h). In a header of its own, because C++ has no _Atomic. */
#pragma once

#include "base/progress.h"

#include <stdatomic.h>

enum { PROGRESS_WORDS = sizeof(struct rank_progress) / sizeof(uint64_t) };
struct progress_slot {
    _Atomic uint64_t version; // odd while the writer is inside
    _Atomic uint64_t words[PROGRESS_WORDS];
};
