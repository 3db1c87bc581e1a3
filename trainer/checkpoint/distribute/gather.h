// SPDX-License-Identifier: Apache-2.0
/* Messages between steps, through the memory of the gradients. All calls are collective over the world. */
#pragma once

#include "trainer/engine/rank.h"

/* Device memory for messages. Gradients are not needed between steps, so their memory is used: saving and
 * loading do not change the peak of a run. */
struct staging {
    char *data; // device memory
    size_t bytes;
    struct buffer own; // if this rank's gradients are smaller than requested
};

/* Collective: at least `bytes`, aligned to 64. If one rank lacks the memory, all ranks fail. */
MUST_USE enum status staging_open(struct rank_state *state, size_t bytes, struct staging *out);
void staging_close(struct staging *staging); // accepts {0}; all messages must have been waited for

/* Gathers `words` 32-bit words of every rank into all[world][words]. */
MUST_USE enum status gather_words(struct rank_state *state, const void *mine, int words, void *all);

/* Same with counts[rank] words of each rank, consecutive in `all`. */
MUST_USE enum status gather_lists(struct rank_state *state, const void *mine, const int64_t *counts,
                                  void *all);

/* Broadcasts the text of rank `root`; on other ranks the text is empty before. */
MUST_USE enum status broadcast_text(struct rank_state *state, int root, struct text *text);
