// SPDX-License-Identifier: Apache-2.0
/* Transfers between pipeline stages. Every directed edge of the pipeline and each kind of load
 * (activations, gradients) has a comm and a stream of its own, so a transfer waits only for what it
 * carries and never queues behind one that goes elsewhere:
 *
 *     stage 0 ──activations──> stage 1      edge {0, 1, false}
 *     stage 0 <──gradients──── stage 1      edge {1, 0, true}
 *
 * The transfers of one edge arrive in the order in which they were sent, so sender and receiver must call
 * in the same order; the schedule's checker sees to that. In a world that is `synchronous` each call blocks
 * until the other end has come to its own, as the checker has it. */
#pragma once

#include "parallel/group.h"

struct p2p_edge {
    int from_pp, to_pp; // pipeline coordinates
    bool gradient;
};

struct p2p;

/* Collective over the world: `edges` are all edges of the whole pipeline, the same list on every rank. Each
 * rank makes those that it is an end of, with the peer of its own tp, cp and dp coordinates. BAD_ARGUMENT
 * for an edge to itself, out of the pipeline, or listed twice. */
MUST_USE enum status p2p_create(struct world *world, const struct groups *groups, struct device *device,
                                const struct p2p_edge *edges, int count, struct p2p **out);
void p2p_destroy(struct p2p *p2p); // takes NULL; synchronises first

/* The transfer starts once `after` is done (of the stream that fills or frees the tensor); until *sent the
 * tensor may not be written, until *arrived not be touched. The tensor is dense; both ends agree on its
 * shape. BAD_ARGUMENT names an edge that was not created. */
MUST_USE enum status p2p_send(struct p2p *p2p, int to_pp, bool gradient, struct tensor tensor,
                              struct event after, struct event *sent);
MUST_USE enum status p2p_recv(struct p2p *p2p, int from_pp, bool gradient, struct tensor tensor,
                              struct event after, struct event *arrived);
/* Blocks the host until no transfer of this rank is under way. */
MUST_USE enum status p2p_sync(struct p2p *p2p);
