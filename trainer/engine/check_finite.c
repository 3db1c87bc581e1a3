// SPDX-License-Identifier: Apache-2.0
/* Which gradient or loss is not finite, and what helps. */
#include "trainer/engine/rank_state.h"

#include <math.h>

/* What diverges most often. */
#define DIVERGED                                                                  \
    "resume from an earlier checkpoint with a lower optimizer.lr (%g), a longer " \
    "optimizer.lr_warmup_iters or a lower optimizer.clip_grad (%g)"

/* The first rank that holds this tensor-parallel share of a row. */
static int rank_of_row(const struct rank_state *w, int row, int share)
{
    const struct run *run = w->run;
    struct mesh_coord coord = {.tp = share, .pp = run_rank_of_layer(run, w->params.list[row].layer)};
    return mesh_rank(&run->mesh, w->params.list[row].mesh, coord);
}

/* Reports a gradient overflow that a smaller loss scale would avoid. */
static enum status overflow_error(const struct rank_state *w, const struct step_result *result,
                                  const char *name)
{
    const struct loss_scale *scale = &w->loss_scale;
    int rank = rank_of_row(w, result->not_finite_row, result->not_finite_share);
    if (scale->fixed)
        return fail(
            NOT_FINITE,
            "step %lld: the gradient of %s is not finite on rank %d, after %d consecutive skipped steps: "
            "precision.loss_scale %g is too large; use a smaller one, or 0 for dynamic loss scaling",
            (long long)w->step, name, rank, (int)scale->skipped, scale->scale);
    return fail(
        NOT_FINITE,
        "step %lld: the gradient of %s is not finite on rank %d (loss %g) at the smallest loss scale, "
        "precision.min_loss_scale %g; use precision.params_dtype=bf16, which has the range of fp32",
        (long long)w->step, name, rank, result->loss, scale->min_scale);
}

enum status rank_check_finite(const struct rank_state *w, const struct step_result *result)
{
    bool overflows = result->skipped && isfinite(result->loss);
    if (!w->run->recipe->resilience.check_for_nan_in_loss_and_grad || (overflows && !w->loss_scale.stuck))
        return OK;
    const char *name = result->not_finite_row >= 0 ? w->params.list[result->not_finite_row].name : NULL;
    if (name != NULL && overflows)
        return overflow_error(w, result, name);
    if (name != NULL)
        return fail(NOT_FINITE, "step %lld: the gradient of %s is not finite on rank %d (loss %g); " DIVERGED,
                    (long long)w->step, name,
                    rank_of_row(w, result->not_finite_row, result->not_finite_share), result->loss,
                    w->run->recipe->optimizer.lr, w->run->recipe->optimizer.clip_grad);
    if (!isfinite(result->loss))
        return fail(NOT_FINITE, "step %lld: the loss is %g; " DIVERGED, (long long)w->step, result->loss,
                    w->run->recipe->optimizer.lr, w->run->recipe->optimizer.clip_grad);
    return OK;
}
