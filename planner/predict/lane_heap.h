// SPDX-License-Identifier: Apache-2.0
/* Busy lanes, ordered by the time at which they end: a binary heap in struct predictor. Private to this
 * folder. */
#pragma once

#include "planner/predict/lanes.h"

void lane_heap_push(struct predictor *predictor, struct lane *lane);
struct lane *lane_heap_pop(struct predictor *predictor);
void lane_heap_update(struct predictor *predictor, struct lane *lane); // its end_s changed
