// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/distribute/load_plan.h"

#include "base/memory.h"
#include "schedules/schedule.h"

#include <stdlib.h>
#include <string.h>

struct load_plan {
    struct load_plan_config config;
    int world;
    struct save_plan *shares; // [world], of ranks whose shares were needed so far
    bool *known;              // [world] whether the share is known
    int *second;              // [params] index of a second use; -1: none
    struct load_rank *list;   // [world], of the last call
};

struct load_plan *load_plan_create(const struct load_plan_config *config)
{
    static const char what[] = "the plan of a load";
    const size_t world = (size_t)config->run->mesh.world;
    const int count = config->params->count;
    struct load_plan *r = memory_zeroed(1, sizeof *r, what);
    r->config = *config;
    r->world = (int)world;
    r->shares = memory_zeroed(world, sizeof *r->shares, what);
    r->known = memory_zeroed(world, sizeof *r->known, what);
    r->second = memory_zeroed((size_t)count + 1, sizeof *r->second, what);
    r->list = memory_zeroed(world, sizeof *r->list, what);
    for (int i = 0; i < count; i++)
        r->second[i] = -1;
    for (int i = 0; i < count; i++)
        if (config->params->list[i].tie >= 0)
            r->second[config->params->list[i].tie] = i;
    return r;
}

void load_plan_destroy(struct load_plan *plan)
{
    if (plan == NULL)
        return;
    for (int i = 0; i < plan->world; i++)
        save_plan_free(&plan->shares[i]);
    free(plan->shares);
    free(plan->known);
    free(plan->second);
    free(plan->list);
    free(plan);
}

static const struct param *param_at(const struct load_plan *r, int param)
{
    return &r->config.params->list[param];
}

/* Whether a pipeline rank holds the layer of a parameter. */
static bool holds(const struct load_plan *r, int param, int pp)
{
    const struct run *run = r->config.run;
    return schedule_holds(run->schedule, pp, run_stage_of_layer(run, param_at(r, param)->layer));
}

bool load_plan_has(const struct load_plan *plan, int param, int rank)
{
    int pp = mesh_coord(&plan->config.run->mesh, param_at(plan, param)->mesh, rank).pp;
    return holds(plan, param, pp) || (plan->second[param] >= 0 && holds(plan, plan->second[param], pp));
}

/* ---- who reads ---- */

/* Equal shares of all states of all parameters of a stage for its ranks, in the order in which they are
 * stored. The index of a part is that of the parameter times STATE_COUNT plus the state. */
static void band_share(const struct load_plan *r, int rank, struct save_plan *out)
{
    const struct run *run = r->config.run;
    const struct params *params = r->config.params;
    int pp = mesh_coord(&run->mesh, MESH_DENSE, rank).pp, index = 0, count = 0;
    *out = (struct save_plan){.parts = memory_zeroed((size_t)params->count * STATE_COUNT + 1,
                                                     sizeof *out->parts, "the plan of a load")};
    for (int i = 0; i < params->count; i++)
        for (int state = 0; state < (int)r->config.states; state++)
            if (params->list[i].tie < 0 && holds(r, i, pp))
                out->parts[out->count++] = (struct save_part){
                    i * STATE_COUNT + state, slice_whole(params->list[i].ndim, params->list[i].dim)};
    for (int other = 0; other < r->world; other++) {
        if (!save_plan_same_stages(run, other, rank))
            continue;
        index += other < rank;
        count++;
    }
    save_plan_cut(out, index, count);
}

static void know_share(struct load_plan *r, int rank)
{
    const struct load_plan_config *c = &r->config;
    if (r->known[rank])
        return;
    if (c->same_layout)
        save_plan_of_rank(c->run, c->params, c->weights, rank, &r->shares[rank]);
    else
        band_share(r, rank, &r->shares[rank]);
    r->known[rank] = true;
}

static int by_param(const void *param, const void *part)
{
    int other = ((const struct save_part *)part)->param;
    return (*(const int *)param > other) - (*(const int *)param < other);
}

bool load_plan_slice(struct load_plan *plan, int param, enum state state, int rank, struct slice *out)
{
    if (!holds(plan, param, mesh_coord(&plan->config.run->mesh, param_at(plan, param)->mesh, rank).pp))
        return false; // at most a second use
    know_share(plan, rank);
    const struct save_plan *share = &plan->shares[rank];
    const int key = plan->config.same_layout ? param : param * STATE_COUNT + (int)state;
    const struct save_part *part =
        share->count == 0 ? NULL
                          : bsearch(&key, share->parts, (size_t)share->count, sizeof *share->parts, by_param);
    if (part != NULL)
        *out = part->slice;
    return part != NULL;
}

/* ---- who needs it ---- */

static void find_needs(const struct load_plan *r, int param, struct load_rank *out)
{
    const struct param *declared = param_at(r, param);
    const int zero = r->config.weights->zero_stage; // 0 if not training: ranks hold whole weights
    struct mesh_coord coord = mesh_coord(&r->config.run->mesh, declared->mesh, out->rank);
    struct slice held = shard_slice(declared->ndim, declared->dim, declared->shardings,
                                    declared->sharding_count, coord),
                 owned = held;
    if (zero > 0 &&
        !save_plan_owned(r->config.run, r->config.weights, param, r->second[param], out->rank, &owned))
        owned.count[0] = 0;
    out->needed[0] = zero < 3 ? held : owned;
    out->needed[1] = owned;
    for (int i = 0; i < 2; i++)
        out->needs[i] = slice_count(&out->needed[i]) > 0;
}

void load_plan_of(struct load_plan *plan, int param, const struct load_rank **out, int *count)
{
    *count = 0;
    for (int rank = 0; rank < plan->world; rank++) {
        if (!load_plan_has(plan, param, rank))
            continue;
        struct load_rank *reader = &plan->list[(*count)++];
        *reader = (struct load_rank){.rank = rank};
        for (enum state state = 0; state < plan->config.states; state++)
            reader->reads[state] = load_plan_slice(plan, param, state, rank, &reader->slices[state]);
        find_needs(plan, param, reader);
    }
    *out = plan->list;
}
