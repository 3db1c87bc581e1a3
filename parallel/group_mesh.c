// SPDX-License-Identifier: Apache-2.0
/* All groups of a training rank, created at once and in the same order on every rank: creating a comm may
 * need a handshake, and ranks that create comms in different orders would deadlock. */
#include "parallel/group.h"

#include "base/memory.h"

#include <stdlib.h>

static enum status make(struct world *world, struct groups *g, int axes, int *ranks, struct group **out)
{
    char name[AXES_TEXT_CHARS];
    int count = mesh_group(&g->mesh, MESH_DENSE, axes, world->rank, ranks);
    return group_create(world, mesh_axes_text(&g->mesh, axes, name), GROUP_ID_AXES + axes, ranks, count, out);
}

static enum status make_expert(struct world *world, struct groups *g, const char *name, int axes, int *ranks,
                               struct group **out)
{
    int count = mesh_group(&g->mesh, MESH_EXPERT, axes, world->rank, ranks);
    return group_create(world, name, GROUP_ID_EXPERT + axes, ranks, count, out);
}

/* Neighbouring tp ranks with the same key/value heads. */
static enum status make_kv(struct world *world, struct groups *g, int replicas, int *ranks)
{
    int tp = mesh_group(&g->mesh, MESH_DENSE, AXIS_TP, world->rank, ranks);
    if (replicas < 1 || tp % replicas != 0)
        return fail(BAD_ARGUMENT, "%d tensor-parallel ranks cannot hold each key/value head %d times", tp,
                    replicas);
    int first = g->coord.tp / replicas * replicas;
    return group_create(world, "kv", GROUP_ID_KV, ranks + first, replicas, &g->kv);
}

enum status groups_create(struct world *world, const struct mesh *mesh, int kv_replicas, struct groups **out)
{
    if (mesh->world != world->size)
        return fail(BAD_RECIPE, "the mesh has %d ranks, but the world has %d", mesh->world, world->size);
    struct groups *g = memory_zeroed(1, sizeof *g, "groups");
    int *ranks = memory_zeroed((size_t)world->size, sizeof *ranks, "groups");
    g->mesh = *mesh;
    g->coord = mesh_coord(mesh, MESH_DENSE, world->rank);
    for (int rank = 0; rank < world->size; rank++)
        ranks[rank] = rank;
    enum status status = group_create(world, "world", GROUP_ID_AXES, ranks, world->size, &g->world);
    if (status == OK)
        status = make(world, g, AXIS_TP, ranks, &g->tp);
    if (status == OK)
        status = make(world, g, AXIS_CP | AXIS_DP, ranks, &g->data);
    if (status == OK)
        status = make(world, g, AXIS_PP, ranks, &g->pp);
    if (status == OK)
        status = make_kv(world, g, kv_replicas, ranks);
    if (status == OK && !mesh_coincide(mesh))
        status = make_expert(world, g, "etp", AXIS_TP, ranks, &g->expert_tp);
    if (status == OK && !mesh_coincide(mesh))
        status = make_expert(world, g, "edp", AXIS_DP, ranks, &g->expert_data);

    free(ranks);
    if (status == OK)
        *out = g;
    else
        groups_destroy(g);
    return status;
}

/* Two coordinates of the pp axis, at this rank's other coordinates. */
static enum status make_pair(struct world *world, struct groups *g, const char *name, int64_t id,
                             int first_pp, int second_pp, struct group **out)
{
    struct mesh_coord ends[2] = {g->coord, g->coord};
    ends[0].pp = first_pp;
    ends[1].pp = second_pp;
    int ranks[2] = {mesh_rank(&g->mesh, MESH_DENSE, ends[0]), mesh_rank(&g->mesh, MESH_DENSE, ends[1])};
    return group_create(world, name, id, ranks, 2, out);
}

enum status groups_add_ties(struct world *world, struct groups *groups, int first_pp, int last_pp)
{
    return make_pair(world, groups, "ties", GROUP_ID_TIES, first_pp, last_pp, &groups->ties);
}

enum status groups_add_replicas(struct world *world, struct groups *groups)
{
    int degree = groups->mesh.degrees.pp, mine = groups->coord.pp, other = degree - 1 - mine;
    if (degree % 2 != 0)
        return fail(BAD_ARGUMENT, "replicas of stages need an even number of pipeline ranks, not %d", degree);
    return make_pair(world, groups, "stage replicas", GROUP_ID_REPLICAS, mine < other ? mine : other,
                     mine < other ? other : mine, &groups->stage_replicas);
}

bool groups_is_primary_replica(const struct groups *groups)
{
    return groups->coord.dp == 0 && groups->coord.cp == 0 &&
           (groups->stage_replicas == NULL || groups->stage_replicas->rank == 0);
}

struct mesh_groups groups_of(const struct groups *groups, enum mesh_kind mesh)
{
    if (mesh == MESH_EXPERT && !mesh_coincide(&groups->mesh))
        return (struct mesh_groups){.tp = groups->expert_tp, .data = groups->expert_data};
    return (struct mesh_groups){.tp = groups->tp, .data = groups->data};
}

void groups_destroy(struct groups *groups)
{
    if (groups == NULL)
        return;
    struct group *all[] = {groups->world,      groups->tp,   groups->data,           groups->pp,
                           groups->kv,         groups->ties, groups->stage_replicas, groups->expert_tp,
                           groups->expert_data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        group_destroy(all[i]);
    free(groups);
}
