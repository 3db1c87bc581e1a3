// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/verify_run.h"

#include "base/memory.h"
#include "trainer/engine/step.h"
#include "trainer/verify/bound.h"
#include "trainer/verify/perturb.h"

#include <stdlib.h>

/* Shared by the ranks of one run. */
struct shared_run {
    struct run run;
    const struct memory_need *needs; // [ranks], or NULL
    struct verify_run *step;
    struct perturbation *perturbations; // [ranks], or NULL
};

static enum status gather_all(struct snapshot *snapshot, struct rank_state *state)
{
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
        TRY(snapshot_gather(snapshot, state, (enum snapshot_kind)kind));
    snapshot_read_amax(snapshot, state);
    return OK;
}

static enum status scatter_state(const struct snapshot *snapshot, struct rank_state *state)
{
    TRY(snapshot_scatter(snapshot, state, SNAPSHOT_WEIGHT));
    TRY(snapshot_scatter(snapshot, state, SNAPSHOT_M));
    TRY(snapshot_write_amax(snapshot, state));
    return snapshot_scatter(snapshot, state, SNAPSHOT_V);
}

/* Every rank, step and draw has different perturbations. */
static void perturb_rank(struct shared_run *shared, struct world *world, struct rank_state *state)
{
    struct perturbation *p = &shared->perturbations[world->rank];
    const struct recipe *recipe = shared->run.recipe;
    const struct verify_run *step = shared->step;
    char name[80];
    snprintf(name, sizeof name, "perturb.%d.%lld.%d", step->draw, (long long)step->steps_done, world->rank);
    p->generator = philox_named(recipe->seed, name);
    p->terms = bound_longest_sum(&recipe->model);
    p->roundoff = bound_roundoff(F32, recipe->kernels.tf32);
    perturb_device(p, state->device);
}

/* Weights that a snapshot replaces before the first step need no random values. */
static enum status skip_initialization(void *context, struct rank_state *state)
{
    (void)context;
    for (int row = 0; row < state->params.count; row++)
        state->params.list[row].init = INIT_ZERO;
    return OK;
}

static enum status one_step(struct shared_run *shared, struct world *world, struct rank_state *state)
{
    struct verify_run *step = shared->step;
    struct step_result result;
    TRY(rank_create_for_training(&shared->run, world,
                                 shared->needs != NULL ? &shared->needs[world->rank] : NULL, state));
    if (step->initial != NULL)
        TRY(snapshot_gather(step->initial, state, SNAPSHOT_WEIGHT));
    if (step->begin != NULL)
        TRY(scatter_state(step->begin, state));
    if (shared->perturbations != NULL)
        perturb_rank(shared, world, state);
    state->step = step->steps_done;
    state->scale.value.scale = step->loss_scale;
    TRY(rank_step(state, &result));
    if (!result.skipped)
        TRY(shared->perturbations == NULL ? gather_all(step->end, state)
                                          : snapshot_gather(step->end, state, SNAPSHOT_GRADIENT));
    if (world->rank == 0) {
        step->skipped = result.skipped;
        step->end->loss = result.loss;
        step->end->grad_norm = result.grad_norm;
        step->end->tokens = result.tokens;
        step->end->loss_scale = result.loss_scale;
    }
    rank_destroy(state);
    return OK;
}

static enum status run_rank(struct world *world, void *argument)
{
    struct shared_run *shared = argument;
    struct rank_state state = {0};
    return memory_need_explain(shared->run.recipe, &state, one_step(shared, world, &state));
}

enum status verify_run(const struct verify_side *side, struct step_observer observer, struct verify_run *step)
{
    const struct recipe *recipe = side->recipe;
    struct shared_run shared = {.needs = side->needs, .step = step};
    int ranks = recipe_world_size(recipe);
    if (step->draw > 0)
        shared.perturbations =
            memory_zeroed((size_t)ranks, sizeof *shared.perturbations, "the perturbations of ranks");
    enum status status = run_create_with_schedule(recipe, side->schedule, true, &shared.run);
    shared.run.observer = observer;
    if (step->begin != NULL && step->initial == NULL && observer.on_params_declared == NULL)
        shared.run.observer.on_params_declared = skip_initialization;
    const struct world_options options = recipe_world_of_threads(recipe, ranks);
    if (status == OK)
        status = world_run_as(&options, run_rank, &shared);
    run_destroy(&shared.run);
    for (int i = 0; shared.perturbations != NULL && i < ranks; i++)
        perturbation_free(&shared.perturbations[i]);
    free(shared.perturbations);
    return status;
}
