// SPDX-License-Identifier: Apache-2.0
/* The executors of a rank: that of training and evaluation; others of generation, over the same weights. */
#include "trainer/engine/rank_state.h"

struct executor_config rank_executor_config(struct rank_state *w, bool training, int64_t sequences,
                                            int64_t row_tokens)
{
    const struct recipe *recipe = w->run->recipe;
    return (struct executor_config){
        .recipe = recipe,
        .world = w->world,
        .context = {.model = &recipe->model,
                    .options = &recipe->layers,
                    .groups = w->groups,
                    .weights = &w->weights,
                    .compute = w->compute,
                    .tokens = sequences * row_tokens,
                    .sequences = sequences,
                    .working = w->weights.working,
                    .delayed = amax_history_scaling(w->amax),
                    .cache = &w->cache,
                    .loss_scale = w->scale_buffer.data,
                    .seed = recipe->seed},
        .schedule = w->run->schedule,
        .stage_first_layer = w->run->stage_first_layer,
        .training = training,
        .observer = w->run->observer.run_stage_ops != NULL ? &w->run->observer : NULL,
        .log = &w->log,
    };
}
