// SPDX-License-Identifier: Apache-2.0
/* Metrics of a run: one line of metrics.jsonl per step, with enough digits to round-trip every value, and a
 * line on the console, in place on a terminal. Only rank 0 has one. docs/runs.md lists the fields. */
#pragma once

#include "trainer/engine/step_stats.h"
#include "trainer/recipe/recipe.h"
#include "trainer/run/run_plan.h"

struct metrics;

/* One step; steps count from 1. */
struct step_record {
    int64_t step;
    double loss; // nats per token, before the update; NAN without unmasked tokens
    double grad_norm, lr;
    int64_t tokens;          // tokens read in this step, all ranks
    int64_t loss_tokens;     // of these: tokens that count in the loss
    int64_t consumed_tokens; // of all steps up to this one
    double step_time_s;
    struct step_summary ranks; // bubble_fraction NAN: unknown
    bool has_rollbacks;        // with optimizer post-validation
    int rollbacks;             // pipeline ranks that rolled back and repeated their update
    double loss_scale;         // fp16 only; 0: none
    bool skipped;              // gradient overflow: no update
    bool has_valid;
    double valid_loss;
};

/* Opens metrics.jsonl in the run directory. first_step: the first step of this process, after a resume;
 * flops_per_token: forward and backward (Megatron's convention). */
struct metrics_config {
    const struct recipe *recipe;
    int64_t first_step;
    double flops_per_token;
    int world;
    struct run_prediction predicted;
    bool launched;     // by mpirun or srun: no progress line
    bool continues;    // resumes the run of this folder from its own checkpoint
    int64_t best_step; // of the checkpoint with the lowest validation loss; -1: none
    double best_valid; // its loss
};
MUST_USE enum status metrics_open(const struct metrics_config *config, struct metrics **out);
/* Records a step. On IO_ERROR the line is kept and written with the next one. */
MUST_USE enum status metrics_step(struct metrics *metrics, const struct step_record *record);
/* True if the run resumes after a step whose line has no validation loss. */
bool metrics_lack_valid(const struct metrics *metrics);
/* Adds it to that line, which is of `step`. IO_ERROR. */
MUST_USE enum status metrics_add_valid(struct metrics *metrics, int64_t step, double loss);
/* Makes all lines durable; call it before a checkpoint and at the end (trainer/run/metrics_file.h). */
MUST_USE enum status metrics_sync(struct metrics *metrics);
/* True if the run directory was removed or renamed; another run may now use the name. */
bool metrics_are_lost(const struct metrics *metrics);
/* Prints the closing summary. `why`: "done", or the reason for stopping. */
void metrics_summary(struct metrics *metrics, const char *why);
void metrics_close(struct metrics *metrics); // accepts NULL
