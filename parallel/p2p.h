// SPDX-License-Identifier: Apache-2.0
/* Point-to-point transfers between pipeline ranks. Every directed edge of the pipeline and each payload
 * (activations, gradients) has a comm and a stream of its own, so that no transfer queues after one on
 * another edge:
 *
 *     pp 0 ──activations──> pp 1      edge {0, 1, false}
 *     pp 0 <──gradients──── pp 1      edge {1, 0, true}
 *
 * Transfers of one edge match in call order, so sender and receiver must call in the same order; the schedule
 * checker guarantees it. In a `synchronous` world each call blocks until the other end has called, as the
 * checker assumes. */
#pragma once

#include "parallel/group.h"

struct p2p_edge {
    int from_pp, to_pp; // pipeline coordinates
    bool gradient;
};

struct p2p;

/* Collective over the world. edges: all edges of the whole pipeline, the same list on every rank. Each
 * rank creates the edges of which it is one end, with the peer at its own tp, cp and dp coordinates.
 * BAD_ARGUMENT for an edge to itself, outside the pipeline, or listed twice. */
MUST_USE enum status p2p_create(struct world *world, const struct groups *groups, struct device *device,
                                const struct p2p_edge *edges, int count, struct p2p **out);
void p2p_destroy(struct p2p *p2p); // accepts NULL; synchronizes first

/* The transfer starts once `after` (of the stream that fills or frees the tensor) is done. The tensor must
 * not be written until *sent, and not accessed until *arrived. It is dense; both ends agree on its shape.
 * BAD_ARGUMENT names an edge that was not created. */
MUST_USE enum status p2p_send(struct p2p *p2p, int to_pp, bool gradient, struct tensor tensor,
                              struct event after, struct event *sent);
MUST_USE enum status p2p_recv(struct p2p *p2p, int from_pp, bool gradient, struct tensor tensor,
                              struct event after, struct event *arrived);
/* Blocks the host until no transfer of this rank is in flight. */
MUST_USE enum status p2p_sync(struct p2p *p2p);
