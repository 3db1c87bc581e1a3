// SPDX-License-Identifier: Apache-2.0
/* The data of a run that resumes: compared with those of its checkpoint, and continued in their order. */
#pragma once

#include "trainer/checkpoint/checkpoint_source.h"

/* On rank 0: reports what has changed, and appends the text of the order of the data to `order`
 * (data_resume.h). BAD_DATA with data.strict. */
MUST_USE enum status checkpoint_data_check(const struct rank_state *state,
                                           const struct checkpoint_source *source, struct text *order);

/* Collective: all ranks continue with the order of rank 0. */
MUST_USE enum status checkpoint_data_continue(struct rank_state *state, struct text *order);
