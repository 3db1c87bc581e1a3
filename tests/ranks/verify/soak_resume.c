// SPDX-License-Identifier: Apache-2.0
/* Random pairs of layouts of random small models: a run on the second resumes from a checkpoint of one on the
 * first. Compared bitwise: weights and moments after loading, with those that were saved; and the next steps,
 * with those of the second layout from the same state in memory, which verify compares with one rank
 * (soak_verify.c). Run N is a function of N alone.
 *
 *    soak_resume FIRST COUNT     a line for each run; exit status 1 if any was different or failed
 *
 * CI runs a few of them; tools/soak runs a hundred, and reads these lines. */
#include "layers/model.h"
#include "tests/ranks/verify/random_recipe.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/load.h"
#include "trainer/engine/snapshot.h"
#include "trainer/engine/step.h"
#include "trainer/verify/verify_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVED_AFTER = 2, COMPARED = 2, STEPS = SAVED_AFTER + COMPARED };

/* One step of the second run. */
struct resumed_step {
    double scale; // before it
    struct step_result result;
    struct snapshot end;
};

struct pair {
    struct tiny tiny;
    char saves[TINY_FOLDER_CHARS + 40];
    struct random_recipe draw;
    char second[RANDOM_RECIPE_CHARS]; // layout
    struct params params;             // of one rank
    struct snapshot saved;            // of the first run at its checkpoint
    double saved_scale;
    struct resumed_step steps[COMPARED];
};

struct resume_run {
    struct run run;
    struct pair *pair;
};

static const enum snapshot_kind kinds[] = {SNAPSHOT_WEIGHT, SNAPSHOT_M, SNAPSHOT_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

static enum status compare(const struct pair *pair, const struct snapshot *a, const struct snapshot *b,
                           const char *when)
{
    static const char *const names[KINDS] = {"weight", "m", "v"};
    for (int k = 0; k < KINDS; k++)
        for (int row = 0; row < a->rows; row++) {
            const size_t bytes = (size_t)a->count[row] * sizeof(float);
            if (a->differs[kinds[k]][row] != 0 || b->differs[kinds[k]][row] != 0)
                return fail(OUT_OF_BOUND, "%s: replicas of %s (%s) differ", when, pair->params.list[row].name,
                            names[k]);
            if (memcmp(a->tensor[kinds[k]][row], b->tensor[kinds[k]][row], bytes) != 0)
                return fail(OUT_OF_BOUND, "%s: %s (%s) differs", when, pair->params.list[row].name, names[k]);
        }
    return OK;
}

static enum status gather(struct snapshot *snapshot, struct rank_state *w)
{
    for (int k = 0; k < KINDS; k++)
        TRY(snapshot_gather(snapshot, w, kinds[k]));
    return OK;
}

/* ---- the two runs ---- */

static enum status first_steps(struct resume_run *r, struct rank_state *w)
{
    struct step_result result;
    for (int i = 0; i < SAVED_AFTER; i++)
        TRY(rank_step(w, &result));
    TRY(checkpoint_save(w));
    TRY(gather(&r->pair->saved, w));
    if (w->world->rank == 0)
        r->pair->saved_scale = w->scale.value.scale;
    return OK;
}

/* Each rank compares: all of them return the same status. */
static enum status resumed_steps(struct resume_run *r, struct rank_state *w)
{
    struct pair *pair = r->pair;
    TRY(checkpoint_load(w, pair->saves, CHECKPOINT_RESUME));
    TRY(gather(&pair->steps[0].end, w));
    TRY(group_barrier(w->groups->world, w->compute));
    TRY(compare(pair, &pair->saved, &pair->steps[0].end, "loaded"));
    if (w->step != SAVED_AFTER || w->scale.value.scale != pair->saved_scale)
        return fail(OUT_OF_BOUND, "loaded step %lld with loss scale %g, saved %d with %g", (long long)w->step,
                    w->scale.value.scale, SAVED_AFTER, pair->saved_scale);
    TRY(group_barrier(w->groups->world, w->compute));
    for (int i = 0; i < COMPARED; i++) {
        struct resumed_step *step = &pair->steps[i];
        const double scale = w->scale.value.scale;
        struct step_result result;
        TRY(rank_step(w, &result));
        TRY(gather(&step->end, w));
        if (w->world->rank == 0) {
            step->scale = scale;
            step->result = result;
        }
    }
    return OK;
}

static enum status run_rank(struct world *world, void *argument)
{
    struct resume_run *r = argument;
    struct rank_state state;
    const bool second = strcmp(r->run.recipe->name, "second") == 0;
    TRY(rank_create(&r->run, world, &(struct rank_options){.training = true}, &state));
    enum status status = second ? resumed_steps(r, &state) : first_steps(r, &state);
    rank_destroy(&state);
    return status;
}

static enum status run_layout(struct pair *pair, const char *layout, const char *name, struct recipe **out)
{
    struct resume_run r = {.pair = pair};
    char keys[RANDOM_RECIPE_CHARS + TINY_FOLDER_CHARS + 100];
    snprintf(keys, sizeof keys, "%s name=%s checkpoint.save=%s checkpoint.load=none", layout, name,
             pair->saves);
    TRY(tiny_recipe(&pair->tiny, pair->draw.family, pair->draw.common, keys, 0, out));
    TRY(run_create(*out, true, &r.run));
    const struct world_options options = recipe_world_of_threads(*out, recipe_world_size(*out));
    enum status status = world_run_as(&options, run_rank, &r);
    run_destroy(&r.run);
    return status;
}

/* ---- the same steps from memory ---- */

static enum status compare_steps(struct pair *pair, const struct recipe *second)
{
    struct snapshot end;
    end = snapshot_create(&pair->params);
    enum status status = OK;
    for (int i = 0; status == OK && i < COMPARED; i++) {
        const struct resumed_step *step = &pair->steps[i];
        struct verify_run run = {.steps_done = SAVED_AFTER + i,
                                 .begin = i == 0 ? &pair->saved : &pair->steps[i - 1].end,
                                 .end = &end,
                                 .loss_scale = step->scale};
        status = verify_run(&(struct verify_side){.recipe = second}, (struct step_observer){0}, &run);
        if (status == OK && run.skipped != step->result.skipped)
            status = fail(OUT_OF_BOUND, "step %d: skipped %d, from memory %d", SAVED_AFTER + i + 1,
                          step->result.skipped, run.skipped);
        if (status == OK && run.skipped)
            continue;
        if (status == OK && (end.loss != step->result.loss || end.grad_norm != step->result.grad_norm))
            status =
                fail(OUT_OF_BOUND, "step %d: loss %.17g norm %.17g, from memory %.17g and %.17g",
                     SAVED_AFTER + i + 1, step->result.loss, step->result.grad_norm, end.loss, end.grad_norm);
        if (status == OK)
            status = compare(pair, &end, &step->end, "step");
    }
    snapshot_destroy(&end);
    return status;
}

static enum status run_both(struct pair *pair, struct recipe *recipes[2])
{
    TRY(run_layout(pair, pair->draw.layout, "first", &recipes[0]));
    TRY(run_layout(pair, pair->second, "second", &recipes[1]));
    return compare_steps(pair, recipes[1]);
}

static enum status draw_pair(struct pair *pair, uint64_t number)
{
    static const struct degrees one_each = {.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1};
    struct random_recipe other;
    struct recipe *recipe = NULL;
    TRY(random_recipe(&pair->tiny, number, STEPS, &pair->draw));
    other = pair->draw;
    TRY(random_recipe_layout(&pair->tiny, number, &other));
    random_recipe_options(&pair->tiny, number, &pair->draw);
    random_recipe_options(&pair->tiny, ~number, &other);
    snprintf(pair->second, sizeof pair->second, "%s", other.layout);
    snprintf(pair->saves, sizeof pair->saves, "%s/saves-%llu", pair->tiny.folder, (unsigned long long)number);
    TRY(tiny_recipe(&pair->tiny, pair->draw.family, pair->draw.common, "", 0, &recipe));
    enum status status = params_declare(&recipe->model, &one_each, false, &pair->params);
    recipe_destroy(recipe);
    return status;
}

static bool run_one(struct pair *pair, uint64_t number)
{
    struct recipe *recipes[2] = {NULL, NULL};
    enum status status = draw_pair(pair, number);
    if (status == OK)
        pair->saved = snapshot_create(&pair->params);
    for (int i = 0; status == OK && i < COMPARED; i++)
        pair->steps[i].end = snapshot_create(&pair->params);
    if (status == OK)
        status = run_both(pair, recipes);
    printf("run %llu %s | %s %s| %s| %s\n", (unsigned long long)number, status == OK ? "ok" : "FAILED",
           pair->draw.family == TINY_GPT ? "gpt" : "llama", pair->draw.common, pair->draw.layout,
           pair->second);
    if (status != OK)
        printf("  %s\n", fail_text());
    fflush(stdout);
    snapshot_destroy(&pair->saved);
    for (int i = 0; i < COMPARED; i++)
        snapshot_destroy(&pair->steps[i].end);
    params_free(&pair->params);
    recipe_destroy(recipes[0]);
    recipe_destroy(recipes[1]);
    return status == OK;
}

int main(int argc, char **argv)
{
    struct tiny tiny;
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int bad = 0;
    MUST(tiny_create(&tiny));
    for (uint64_t i = first; i < first + count; i++) {
        struct pair pair = {.tiny = tiny};
        bad += !run_one(&pair, i);
    }
    tiny_destroy(&tiny);
    return bad != 0;
}
