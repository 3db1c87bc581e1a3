// SPDX-License-Identifier: Apache-2.0
#include "layers/recompute.h"

struct recompute_run recompute_run_of(const struct recompute *recompute, int layer_count, int i)
{
    struct recompute_run run = {.first = i, .count = 1};
    switch (recompute->granularity) {
    case RECOMPUTE_NONE:
        return run;
    case RECOMPUTE_SELECTIVE:
        run.modules = recompute->modules;
        return run;
    case RECOMPUTE_FULL:
        break;
    }
    if (recompute->method == RECOMPUTE_BLOCK) {
        run.modules = i < recompute->num_layers ? RECOMPUTE_LAYER : 0;
        return run;
    }
    int64_t length = recompute->num_layers < layer_count ? recompute->num_layers : layer_count;
    run.first = i - (int)(i % length);
    run.count = (int)(length < layer_count - run.first ? length : layer_count - run.first);
    run.modules = RECOMPUTE_LAYER;
    return run;
}
