// SPDX-License-Identifier: Apache-2.0
/* Compares a searched schedule with the named ones of the same size, by their plans:
 *
 *   named schedules ── memory formula ──> lower bound of the step ── shortest first ──> plan ──> the shortest
 *
 * A named schedule is planned only if its bound (sweep/sweep_bound.h) is below the shortest plan so far. */
#pragma once

#include "planner/profile/profile.h"
#include "trainer/engine/rank_state.h"

/* Replaces run->schedule by the named schedule with the shortest predicted step that fits, if its step is
 * shorter or run->schedule does not fit. Schedules that hold weights twice are not considered. A run that
 * cannot be planned keeps its schedule. NO_MEMORY. */
MUST_USE enum status choose_named(struct run *run, const struct cluster_profile *profile);
/* Replaces run->schedule by `other` if its planned step is shorter, or only it fits; destroys the one that is
 * not kept. A run that cannot be planned keeps its schedule. NO_MEMORY. */
MUST_USE enum status choose_shorter(struct run *run, const struct cluster_profile *profile,
                                    struct schedule *other);
