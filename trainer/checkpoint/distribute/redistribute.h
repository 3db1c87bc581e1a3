// SPDX-License-Identifier: Apache-2.0
/* Loads parameters and moments so that all ranks together read each element of the checkpoint once
 * (load_plan.h) and send it to the other ranks that hold it. For each parameter and state, in the
 * order of the model:
 *
 *     rank 0    reads rows 0..40     sends the columns of rank 1       receives its columns of rows 40..80
 *     rank 1    reads rows 40..80    sends the columns of rank 0       receives its columns of rows 0..40
 *
 * A rank reads ahead, so that all of them read at the same time. Messages use the memory of the
 * gradients. */
#pragma once

#include "trainer/checkpoint/reader.h"
#include "trainer/engine/rank.h"

/* Collective; every rank passes the same checkpoint, with the shapes of the recipe. with_moments: also
 * the optimizer's moments. On failure, a rank returns its own error, and the others the same status; the
 * state is then unusable. */
MUST_USE enum status redistribute_load(struct rank_state *state, struct checkpoint_reader *source,
                                       bool with_moments);
