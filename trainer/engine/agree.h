// SPDX-License-Identifier: Apache-2.0
/* Outcomes that may differ from rank to rank, such as those of a disk, made one. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Collective over the worker's world. OK when every rank brings OK; else the status of the lowest rank that
 * does not, with its fail_text(), on every rank. */
MUST_USE enum status rank_agree(struct rank_state *state, enum status mine);

/* Collective: each value becomes its maximum over the ranks. */
enum { AGREE_MAX_VALUES = 8 };
MUST_USE enum status rank_agree_max(struct rank_state *state, double *values, int count);

/* Collective: the words of the first rank, on every rank; at most AGREE_MAX_VALUES. */
MUST_USE enum status rank_share(struct rank_state *state, uint32_t *words, int count);
