// SPDX-License-Identifier: Apache-2.0
/* From the gradients that a step has left to the next weights:
 *
 *   partial sums   rows whose gradient is partial over tp, or over replicated key/value heads
 *   ties           each use's gradient, complete on its own, embedding + head
 *   squares        of every parameter, once: block by block, then the blocks in order; the first holder of
 *                  each share speaks for it
 *   all-reduce     losses, tokens and squares over the world, each number from one rank: exact in any order
 *   clip           the factor for the gradients: 1 / tokens, and clipping
 *   adamw          on what this rank owns, which with ZeRO is a slice (layers/parameters/weights.h)
 *   gather         everyone's new slices
 *
 * With a loss scale (loss_scale.h) the factor takes it away again, and a step whose norm is not finite
 * changes nothing, on any rank: the flag is set and read on the device.
 *
 * Nothing is read by the host until the step is over. Losses, tokens and squares are added in index order
 * (sample, parameter, share), so the norm has the same bits on every pipeline layout.
 *
 * The trap: a number that two ranks contribute is counted twice, and only training would show it. */
#pragma once

#include "kernels/ops.h"
#include "layers/parameters/weights.h"
#include "parallel/group.h"
#include "trainer/recipe/recipe.h"

struct optimizer;

/* What is known of a step when it is over. */
struct step_result {
    double loss, grad_norm, tokens; // per token; before clipping; of the global batch
    float gradient_scale;           // what AdamW multiplied the summed gradients by
    double loss_scale;              // what they had been multiplied by; 1 without one
    bool skipped;                   // they overflowed in f16, and the update was none
    int not_finite_row;             // the first parameter whose gradient is not finite; -1: none
    int not_finite_share;           // which tensor-parallel share of it
    int rollbacks;                  // pipeline ranks that took their update back (post_validation.h)
};

struct optimizer_config {
    const struct recipe_optimizer *recipe;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    int64_t global_batch_size;
    uint64_t seed;           // of stochastic rounding, where weights have no masters
    bool offload;            // the moments are in the host's memory (moment_window.h)
    const float *loss_scale; // on the device; NULL: none
};

MUST_USE enum status optimizer_create(const struct optimizer_config *config, struct optimizer **out);
void optimizer_destroy(struct optimizer *optimizer);

/* Where the head puts the losses and tokens of `count` samples from `index` of the global batch on:
 * f64[count] each. Only tp rank 0 of the last stage speaks; the others get a place that nobody reads. */
MUST_USE enum status optimizer_begin(struct optimizer *optimizer);
void optimizer_loss_place(struct optimizer *optimizer, int64_t index, int64_t count, struct tensor *loss,
                          struct tensor *tokens);

/* The reductions: afterwards the gradients are sums over all tokens of the global batch, on every owner. */
MUST_USE enum status optimizer_reduce(struct optimizer *optimizer);
/* The update. `step` counts from 1, and only updates that were made. */
MUST_USE enum status optimizer_update(struct optimizer *optimizer, int64_t step);
/* Waits for the step, and reads what it was. */
MUST_USE enum status optimizer_finish(struct optimizer *optimizer, struct step_result *out);

/* Sums losses and tokens only: for an evaluation, between optimizer_begin and optimizer_finish. */
MUST_USE enum status optimizer_reduce_losses(struct optimizer *optimizer);

/* The scalars of AdamW at `step`, formed in double precision and rounded to fp32 once each; gradient_scale
 * and skip are 0, since they follow from the gradients. */
struct adamw_hyper optimizer_hyper(const struct recipe_optimizer *recipe, int64_t step);

/* The pieces of the above, for an update in another order (post_validation.h). A report is f64: loss[G],
 * tokens[G], squares[rows * tp]; this one is of the rank itself until it is reduced. */
struct tensor optimizer_report(const struct optimizer *optimizer);
MUST_USE enum status optimizer_set_hyper(struct optimizer *optimizer, int64_t step); // all but the scale
/* The scale that a report asks for, with tokens f64[G]: its own, or those that are known without it. */
MUST_USE enum status optimizer_set_scale(struct optimizer *optimizer, struct tensor report,
                                         struct tensor tokens);
MUST_USE enum status optimizer_apply(struct optimizer *optimizer); // AdamW, gather
/* Waits, and reads what the last scale was made of; `report` says where a gradient is not finite. */
MUST_USE enum status optimizer_read(struct optimizer *optimizer, struct tensor report,
                                    struct step_result *out);
