// SPDX-License-Identifier: Apache-2.0
/* Small messages between steps that every rank receives, through the memory of the gradients. All calls are
 * collective over the world. */
#pragma once

#include "trainer/engine/rank.h"

/* Gathers `words` 32-bit words of every rank into all[world][words]. */
MUST_USE enum status gather_words(struct rank_state *state, const void *mine, int words, void *all);

/* Same with counts[rank] words of each rank, consecutive in `all`. */
MUST_USE enum status gather_lists(struct rank_state *state, const void *mine, const int64_t *counts,
                                  void *all);

/* Broadcasts the text of rank `root`; on other ranks the text is empty before. */
MUST_USE enum status broadcast_text(struct rank_state *state, int root, struct text *text);
