// SPDX-License-Identifier: Apache-2.0
/* The state of one rank, and the training step.
 *
 *   struct run         shared by all ranks of the process, created before launch: recipe, data, schedule,
 *                      layers of each stage
 *   struct rank_state  of one rank: groups, device, weights, executor, optimizer, microbatches
 *
 * Observers (step_observer.h) are called when a rank is created, and at several points of each step. */
#pragma once

#include "trainer/engine/executor.h"
#include "trainer/engine/step_observer.h"
#include "trainer/engine/step_stats.h"
#include "trainer/engine/stop.h"
#include "trainer/optimizer/amax_history.h"
#include "trainer/optimizer/loss_scale.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/post_validation.h"
#include "trainer/progress/recorder.h"
#include "trainer/recipe/recipe.h"
#include "trainer/trace/tracer.h"

struct checkpoint_lock;
struct model_files;
struct rank_state;

struct run {
    const struct recipe *recipe;
    struct data *data; // NULL: no data is read; an observer's on_batches_loaded has to fill the microbatches
    struct schedule *schedule;
    bool has_callers_schedule; // it is not the run's own
    int *stage_first_layer;    // [stages + 1]
    struct mesh mesh;
    struct step_observer observer;           // of every rank
    struct checkpoint_lock *checkpoint_lock; // of checkpoint.save; NULL: this process does not write there
    struct model_files *model_files;         // for its checkpoints, of rank 0's process; NULL: none
    int64_t row_tokens;     // of a sequence in forward passes without training; 0: model.seq_length
    bool is_planning;       // dry run: use the planning device, whatever the recipe says
    struct stop *stop;      // NULL: signals are not handled
    struct tracing tracing; // CUBOID_TRACE
};

/* Opens the data and builds the schedule. Reports all errors before any rank starts. With
 * pipeline.auto_times=plan, the schedule is searched as with `given`; that of a plan is built by
 * planned_run_create() (planner/schedule/). */
MUST_USE enum status run_create(const struct recipe *recipe, bool with_data, struct run *out);
/* The same with a schedule of this recipe that outlives the run; NULL: builds one. */
MUST_USE enum status run_create_with_schedule(const struct recipe *recipe, struct schedule *schedule,
                                              bool with_data, struct run *out);
/* Without data and schedule: the caller sets run->schedule, of pipeline_parallel_size * virtual_stages
 * stages, which then belongs to the run. */
MUST_USE enum status run_create_unscheduled(const struct recipe *recipe, struct run *out);
void run_destroy(struct run *run);

/* The stage that contains a layer, numbered as in struct param. */
int run_stage_of_layer(const struct run *run, int layer);
/* The pipeline rank that represents a layer, for example in checkpoints and messages: of its replicas, the
 * one that runs the first microbatch. */
int run_rank_of_layer(const struct run *run, int layer);

/* Device options of a rank, except for the device index and the memory to reserve. */
struct device_options run_device_options(const struct run *run, int threads);

/* Compute threads of each of `world_size` ranks: the recipe's value, or the CPUs available to this process
 * divided by its ranks on this machine (base/machine.h). */
int run_threads(const struct run *run, int world_size);

/* Creates the tokenizer selected by the recipe. */
struct tokenizer;
MUST_USE enum status run_tokenizer(const struct recipe *recipe, struct tokenizer **out);

/* For checkpoint.async_save: host memory for a copy of the state, and the stream of the copy. */
struct save_staging {
    struct buffer buffer;
    struct stream *copies;
};

struct rank_state {
    const struct run *run;
    struct world *world;
    struct mesh mesh;
    const struct step_observer *observers; // a list
    struct groups *groups;
    struct device *device;
    struct tracer *tracer; // NULL: nothing is traced
    struct message_recorder recorder;
    struct event_log log;
    struct stream *compute;
    struct params params;
    struct weights weights;
    struct amax_history *amax;    // NULL without delayed scaling
    struct key_value_cache cache; // of generation; empty otherwise
    struct executor *executor;
    struct optimizer *optimizer;
    struct batches batches;
    struct post_validation *validation; // NULL: each step waits for the whole world
    bool ahead;                         // the look-ahead forwards of the next step have run
    bool wants_stop;                    // requests a stop on all ranks, as an exit signal does
    struct save_staging staging;
    bool is_writing;             // this rank writes a checkpoint in the background
    int saves_asked, saves_done; // save signals of this process that were requested, and that were saved for
    double stop_at_s; // requests a stop on all ranks after the first step that ends at or after this time; 0:
                      // never
    double save_at_s; // requests a save on all ranks after the first step that ends at or after this time; 0:
                      // never
    double data_s;    // loading the samples of the next statistics
    int64_t waited_ns;         // of this thread, until the last statistics, and since then outside of steps
    int64_t waited_by_end_ns;  // of this thread, until the end of the last step
    struct step_summary stats; // of the last step
    struct step_stats *stats_of_rank; // [world] of the step in progress
    struct buffer stats_buffer;
    struct loss_scale loss_scale; // of the next step
    struct buffer scale_buffer;   // f32 on the device; none without a loss scale
    float scale_sent;             // host value of the last copy to scale_buffer
    int64_t step;                 // completed steps
    int64_t skipped;              // completed steps without an update
    bool has_valid_loss;          // the state was evaluated after `step`, and the loss is finite
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

/* Runs one complete step and increments state->step. */
MUST_USE enum status rank_step(struct rank_state *state, struct step_result *out);
/* Like rank_step(), for a caller that starts the next step at once on every rank: with post-validation,
 * ranks may already be in the next step on return. Weights and moments are still those of this step. */
MUST_USE enum status rank_step_look_ahead(struct rank_state *state, struct step_result *out);

/* Number of training samples so far: the next one has this number. */
int64_t rank_consumed_samples(const struct rank_state *state);
/* Number of weight updates so far: the step count of Adam's bias correction and of the learning rate. */
int64_t rank_updates(const struct rank_state *state);

/* Ends the run on a non-finite loss or gradient: every rank returns NOT_FINITE with the step, the parameter
 * and its rank. Returns OK if the recipe disables the check; also for gradients only, if the step was
 * skipped and the loss scale can still be lowered. */
MUST_USE enum status rank_check_finite(const struct rank_state *state, const struct step_result *result);

/* Mean loss per token over eval_iters global batches of the validation split, the same batches each time;
 * NAN if it has no unmasked tokens. Since evaluation may take hours, the exit signal is queried before each
 * batch: then *stop is true on all ranks and *loss is not set. */
MUST_USE enum status rank_evaluate(struct rank_state *state, double *loss, bool *stop);
