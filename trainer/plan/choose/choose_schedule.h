// SPDX-License-Identifier: Apache-2.0
/* The schedule of `pipeline.schedule: auto` with `pipeline.auto_times: plan`:
 *
 *   tapes of one and two layers ── profile ──> F, I, W of each stage, a message ── search ──> schedule
 *                                     └── memory of the device ── fewer microbatches at once ──┘
 *
 * A function of recipe, profile and number of ranks: equal on every rank. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Builds run->schedule. The other members of the run are set. Without a memory limit in the recipe: no limit
 * if the schedule fits; else the largest one for which it does, and the smallest possible one if none does.
 * Times of a recipe whose layers differ in their formats are unknown: all stages take the same then. */
MUST_USE enum status choose_schedule(struct run *run);
