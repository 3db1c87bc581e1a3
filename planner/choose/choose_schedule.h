// SPDX-License-Identifier: Apache-2.0
/* Builds the schedule of `pipeline.schedule: auto` with `pipeline.auto_times: plan`:
 *
 *   tapes of one and two layers ── profile ──> F, I, W of each stage, a message ── search ──> schedule
 *                                     └── memory of the device ── fewer microbatches at once ──┘
 *
 * The search knows neither the messages of data parallelism nor the memory that a fused B saves, so the named
 * schedules are planned, too (choose_named.h).
 *
 * The result is a function of recipe, profile and number of ranks, and thus the same on every rank. */
#pragma once

#include "trainer/engine/rank_state.h"

/* Builds run->schedule; the other members of the run must be set. Without a memory limit in the recipe, the
 * search has none if its schedule fits; else the largest limit with which it fits, or the smallest possible
 * one. No named schedule that fits has a shorter plan, except for those that hold weights twice. If layers
 * differ in their formats or windows, their times are unknown, and all stages are assumed to be equal. */
MUST_USE enum status choose_schedule(struct run *run);
