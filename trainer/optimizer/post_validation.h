// SPDX-License-Identifier: Apache-2.0
/* Optimizer post-validation (Qi et al., 2401.10241, section 4): the stages of a pipeline do not wait for each
 * other between two steps. AdamW needs one number of the whole world, the scale of the gradients, and only
 * clipping makes it depend on other stages' gradients; so a rank steps on what it knows, runs on into the
 * next step, and hears later whether that was right.
 *
 *     rank 0   .. B W | guess, step | F0  F1  F2 |  verdict  | B0 ..      ──> the report grows downwards,
 *     rank 1   ..  B W | guess, step | F0  F1 |  verdict  | B0 ..             rank by rank
 *     rank 2   ..   B W | knows all, step | F0 | B0 ..                    <── and comes back whole
 *
 * The report is what the synchronous step all-reduces (optimizer.h): a number for each sample, and for each
 * parameter and share, each from one rank. It is summed within a stage (tp, dp), then handed down the
 * pipeline; each rank adds its own entries. They stay entries, so the sum at the end is of the same numbers
 * in the same order as in the synchronous step, and has the same bits. Three kinds of ranks:
 *
 *   guesses    The norm of the ranks so far is finite and not to be clipped: the rank copies weights and
 *              moments, steps unclipped, and runs the next step's forwards (schedules/look_ahead.h).
 *              Tokens are known on every rank: it counts those of its own batches.
 *   holds      The norm so far is to be clipped, or not finite. What others have can only make it larger,
 *              so it would be wrong to step, and the rank waits.
 *   the last   It has the whole report, is right at once, and sends it back. No copy.
 *
 * Each guess travels in the report. So with the whole of it every rank knows what every other one did, and
 * comes to the same verdict without a further message: the guesses are, bit for bit, the scale; or they are
 * not. Then those that guessed take their step back from the copy and make it again as the synchronous step
 * does, and all drop what they have of the next one. Whatever else ranks tell each other between steps
 * (remarks: has anybody been asked to stop) rides along.
 *
 * Where nobody may run on (before an evaluation, a checkpoint, the end, or a hook that could look), all hold:
 * the same messages, and nothing to be taken back. So what can be seen from outside is always a step that the
 * whole norm has confirmed, and the same bits as without post-validation.
 *
 * The price: a copy of weights and moments on every rank but the last of the pipeline (12 bytes for each
 * parameter that it holds), which is made in each step that is guessed. A clipped step costs the forwards
 * that were run ahead. And a tied embedding on two ranks: its gradients are added before either of them
 * steps, so the first and the last rank still wait for each other, and nothing is gained (zb-v has both uses
 * on rank 0).
 *
 * The trap: the gradients of the step must outlive the verdict, and the next step's forwards must not: the
 * gradients are zeroed behind it, and the report has buffers of its own, since the forwards write losses. */
#pragma once

#include "trainer/engine/stash.h"
#include "trainer/optimizer/optimizer.h"

/* What every rank says of itself when its list is done; all hear the maximum of each. */
enum collect_stats {
    STAT_REQUEST, // enum request
    STAT_BUBBLE,
    STAT_MEMORY,                               // peak bytes
    STAT_PARTS,                                // those of each part
    STAT_SLOTS = STAT_PARTS + PART_COUNT,      // of activations: of each kind how many slots ...
    STAT_SLOT_BYTES = STAT_SLOTS + SLOT_KINDS, // ... and the bytes of all of them
    STAT_COUNT = STAT_SLOT_BYTES + SLOT_KINDS
};
/* What a rank asks of all: the most that any of them asks is done. */
enum request { REQUEST_NOTHING, REQUEST_SAVE, REQUEST_STOP };

struct post_validation_config {
    struct world *world;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    struct optimizer *optimizer;
    int64_t global_batch_size;
};

struct post_validation;
/* Collective over the world. */
MUST_USE enum status post_validation_create(const struct post_validation_config *config,
                                            struct post_validation **out);
void post_validation_destroy(struct post_validation *validation); // takes NULL

/* f64[G], on the host: where the tokens of this rank's samples are noted before a step is handed on, each in
 * its place of the global batch. NULL where another rank of the stage counts the same samples. */
double *post_validation_tokens(struct post_validation *validation);

/* The gradients of `step` are whole (optimizer_reduce()): the report goes down the pipeline. Waits for the
 * ranks above, not for those below. may_guess is the same on every rank. *guessed: the update is made, and
 * the rank may run on. */
MUST_USE enum status post_validation_hand_on(struct post_validation *validation, int64_t step, bool may_guess,
                                             const double stats[STAT_COUNT], bool *guessed);

struct verdict {
    bool ahead; // somebody has guessed, and run on
    bool wrong; // and was wrong: what was run ahead has seen other weights
    double stats[STAT_COUNT];
};

/* Waits for the whole report; afterwards the update is the synchronous one. *out is the same on every rank.
 */
MUST_USE enum status post_validation_conclude(struct post_validation *validation, struct verdict *verdict,
                                              struct step_result *out);
