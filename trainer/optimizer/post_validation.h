// SPDX-License-Identifier: Apache-2.0
/* Optimizer post-validation (Qi et al., 2401.10241, section 4) removes the synchronization of pipeline stages
 * between two steps. AdamW needs one global scalar, the gradient scale, and it depends on the gradients of
 * other stages only through clipping. So a rank updates with the information that it has, continues with the
 * next step, and validates the update later.
 *
 *     rank 0   .. B W | guess, step | F0  F1  F2 |  verdict  | B0 ..      ──> the report grows downwards,
 *     rank 1   ..  B W | guess, step | F0  F1 |  verdict  | B0 ..             rank by rank
 *     rank 2   ..   B W | knows all, step | F0 | B0 ..                    <── and comes back complete
 *
 * The report has the content of the synchronous all-reduce (optimizer.h): one entry per sample, and one per
 * parameter and share, each contributed by one rank. It is summed within a stage (tp, dp) and then passed
 * down the pipeline; each rank adds its own entries. Since the entries are not reduced further on the way,
 * the final sum has the same terms in the same order as in the synchronous step, and is bit-identical. There
 * are three cases:
 *
 *   guess      The norm of the ranks so far is finite and below the clipping threshold: the rank copies
 *              weights and moments, updates without clipping, and runs the first forwards of the next step
 *              (schedules/look_ahead.h). Tokens are known on every rank, which counts those of its batches.
 *   hold       The norm so far requires clipping, or is not finite. Other ranks can only increase it, so an
 *              unclipped update would be wrong, and the rank waits.
 *   last rank  It has the complete report, makes the final update at once, and sends the report back. It
 *              needs no copy.
 *
 * Each guess is part of the report. With the complete report, every rank therefore knows the guesses of all
 * others and reaches the same verdict without further messages: either all guesses are bitwise equal to the
 * scale, or not. In the second case the ranks that guessed roll back from the copy and repeat the update as
 * in the synchronous step, and all drop their part of the next step. The rank statistics exchanged between
 * steps (such as a stop request) are part of the report, too.
 *
 * If no rank may continue (before an evaluation, a checkpoint, the end, or a hook that could observe it), all
 * hold: the same messages, and no rollback. Externally visible states are therefore always confirmed by the
 * complete norm, and bit-identical to those without post-validation.
 *
 * The cost: a copy of weights and moments on every rank except the last of the pipeline (12 bytes per
 * parameter), made in each step with a guess. A clipped step wastes the forwards of the look-ahead. With a
 * tied embedding on two ranks there is no gain: its gradients are added before either of them updates, so the
 * first and the last rank still wait for each other (zb-v has both uses on rank 0).
 *
 * Caution: the gradients of the step must survive until the verdict, while the forwards of the next step
 * must not touch them: gradients are zeroed after the verdict, and the report has its own buffers, since the
 * forwards write losses. */
#pragma once

#include "trainer/optimizer/optimizer.h"

struct post_validation_config {
    struct world *world;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    struct optimizer *optimizer;
    int64_t global_batch_size;
    size_t note_bytes; // of a rank, to all others: its statistics (engine/step_stats.h). A multiple of 8
};

struct post_validation;
/* Collective over the world. */
MUST_USE enum status post_validation_create(const struct post_validation_config *config,
                                            struct post_validation **out);
void post_validation_destroy(struct post_validation *validation); // accepts NULL

/* f64[G] in host memory: token counts of this rank's samples, in the order of the global batch, to be filled
 * before post_validation_pass_down(). NULL if another rank of the stage counts the same samples. */
double *post_validation_tokens(struct post_validation *validation);

/* Call it after optimizer_report_squares() of `step`: passes the report down the
 * pipeline. Waits for the ranks above, not for those below. may_guess must be the same on every rank.
 * *guessed: the update was made, and the rank may start the next step. */
MUST_USE enum status post_validation_pass_down(struct post_validation *validation, int64_t step,
                                               bool may_guess, const void *note, bool *guessed);

struct verdict {
    bool ahead;        // some rank has guessed and looked ahead
    bool wrong;        // and the guess was wrong: the look-ahead used other weights
    const void *notes; // [world][note_bytes], stage by stage; valid until the next step
};

/* Waits for the complete report; afterwards the update equals the synchronous one. *out is the same on every
 * rank. */
MUST_USE enum status post_validation_finish(struct post_validation *validation, struct verdict *verdict,
                                            struct step_result *out);
