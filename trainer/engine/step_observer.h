// SPDX-License-Identifier: Apache-2.0
/* Observers of a rank: called when the rank is created and at several points of each step. `verify` and tests
 * observe a run with them, or inject faults; the saver of checkpoints takes part in steps with one. The step
 * has no code for any of them. */
#pragma once

#include "trainer/engine/stage_ops.h"
#include "trainer/optimizer/optimizer.h"

struct rank_state;

/* Each function may be NULL. `step` counts from 1; evaluation batches are loaded with step 0. */
struct step_observer {
    void *context;
    /* Parameters are declared, but no memory is allocated. */
    enum status (*on_params_declared)(void *context, struct rank_state *state);
    enum status (*on_weights_initialized)(void *context, struct rank_state *state);
    /* The microbatches of the step are on the device. */
    enum status (*on_batches_loaded)(void *context, struct rank_state *state, int64_t step);
    /* The schedule is complete, and gradients are reduced over data ranks. */
    enum status (*on_gradients_reduced)(void *context, struct rank_state *state, int64_t step);
    /* Gradients are also reduced over tensor ranks and tied weights. */
    enum status (*on_gradients_complete)(void *context, struct rank_state *state, int64_t step);
    /* Around the update of weights and moments. After it, the look-ahead of the next step may have begun. */
    enum status (*before_update)(void *context, struct rank_state *state, int64_t step);
    enum status (*after_update)(void *context, struct rank_state *state, int64_t step);
    /* The next step has not begun. */
    enum status (*on_step_end)(void *context, struct rank_state *state, int64_t step,
                               const struct step_result *result);
    /* Runs in place of stage_ops_run(), which it may call, in training steps. One observer at most has it. */
    enum status (*run_stage_ops)(void *context, const struct stage_ops *ops, struct graph **graph);
    const struct step_observer *next; // set by rank_observe()
};

/* Calls a function of each observer of the rank that has it. */
#define NOTIFY_OBSERVERS(state, function, ...)                                           \
    for (const struct step_observer *o_ = (state)->observers; o_ != NULL; o_ = o_->next) \
    TRY(o_->function != NULL ? o_->function(o_->context, state, ##__VA_ARGS__) : OK)
