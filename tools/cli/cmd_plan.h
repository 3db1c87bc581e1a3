// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "planner/advice/advice.h"
#include "tools/cli/output.h"

enum plan_output { PLAN_SVG, PLAN_TRACE, PLAN_OUTPUTS };

struct plan_options {
    bool json;
    bool ops;                            // also the ops of the rank with the longest compute time
    bool terms;                          // also the memory terms
    bool no_advice;                      // no changes are planned
    struct output outputs[PLAN_OUTPUTS]; // files of the timeline
};

/* Plans a loaded recipe and prints the plan. Returns the exit status: 0 if it fits. */
int plan_recipe(const struct recipe *recipe, const struct advice_source *source,
                const struct plan_options *options);
