// SPDX-License-Identifier: Apache-2.0
#include "parallel/observe_world.h"

#include "base/memory.h"

#include <stdlib.h>

struct observed_world {
    struct transport_ops ops; // the table of the world and its comms while they are observed
    const struct transport_ops *inner;
    struct observers observers;
};

/* ---- bytes ---- */

int64_t message_bytes(const struct observed_message *message)
{
    return (int64_t)tensor_bytes(message->data);
}

/* The share of a rank in a tensor that is divided by `counts`, or equally. */
static int64_t share_bytes(const struct observed_message *m, const int64_t *counts, int rank)
{
    if (counts == NULL)
        return message_bytes(m) / m->comm->size;
    return counts[rank] * (int64_t)dtype_bytes(m->data.dtype);
}

/* Bytes from rank `from` of the comm to rank `to`, of which this rank is one. */
static int64_t bytes_between(const struct observed_message *m, int from, int to)
{
    bool sends = from == m->comm->rank;
    switch (m->call) {
    case CALL_ALL_REDUCE:
        return message_bytes(m);
    case CALL_REDUCE_SCATTER:
        return share_bytes(m, m->counts, to);
    case CALL_ALL_GATHER:
        return share_bytes(m, m->counts, from);
    case CALL_BROADCAST:
        return from == m->peer ? message_bytes(m) : 0;
    case CALL_ALL_TO_ALL:
        return sends ? share_bytes(m, m->counts, to) : share_bytes(m, m->out_counts, from);
    case CALL_SEND:
        return sends && to == m->peer ? message_bytes(m) : 0;
    case CALL_RECEIVE:
        return !sends && from == m->peer ? message_bytes(m) : 0;
    case CALL_BARRIER:
    case CALL_COUNT:
        break;
    }
    return 0;
}

int64_t message_bytes_to(const struct observed_message *message, int peer)
{
    return bytes_between(message, message->comm->rank, peer);
}

int64_t message_bytes_from(const struct observed_message *message, int peer)
{
    return bytes_between(message, peer, message->comm->rank);
}

/* ---- the observed table ---- */

static struct observation seen_by(const struct comm *comm, const struct stream *stream,
                                  struct observed_message *message)
{
    message->comm = comm;
    message->sequence = comm->observed_calls;
    return (struct observation){.what = OBSERVED_MESSAGE, .stream = stream, .message = message};
}

/* Reports a call; returns the table that executes it. */
static const struct transport_ops *report(struct comm *comm, const struct stream *stream,
                                          struct observed_message message)
{
    comm->observed_calls++;
    observers_notify(&comm->world->observed->observers, seen_by(comm, stream, &message));
    return comm->world->observed->inner;
}

/* Reports that the call has returned `status`, which it returns. */
static enum status enqueued(const struct comm *comm, const struct stream *stream,
                            struct observed_message message, enum status status)
{
    return observers_enqueued(&comm->world->observed->observers, seen_by(comm, stream, &message), status);
}

static enum status observed_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                   int count, struct comm **out)
{
    TRY(world->observed->inner->comm_create(world, name, id, ranks, count, out));
    (*out)->ops = world->ops;
    return OK;
}

static enum status observed_all_reduce(struct comm *comm, struct stream *stream, struct tensor data,
                                       enum reduction how)
{
    const struct observed_message message = {.call = CALL_ALL_REDUCE, .data = data, .peer = -1};
    return enqueued(comm, stream, message,
                    report(comm, stream, message)->all_reduce(comm, stream, data, how));
}

static enum status observed_reduce_scatter(struct comm *comm, struct stream *stream, struct tensor large,
                                           const int64_t *counts, struct tensor small)
{
    const struct observed_message message = {
        .call = CALL_REDUCE_SCATTER, .data = large, .counts = counts, .peer = -1};
    return enqueued(comm, stream, message,
                    report(comm, stream, message)->reduce_scatter(comm, stream, large, counts, small));
}

static enum status observed_all_gather(struct comm *comm, struct stream *stream, struct tensor small,
                                       const int64_t *counts, struct tensor large)
{
    const struct observed_message message = {
        .call = CALL_ALL_GATHER, .data = large, .counts = counts, .peer = -1};
    return enqueued(comm, stream, message,
                    report(comm, stream, message)->all_gather(comm, stream, small, counts, large));
}

static enum status observed_broadcast(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    const struct observed_message message = {.call = CALL_BROADCAST, .data = data, .peer = root};
    return enqueued(comm, stream, message,
                    report(comm, stream, message)->broadcast(comm, stream, data, root));
}

static enum status observed_all_to_all(struct comm *comm, struct stream *stream, struct tensor in,
                                       const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    const struct observed_message message = {
        .call = CALL_ALL_TO_ALL, .data = in, .counts = in_counts, .out_counts = out_counts, .peer = -1};
    return enqueued(comm, stream, message,
                    report(comm, stream, message)->all_to_all(comm, stream, in, in_counts, out, out_counts));
}

/* One message of an exchange. */
static struct observed_message part_of(const struct message *m)
{
    return (struct observed_message){
        .call = m->send ? CALL_SEND : CALL_RECEIVE, .data = m->data, .peer = m->peer};
}

static enum status observed_exchange(struct comm *comm, struct stream *stream, const struct message *messages,
                                     int count)
{
    const struct observers *observers = &comm->world->observed->observers;
    comm->observed_calls++;
    for (int i = 0; i < count; i++) {
        struct observed_message part = part_of(&messages[i]);
        observers_notify(observers, seen_by(comm, stream, &part));
    }
    enum status status = comm->world->observed->inner->exchange(comm, stream, messages, count);
    for (int i = 0; i < count; i++)
        status = enqueued(comm, stream, part_of(&messages[i]), status);
    return status;
}

static enum status observed_barrier(struct comm *comm, struct stream *stream)
{
    const struct observed_message message = {.call = CALL_BARRIER, .peer = -1};
    return enqueued(comm, stream, message, report(comm, stream, message)->barrier(comm, stream));
}

/* ---- attaching ---- */

static enum status wrap(struct world *world)
{
    struct observed_world *observed = memory_zeroed(1, sizeof *observed, "the observers of a world");
    observed->inner = world->ops;
    observed->ops = *world->ops;
    observed->ops.comm_create = observed_create;
    observed->ops.all_reduce = observed_all_reduce;
    observed->ops.reduce_scatter = observed_reduce_scatter;
    observed->ops.all_gather = observed_all_gather;
    observed->ops.broadcast = observed_broadcast;
    observed->ops.all_to_all = observed_all_to_all;
    observed->ops.exchange = observed_exchange;
    observed->ops.barrier = observed_barrier;
    world->observed = observed;
    world->ops = &observed->ops;
    return OK;
}

enum status world_observe(struct world *world, struct observer observer)
{
    if (world->observed == NULL)
        TRY(wrap(world));
    return observers_add(&world->observed->observers, observer);
}

void world_stop_observing(struct world *world)
{
    if (world->observed == NULL)
        return;
    world->ops = world->observed->inner;
    free(world->observed);
    world->observed = NULL;
}
