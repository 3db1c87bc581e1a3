// SPDX-License-Identifier: Apache-2.0
/* Refuses a resilience.heartbeat_timeout_seconds that is certainly shorter than an action, before step 0. */
#pragma once

#include "trainer/recipe/recipe.h"

/* Seconds that the longest forward pass of a microbatch takes at least: the FLOPs of its layers' matrix
 * multiplications at a rate that no device reaches. 0: unknown, since messages interrupt it. */
double timeout_least_action_s(const struct recipe *recipe);

/* BAD_RECIPE names the key, its value, and valid ones. */
MUST_USE enum status timeout_check(const struct recipe *recipe);
