// SPDX-License-Identifier: Apache-2.0
/* The state of one rank: groups, device, weights, executor, optimizer, microbatches. Its steps: step.h. */
#pragma once

#include "trainer/engine/executor.h"
#include "trainer/engine/run.h"
#include "trainer/engine/step_stats.h"
#include "trainer/optimizer/amax_history.h"
#include "trainer/optimizer/loss_scale.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/post_validation.h"
#include "trainer/progress/recorder.h"
#include "trainer/trace/tracer.h"

/* For checkpoint.async_save: host memory for a copy of the state, and the stream of the copy. */
struct save_staging {
    struct buffer buffer;
    struct stream *copies;
};

/* What this rank requests of all ranks, at the end of a step (step_stats.h). */
struct rank_requests {
    bool stop;                  // as an exit signal does
    int saves, saves_completed; // save signals of this process so far; those that were saved for
    double stop_at_s;           // after the first step that ends at or after this time; 0: never
    double save_at_s;           // the same
};

/* The statistics of steps. */
struct rank_stats {
    struct step_summary all;    // of the last step
    struct step_stats *of_rank; // [world] of the step in progress
    struct buffer buffer;       // for their exchange
    bool is_writing;            // this rank writes a checkpoint in the background
    double data_s;              // loading the samples of the next statistics
    int64_t waited_ns; // wait time of this thread at the last statistics, plus waits outside steps since
    int64_t waited_at_end_ns; // the same at the end of the last step
};

/* The loss scale of the next step. */
struct rank_scale {
    struct loss_scale value;
    struct buffer buffer; // f32 on the device; none without a loss scale
    float sent;           // host value of the last copy to it
};

struct rank_state {
    const struct run *run;
    struct world *world;
    struct mesh mesh;
    const struct step_observer *observers; // a list

    struct groups *groups;
    struct device *device;
    struct stream *compute;
    struct tracer *tracer; // NULL: nothing is traced
    struct message_recorder recorder;
    struct event_log log;

    struct params params;
    struct weights weights;
    struct amax_history *amax;    // NULL without delayed scaling
    struct key_value_cache cache; // of generation; empty otherwise
    struct executor *executor;
    struct optimizer *optimizer;
    struct batches batches;
    struct post_validation *validation; // NULL: each step waits for the whole world
    struct save_staging staging;

    struct rank_requests requests;
    struct rank_stats stats;
    struct rank_scale scale;

    int64_t step;        // completed steps
    int64_t skipped;     // completed steps without an update
    bool ahead;          // the look-ahead forwards of the next step have run
    bool has_valid_loss; // the state was evaluated after `step`, and the loss is finite
    double valid_loss;
    int64_t sample_offset; // consumed samples, minus step * global_batch_size: not 0 if the batch size
                           // has changed
};

struct rank_options {
    bool training;     // false: weights and forward passes only
    size_t pool_bytes; // of device memory to reserve first, on a device with a memory pool; 0: none
};

/* Creates a rank; for training on any device see memory_need.h. */
MUST_USE enum status rank_create(const struct run *run, struct world *world,
                                 const struct rank_options *options, struct rank_state *out);
void rank_destroy(struct rank_state *state);

/* Adds an observer, which outlives the rank, before those that it has. */
void rank_observe(struct rank_state *state, struct step_observer *observer);

/* The configuration of an executor of this rank, for microbatches of `sequences` of `row_tokens` each. */
struct executor_config rank_executor_config(struct rank_state *state, bool training, int64_t sequences,
                                            int64_t row_tokens);

/* Copies the loss scale of the next step to the device. */
MUST_USE enum status rank_send_scale(struct rank_state *state);

/* Number of training samples so far: the next one has this number. */
int64_t rank_consumed_samples(const struct rank_state *state);
/* Number of weight updates so far: the step count of Adam's bias correction and of the learning rate. */
int64_t rank_updates(const struct rank_state *state);
