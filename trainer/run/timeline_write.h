// SPDX-License-Identifier: Apache-2.0
/* Timeline files of a step in the run directory: timeline-step-N.json, a trace for Perfetto or
 * chrome://tracing in the format of `cuboid schedule --trace`, and timeline-step-N.svg. Both show the
 * measured timeline next to a simulation of the same lists with the measured mean times; a difference is an
 * effect that mean times cannot explain. Both have rows for the messages, copies and the optimizer of each
 * rank (timeline_rows.h). The trace has one process group per pipeline of the mesh; the picture shows the
 * first pipeline. */
#pragma once

#include "trainer/engine/rank.h"

/* Returns whether the recipe selects this step for a timeline. */
bool timeline_wanted(const struct recipe *recipe, int64_t step);

/* Writes the timeline of the last step. Collective over the world; rank 0 writes. */
MUST_USE enum status timeline_write(struct rank_state *state);
