// SPDX-License-Identifier: Apache-2.0
#include "trainer/verify/verify_run.h"

#include "trainer/plan/memory_plan.h"
#include "trainer/verify/bound.h"
#include "trainer/verify/perturb.h"

#include <stdlib.h>

struct play {
    struct run run;
    struct episode *episode;
    struct perturbation *perturbations; // [ranks], or NULL
};

static enum status take_all(struct snapshot *snapshot, struct rank_state *state)
{
    for (int kind = 0; kind < SNAPSHOT_KINDS; kind++)
        TRY(snapshot_take(snapshot, state, (enum snapshot_kind)kind));
    return snapshot_take_amax(snapshot, state);
}

static enum status give_state(const struct snapshot *snapshot, struct rank_state *state)
{
    TRY(snapshot_give(snapshot, state, SNAPSHOT_WEIGHT));
    TRY(snapshot_give(snapshot, state, SNAPSHOT_M));
    TRY(snapshot_give_amax(snapshot, state));
    return snapshot_give(snapshot, state, SNAPSHOT_V);
}

/* Every rank, step and draw has different perturbations. */
static void perturb_rank(struct play *play, struct world *world, struct rank_state *state)
{
    struct perturbation *p = &play->perturbations[world->rank];
    const struct recipe *recipe = play->run.recipe;
    const struct episode *episode = play->episode;
    char name[80];
    snprintf(name, sizeof name, "perturb.%d.%lld.%d", episode->draw, (long long)episode->steps_done,
             world->rank);
    p->generator = philox_named(recipe->seed, name);
    p->terms = bound_longest_sum(&recipe->model);
    p->roundoff = bound_roundoff(F32, recipe->kernels.tf32);
    perturb_device(p, state->device);
}

/* Weights that a snapshot replaces before the first step need no random values. */
static enum status draw_nothing(void *context, struct rank_state *state)
{
    (void)context;
    for (int row = 0; row < state->params.count; row++)
        state->params.list[row].init = INIT_ZERO;
    return OK;
}

static enum status one_step(struct play *play, struct world *world, struct rank_state *state)
{
    struct episode *episode = play->episode;
    struct step_result result;
    TRY(rank_create(&play->run, world, true, state));
    if (episode->initial != NULL)
        TRY(snapshot_take(episode->initial, state, SNAPSHOT_WEIGHT));
    if (episode->begin != NULL)
        TRY(give_state(episode->begin, state));
    if (play->perturbations != NULL)
        perturb_rank(play, world, state);
    state->step = episode->steps_done;
    state->loss_scale.scale = episode->loss_scale;
    TRY(rank_step(state, &result));
    if (!result.skipped)
        TRY(play->perturbations == NULL ? take_all(episode->end, state)
                                        : snapshot_take(episode->end, state, SNAPSHOT_GRADIENT));
    if (world->rank == 0) {
        episode->skipped = result.skipped;
        episode->end->loss = result.loss;
        episode->end->grad_norm = result.grad_norm;
        episode->end->tokens = result.tokens;
        episode->end->loss_scale = result.loss_scale;
    }
    rank_destroy(state);
    return OK;
}

static enum status play_rank(struct world *world, void *argument)
{
    struct play *play = argument;
    struct rank_state state = {0};
    return memory_plan_explain(play->run.recipe, &state, one_step(play, world, &state));
}

enum status episode_play(const struct recipe *recipe, struct hooks hooks, struct episode *episode)
{
    struct play play = {.episode = episode};
    int ranks = recipe_world_size(recipe);
    if (episode->draw > 0) {
        play.perturbations = calloc((size_t)ranks, sizeof *play.perturbations);
        if (play.perturbations == NULL)
            return fail(NO_MEMORY, "no memory to perturb %d ranks", ranks);
    }
    enum status status = run_create(recipe, true, &play.run);
    play.run.hooks = hooks;
    if (episode->begin != NULL && episode->initial == NULL && hooks.declared == NULL)
        play.run.hooks.declared = draw_nothing;
    const struct world_options options = recipe_world_of_threads(recipe, ranks);
    if (status == OK)
        status = world_run_as(&options, play_rank, &play);
    run_destroy(&play.run);
    for (int i = 0; play.perturbations != NULL && i < ranks; i++)
        perturbation_free(&play.perturbations[i]);
    free(play.perturbations);
    return status;
}
