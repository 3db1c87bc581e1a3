// SPDX-License-Identifier: Apache-2.0
/* From the gradients of a step to the next weights:
 *
 *   partial sums   all-reduce gradients that are partial over tp, or over replicated key/value heads
 *   ties           embedding + head: add the gradients of both uses, each of which is complete
 *   squares        of every parameter, counted once: per block, then the blocks in order; reported by the
 *                  first holder of each share
 *   all-reduce     losses, tokens and squares over the world; each entry has one contributor, so any
 *                  reduction order is exact
 *   clip           factor on the gradients: 1 / tokens, and clipping
 *   adamw          on the parameters that this rank owns: with ZeRO, a slice (layers/parameters/weights.h)
 *   gather         all-gather the updated slices
 *
 * With loss scaling (loss_scale.h) the factor also removes the scale, and a step with a non-finite norm
 * changes nothing on any rank: the flag is set and read on the device.
 *
 * The host reads nothing before the end of the step. Losses, tokens and squares are summed in index order
 * (sample, parameter, share), so the norm is bit-identical on every pipeline layout.
 *
 * Caution: an entry with two contributors is counted twice, which only shows in training. */
#pragma once

#include "kernels/ops.h"
#include "layers/parameters/weights.h"
#include "parallel/group.h"
#include "trainer/recipe/recipe.h"

struct optimizer;

/* The result of a step. */
struct step_result {
    double loss, grad_norm, tokens; // per token; before clipping; in the global batch
    float gradient_scale;           // factor applied by AdamW to the summed gradients
    double loss_scale;              // factor on the gradients before that; 1 without loss scaling
    bool skipped;                   // fp16 gradient overflow: no update
    int not_finite_param;           // the first parameter with a non-finite gradient; -1: none
    int not_finite_share;           // its tensor-parallel share
    int rollbacks;                  // pipeline ranks that rolled back their update (post_validation.h)
};

struct optimizer_config {
    const struct recipe_optimizer *recipe;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    int64_t global_batch_size;
    uint64_t seed;           // of stochastic rounding, if there are no master weights
    bool offload;            // moments are in host memory (moment_window.h)
    const float *loss_scale; // on the device; NULL without loss scaling
};

MUST_USE enum status optimizer_create(const struct optimizer_config *config, struct optimizer **out);
void optimizer_destroy(struct optimizer *optimizer);

/* Buffers in which the head stores losses and tokens of `count` samples, starting at sample `index` of the
 * global batch: f64[count] each. Only tp rank 0 of the last stage reports; the others get a scratch
 * buffer. */
MUST_USE enum status optimizer_begin(struct optimizer *optimizer);
void optimizer_loss_slots(struct optimizer *optimizer, int64_t index, int64_t count, struct tensor *loss,
                          struct tensor *tokens);

/* Adds partial sums over tp and the gradients of tied weights: afterwards the gradients are sums over all
 * tokens of the global batch, on every owner. */
MUST_USE enum status optimizer_complete_gradients(struct optimizer *optimizer);
/* Writes the squares of the gradients into this rank's report. */
MUST_USE enum status optimizer_report_squares(struct optimizer *optimizer);
/* Reduces the report over the world, sets the gradient scale, and updates the weights. `step` counts the
 * updates, from 1. */
MUST_USE enum status optimizer_update(struct optimizer *optimizer, int64_t step);
/* Synchronizes at the end of the step, and reads its result. */
MUST_USE enum status optimizer_finish(struct optimizer *optimizer, struct step_result *out);

/* Reduces the report over the world and computes the result: all of an evaluation, between
 * optimizer_begin() and optimizer_finish(). The squares are those of the report, zeros without
 * optimizer_report_squares(). */
MUST_USE enum status optimizer_reduce_report(struct optimizer *optimizer);

/* The scalars of AdamW at `step`, computed in double precision and rounded to fp32 once; gradient_scale and
 * skip are 0, since they depend on the gradients. */
struct adamw_hyper optimizer_hyper(const struct recipe_optimizer *recipe, int64_t step);

/* Parts of the above, for post-validation (post_validation.h). A report is f64: loss[G], tokens[G],
 * squares[rows * tp]; this one contains only the entries of this rank until it is reduced. */
struct tensor optimizer_report(const struct optimizer *optimizer);
MUST_USE enum status optimizer_set_hyper(struct optimizer *optimizer,
                                         int64_t step); // all except the gradient scale
/* Computes loss, norm and gradient scale from a report, on the device. tokens: f64[G], those of the report,
 * or known without it. */
MUST_USE enum status optimizer_compute_result(struct optimizer *optimizer, struct tensor report,
                                              struct tensor tokens);
MUST_USE enum status optimizer_apply(struct optimizer *optimizer); // AdamW, gather
/* Synchronizes, and reads the result that belongs to the last gradient scale; `report` locates a non-finite
 * gradient. */
MUST_USE enum status optimizer_read(struct optimizer *optimizer, struct tensor report,
                                    struct step_result *out);
