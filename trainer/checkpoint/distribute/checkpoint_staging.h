// SPDX-License-Identifier: Apache-2.0
/* Device memory for messages between steps. Gradients are not needed then, so their memory is used: saving
 * and loading do not change the peak of a run. */
#pragma once

#include "trainer/engine/rank.h"

struct staging {
    char *data; // device memory
    size_t bytes;
    struct buffer own; // if this rank's gradients are smaller than requested
};

/* Collective: at least `bytes`, aligned to 64. If one rank lacks the memory, all ranks fail. */
MUST_USE enum status staging_open(struct rank_state *state, size_t bytes, struct staging *out);
void staging_close(struct staging *staging); // accepts {0}; all messages must have been waited for
