// SPDX-License-Identifier: Apache-2.0
/* What all ranks of the process share, created before launch: recipe, data, schedule, the layers of each
 * stage. */
#pragma once

#include "parallel/mesh.h"
#include "trainer/engine/step_observer.h"
#include "trainer/engine/stop.h"
#include "trainer/recipe/recipe.h"
#include "trainer/trace/tracer.h"

struct store_lock;
struct data;
struct model_files;

struct run {
    const struct recipe *recipe;
    struct data *data; // NULL: no data is read; an observer's on_batches_loaded has to fill the microbatches
    struct schedule *schedule;
    bool has_callers_schedule; // it is not the run's own
    int *stage_first_layer;    // [stages + 1]
    struct mesh mesh;
    struct step_observer observer;      // of every rank
    struct store_lock *checkpoint_lock; // of checkpoint.save; NULL: this process does not write there
    struct model_files *model_files;    // for its checkpoints, of rank 0's process; NULL: none. Not owned
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
