// SPDX-License-Identifier: Apache-2.0
/* What a run says of itself: a line of metrics.jsonl for every step, with enough digits to read back the same
 * bits, and on the terminal a progress line, or plain lines where there is no terminal. Only rank 0 has one.
 */
#pragma once

#include "kernels/device.h"
#include "trainer/engine/stash.h"
#include "trainer/recipe/recipe.h"

struct metrics;

/* One step, counted from 1. */
struct step_record {
    int64_t step;
    double loss; // nats per token, before the update; NAN: no token counts
    double grad_norm, lr;
    int64_t tokens;      // of this step, over the world: all that the model reads
    int64_t loss_tokens; // of these: that count in the loss
    double step_time_s;
    double bubble_fraction;              // of the rank that waits longest; NAN where nobody can know
    int64_t memory_peak_bytes;           // the most of any rank
    int64_t part_peak_bytes[PART_COUNT]; // likewise, of each part
    struct slot_use slots[SLOT_KINDS];   // likewise, of activations; `bytes` of all slots of a kind
    bool has_rollbacks;                  // with optimizer post-validation
    int rollbacks;                       // pipeline ranks that took their update back and made it again
    double loss_scale;                   // of fp16; 0: none
    bool skipped;                        // the gradients overflowed: nothing was updated
    bool has_valid;
    double valid_loss;
};

/* Opens metrics.jsonl in the run's folder. first_step: the first that this process makes, after a resume;
 * flops_per_token: of forward and backward (Megatron's convention). */
struct metrics_config {
    const struct recipe *recipe;
    int64_t first_step;
    double flops_per_token;
    int world;
    bool launched;  // by mpirun or srun: no progress line
    bool continues; // the run that the folder holds, from a checkpoint of its own
};
MUST_USE enum status metrics_open(const struct metrics_config *config, struct metrics **out);
/* IO_ERROR: the line is kept, and written with the next one. */
MUST_USE enum status metrics_step(struct metrics *metrics, const struct step_record *record);
/* Before a checkpoint, and at the end: every line so far is on the disk (trainer/run/metrics_file.h). */
MUST_USE enum status metrics_sync(struct metrics *metrics);
/* The folder of the run was removed or renamed: another run may have its name now. */
bool metrics_are_lost(const struct metrics *metrics);
/* The closing summary. `why`: "done", or why it stopped. */
void metrics_summary(struct metrics *metrics, const char *why);
void metrics_close(struct metrics *metrics); // takes NULL

/* Floating-point operations of forward and backward per token: 6 per weight of a matrix that multiplies, and
 * attention's 12 * layers * S * A * D (Narayanan et al. 2021 without recomputation). */
double model_flops_per_token(const struct model_config *model);
/* The share of them that is left when attention counts its causal half only, as Megatron-LM's own report does
 * now (num_floating_point_operations): a utilisation by that convention is the one above times this. */
double model_causal_share(const struct model_config *model);
int64_t model_parameters(const struct model_config *model);
