// SPDX-License-Identifier: Apache-2.0
/* The timeline of a step in the run's folder: timeline-step-N.json, a trace for Perfetto or chrome://tracing
 * in the form of `cuboid schedule --trace`, and timeline-step-N.svg. In both, what was measured stands beside
 * what the simulator says of the same lists with the mean times that were measured; a difference is what no
 * mean explains. The trace has a group of processes for each pipeline of the mesh, the picture the first. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Whether the recipe wants the timeline of this step. */
bool timeline_wanted(const struct recipe *recipe, int64_t step);

/* Of the last step. Collective over the world; rank 0 writes. */
MUST_USE enum status timeline_write(struct rank_state *state);
