// SPDX-License-Identifier: Apache-2.0
/* One step of a run that `verify` compares: of the layout, of one rank, or of one rank in perturbed
 * arithmetic. */
#pragma once

#include "trainer/engine/snapshot.h"

struct episode {
    int64_t steps_done;           // before
    const struct snapshot *begin; // NULL: from the initial weights
    struct snapshot *initial;     // NULL: not wanted
    struct snapshot *end;
    double loss_scale; // 0: none
    bool skipped;      // it was too large, and there is no end
    int draw;          // which perturbations; 0: exact arithmetic, and only then is `end` whole: else it has
                       // gradients and the loss
};

MUST_USE enum status episode_play(const struct recipe *recipe, struct hooks hooks, struct episode *episode);
