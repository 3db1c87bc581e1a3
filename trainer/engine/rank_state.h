// SPDX-License-Identifier: Apache-2.0
/* Everything one rank has, and what it does in a step.
 *
 *   run      what all ranks of the process share, made before launch: recipe, data, schedule, table of layers
 *   worker   one rank's: groups, device, weights, executor, optimizer, microbatches
 *
 * Whoever wants to look into a run, or to spoil it on purpose, does it through the hooks: they see a worker
 * when it is built, when a step's microbatches are loaded, and when its gradients are reduced. */
#pragma once

#include "trainer/engine/executor.h"
#include "trainer/engine/stop.h"
#include "trainer/optimizer/amax_history.h"
#include "trainer/optimizer/loss_scale.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/post_validation.h"
#include "trainer/recipe/recipe.h"

struct checkpoint_lock;
struct rank_state;

/* Each may be NULL. `step` counts from 1; what is loaded to evaluate has step 0. */
struct hooks {
    void *context;
    enum status (*declared)(void *context, struct rank_state *state); // rows are known, nothing is allocated
    enum status (*built)(void *context, struct rank_state *state);    // weights are initialised
    enum status (*loaded)(void *context, struct rank_state *state, int64_t step); // microbatches are there
    enum status (*executed)(void *context, struct rank_state *state,
                            int64_t step); // gradients are summed over data
    enum status (*reduced)(void *context, struct rank_state *state, int64_t step); // gradients are whole
    enum status (*stepped)(void *context, struct rank_state *state, int64_t step,
                           const struct step_result *result);
};

struct run {
    const struct recipe *recipe;
    struct data *data; // NULL: no data is read; whoever steps fills the microbatches in the hook `loaded`
    struct schedule *schedule;
    int *stage_first_layer; // [stages + 1]
    struct mesh mesh;
    struct hooks hooks;
    struct checkpoint_lock *checkpoint_lock; // of checkpoint.save; NULL: this process does not write there
    bool is_planning;                        // on the device that plans, whatever the recipe says
    struct stop *stop;                       // NULL: no signal is listened to
};

/* Opens the data and builds the schedule; whatever is wrong is said here, before any rank starts. */
MUST_USE enum status run_create(const struct recipe *recipe, bool with_data, struct run *out);
void run_destroy(struct run *run);

/* How a rank's device is opened, but for its index and what it is to reserve. */
struct device_options run_device_options(const struct run *run, int threads);

/* The compute threads of each of `world_size` ranks: the recipe's, or the CPUs that this process may use,
 * shared by the ranks that run on this machine (base/machine.h). */
int run_threads(const struct run *run, int world_size);

/* The tokenizer that the recipe names. */
struct tokenizer;
MUST_USE enum status run_tokenizer(const struct recipe *recipe, struct tokenizer **out);

struct rank_state {
    const struct run *run;
    struct world *world;
    struct mesh mesh;
    struct groups *groups;
    struct device *device;
    struct stream *compute;
    struct params params;
    struct weights weights;
    struct amax_history *amax; // NULL without delayed scaling
    struct executor *executor;
    struct optimizer *optimizer;
    struct batches batches;
    struct post_validation *validation; // NULL: each step waits for the whole world
    bool ahead;                         // the first forwards of the next step are done
    bool wants_stop;                    // asks all ranks to stop, as an exit signal does
    double save_at_s; // asks all ranks to save after the first step that ends at or after this; 0: never
    double stats[STAT_COUNT]; // of the last step, the maximum of all ranks'
    struct buffer stats_buffer;
    struct loss_scale loss_scale; // of the next step
    struct buffer scale_buffer;   // f32 on the device; none without a loss scale
    float scale_sent;             // what goes there
    int64_t step;                 // steps done
    int64_t skipped;              // of these: nothing was updated
};

/* training false: weights and forward passes only. */
MUST_USE enum status rank_create(const struct run *run, struct world *world, bool training,
                                 struct rank_state *out);
void rank_destroy(struct rank_state *state);

/* One whole step; worker->step is one more afterwards. */
MUST_USE enum status rank_step(struct rank_state *state, struct step_result *out);
/* The same for a caller who goes on to the next step at once, on every rank: with post-validation the ranks
 * may already be in it afterwards. Weights and moments are those of the step all the same. */
MUST_USE enum status rank_step_and_on(struct rank_state *state, struct step_result *out);

/* The updates that the weights have seen: Adam's corrections and the learning rate count these. */
int64_t rank_updates(const struct rank_state *state);

/* A loss or gradient that is no number ends the run, for what follows would be trained on noise: NOT_FINITE
 * names the step, the parameter and its rank, on every rank alike. OK where the recipe does not want it
 * checked; and for gradients alone where the step was skipped and a loss scale can still fall. */
MUST_USE enum status rank_check_finite(const struct rank_state *state, const struct step_result *result);

/* The mean loss per token over the validation part (NAN where no token counts): eval_iters global batches,
 * the same each time. They may take hours, so the exit signal is asked for before each: `stop`, on all ranks
 * alike, and there is no loss.
 */
MUST_USE enum status rank_evaluate(struct rank_state *state, double *loss, bool *stop);
