// SPDX-License-Identifier: Apache-2.0
/* Collective agreement on outcomes that may differ between ranks, such as the result of a file operation. */
#pragma once

#include "trainer/engine/rank.h"

/* Collective over the world. Returns OK if every rank passes OK; otherwise every rank returns the status and
 * the fail_text() of the lowest rank that failed. */
MUST_USE enum status rank_agree(struct rank_state *state, enum status mine);

/* Collective: replaces each value by its maximum over all ranks. */
enum { AGREE_MAX_VALUES = 8 };
MUST_USE enum status rank_agree_max(struct rank_state *state, double *values, int count);

/* Collective: replaces `bytes` of data, which has no pointers, by those of rank `root`; for small data,
 * through the buffer of the step statistics. */
MUST_USE enum status rank_broadcast(struct rank_state *state, int root, void *data, size_t bytes);
