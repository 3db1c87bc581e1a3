// SPDX-License-Identifier: Apache-2.0
/* The critical path of a predicted step. Private to this folder. */
#pragma once

#include "planner/predict/lanes.h"

/* Marks the spans of the critical path, and adds up its parts. Call it after a simulation with spans. */
void critical_path_find(struct predictor *predictor);
