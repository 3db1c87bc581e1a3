// SPDX-License-Identifier: Apache-2.0
/* One step of a run compared by `verify`: of the layout, of one rank, or of one rank in perturbed
 * arithmetic. */
#pragma once

#include "trainer/engine/snapshot.h"
#include "trainer/verify/verify.h"

struct verify_run {
    int64_t steps_done;           // before this step
    const struct snapshot *begin; // NULL: the initial weights
    struct snapshot *initial;     // NULL: not requested
    struct snapshot *end;
    double loss_scale; // 0: none
    bool skipped;      // overflow: `end` is not set
    int draw;          // seed of the perturbations; 0: exact arithmetic. Only then is `end` complete,
                       // otherwise it has gradients and the loss
};

MUST_USE enum status verify_run(const struct verify_side *side, struct step_observer observer,
                                struct verify_run *step);
