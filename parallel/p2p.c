// SPDX-License-Identifier: Apache-2.0
#include "parallel/p2p.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

struct channel {
    struct p2p_edge edge;
    struct group *group; // rank 0 sends, rank 1 receives; NULL: not an end of this edge
    struct stream *stream;
};

struct p2p {
    int pp; // this rank's coordinate
    bool blocking;
    int count;
    struct channel channels[];
};

static enum status check_edges(const struct p2p_edge *edges, int count, int degree)
{
    for (int i = 0; i < count; i++) {
        struct p2p_edge e = edges[i];
        if (e.from_pp < 0 || e.from_pp >= degree || e.to_pp < 0 || e.to_pp >= degree || e.from_pp == e.to_pp)
            return fail(BAD_ARGUMENT, "a pipeline of %d ranks has no edge %d > %d", degree, e.from_pp,
                        e.to_pp);
        for (int j = 0; j < i; j++)
            if (edges[j].from_pp == e.from_pp && edges[j].to_pp == e.to_pp && edges[j].gradient == e.gradient)
                return fail(BAD_ARGUMENT, "the pipeline's edge %d > %d is listed twice", e.from_pp, e.to_pp);
    }
    return OK;
}

static enum status channel_create(struct world *world, const struct groups *groups, struct device *device,
                                  struct p2p_edge edge, int index, struct channel *out)
{
    out->edge = edge;
    struct mesh_coord ends[2] = {groups->coord, groups->coord};
    ends[0].pp = edge.from_pp;
    ends[1].pp = edge.to_pp;
    int ranks[2] = {mesh_rank(&groups->mesh, MESH_DENSE, ends[0]),
                    mesh_rank(&groups->mesh, MESH_DENSE, ends[1])};
    char name[32];
    snprintf(name, sizeof name, "pp %d>%d%s", edge.from_pp, edge.to_pp, edge.gradient ? " gradient" : "");
    TRY(group_create(world, name, GROUP_ID_P2P + index, ranks, 2, &out->group));
    return out->group != NULL
               ? stream_create(device, edge.gradient ? "gradients" : "activations", &out->stream)
               : OK;
}

enum status p2p_create(struct world *world, const struct groups *groups, struct device *device,
                       const struct p2p_edge *edges, int count, struct p2p **out)
{
    TRY(check_edges(edges, count, groups->mesh.degrees.pp));
    struct p2p *p2p =
        memory_zeroed(1, sizeof *p2p + (size_t)count * sizeof p2p->channels[0], "pipeline edges");
    p2p->pp = groups->coord.pp;
    p2p->blocking = world->synchronous;
    p2p->count = count;
    enum status status = OK;
    for (int i = 0; i < count && status == OK; i++)
        status = channel_create(world, groups, device, edges[i], i, &p2p->channels[i]);
    if (status == OK)
        *out = p2p;
    else
        p2p_destroy(p2p);
    return status;
}

void p2p_destroy(struct p2p *p2p)
{
    if (p2p == NULL)
        return;
    // All streams first: the last messages of one edge may depend on those of another.
    for (int i = 0; i < p2p->count; i++)
        stream_destroy(p2p->channels[i].stream);
    for (int i = 0; i < p2p->count; i++)
        group_destroy(p2p->channels[i].group);
    free(p2p);
}

static enum status transfer(struct p2p *p2p, struct p2p_edge edge, struct tensor tensor, struct event after,
                            struct event *done)
{
    for (int i = 0; i < p2p->count; i++) {
        struct channel *c = &p2p->channels[i];
        if (c->group == NULL || c->edge.from_pp != edge.from_pp || c->edge.to_pp != edge.to_pp ||
            c->edge.gradient != edge.gradient)
            continue;
        struct message message = {.data = tensor, .peer = 1 - c->group->rank, .send = c->group->rank == 0};
        TRY(stream_wait(c->stream, after));
        TRY(group_exchange(c->group, c->stream, &message, 1));
        *done = stream_record(c->stream);
        return p2p->blocking ? event_sync(*done) : OK;
    }
    return fail(BAD_ARGUMENT, "pipeline rank %d has no edge %d > %d for %s", p2p->pp, edge.from_pp,
                edge.to_pp, edge.gradient ? "gradients" : "activations");
}

enum status p2p_send(struct p2p *p2p, int to_pp, bool gradient, struct tensor tensor, struct event after,
                     struct event *sent)
{
    struct p2p_edge edge = {.from_pp = p2p->pp, .to_pp = to_pp, .gradient = gradient};
    return transfer(p2p, edge, tensor, after, sent);
}

enum status p2p_recv(struct p2p *p2p, int from_pp, bool gradient, struct tensor tensor, struct event after,
                     struct event *arrived)
{
    struct p2p_edge edge = {.from_pp = from_pp, .to_pp = p2p->pp, .gradient = gradient};
    return transfer(p2p, edge, tensor, after, arrived);
}

enum status p2p_sync(struct p2p *p2p)
{
    for (int i = 0; i < p2p->count; i++)
        if (p2p->channels[i].stream != NULL)
            TRY(stream_sync(p2p->channels[i].stream));
    return OK;
}
