// SPDX-License-Identifier: Apache-2.0
/* Comms and collectives of the nccl transport: one GPU per rank, asynchronous on the GPU.
 *
 *     rank 0 ── unique id ──> the others      over the bootstrap world: threads' memory, MPI, or a store
 *     all:  ncclCommInitRank, then first messages, so that wiring faults appear before step 0
 *     a call enqueues the message on the stream and returns; the host does not wait
 *
 * Sums. NCCL adds along rings and trees, in an order that depends on the topology, the message size and the
 * slice; its maximum drops NaN. comm.h requires rank order, so unless nondeterministic order is allowed, NCCL
 * only *moves* floats and a kernel (cuda_combine) adds them:
 *
 *     small:   gather all, and every rank adds            (n - 1) x count arrive
 *     large:   all to all of 1/n shares, add, gather      2 (n - 1)/n x count arrive, as in a ring
 *
 * Results are then bit-identical to those of every other transport and independent of the topology;
 * reduce-scatter, all-gather and all-reduce agree with each other. Integer sums do not depend on the order
 * and use NCCL's own.
 *
 * Caution: messages of one comm run one after the other in call order (comm.h); those of different comms
 * start in the order of this rank's calls (NCCL_LAUNCH_ORDER_IMPLICIT), or, before NCCL 2.26, each after the
 * one before (an event per rank). The enqueued messages must therefore complete even if every message blocked
 * until its peer arrived: the schedule checker guarantees it. */
#include "parallel/transports/nccl/comm_nccl.h"

#include "base/memory.h"
#include "parallel/transports/nccl/comm_nccl_scratch.h"
#include "parallel/transports/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct nccl_comm *nccl_of(struct comm *comm)
{
    return (struct nccl_comm *)comm->state;
}

static const struct nccl_library *library_of(const struct nccl_comm *c)
{
    return &c->world->job->nccl;
}

static ncclDataType_t type_of(enum dtype dtype)
{
    switch (dtype) {
    case F32:
        return ncclFloat32;
    case F64:
        return ncclFloat64;
    case I32:
        return ncclInt32;
    case I64:
        return ncclInt64;
    case BF16:
        return (ncclDataType_t)NCCL_BFLOAT16;
    case F16:
        return ncclFloat16;
    case DTYPE_COUNT:
        break;
    }
    die(__FILE__, __LINE__, "dtype", "unknown dtype %d", (int)dtype);
}

static bool is_float(enum dtype dtype)
{
    return dtype != I32 && dtype != I64;
}

enum status nccl_check(const struct nccl_library *nccl, const struct nccl_comm *comm, ncclResult_t result,
                       const char *call, const char *name)
{
    if (result == ncclSuccess)
        return OK;
    const char *more = nccl->ncclGetLastError(comm != NULL ? comm->nccl : NULL);
    if (more == NULL)
        more = "";
    // NCCL reports CUDA errors only as text.
    bool memory = result == ncclUnhandledCudaError &&
                  strstr(more, cudaGetErrorString(cudaErrorMemoryAllocation)) != NULL;
    enum status status = result == ncclRemoteError ? PEER_LOST : memory ? NO_DEVICE_MEMORY : NOT_SUPPORTED;
    char left[CUDA_FREE_CHARS];
    return fail(status, "nccl: %s%s%s: %s%s%s%s%s; set NCCL_DEBUG=INFO for details", call,
                name[0] != '\0' ? " " : "", name, nccl->ncclGetErrorString(result),
                more[0] != '\0' ? ": " : "", more, memory ? "; " : "", memory ? cuda_free_text(left) : "");
}

/* Ends a group in which a call returned `result`, also after a failure: otherwise this thread's next calls,
 * even the abort of its comms, would be added to the group. */
static enum status end_group(const struct nccl_comm *c, ncclResult_t result, const char *call)
{
    const struct nccl_library *nccl = library_of(c);
    enum status status = nccl_check(nccl, c, result, call, c->comm.name);
    ncclResult_t ended = nccl->ncclGroupEnd(); // returns the same failure again
    return status == OK ? nccl_check(nccl, c, ended, "ncclGroupEnd", c->comm.name) : status;
}

/* ---- enqueueing one message ---- */

/* One call of this transport in progress. */
struct nccl_call {
    struct nccl_comm *c;
    const struct nccl_library *nccl;
    struct cuda_queue *queue;
    const char *name; // "all_reduce tp"
};

static enum status begin(struct comm *comm, struct stream *stream, enum call call, struct nccl_call *out)
{
    struct nccl_comm *c = nccl_of(comm);
    *out = (struct nccl_call){.c = c, .nccl = library_of(c), .name = c->names[call]};
    if (c->nccl == NULL)
        return fail(PEER_LOST, "%s: the comm was aborted because another rank has failed", out->name);
    if (stream->device->replaying != NULL) {
        stream->device->replay_violation = "a message";
        return BAD_ARGUMENT;
    }
    TRY(cuda_message_begin(stream, &out->queue));
    TRY(nccl_wait_for_turn(c->world, out->queue->stream));
    rank_context_set_wait(out->name); // a call blocks if the GPU's queue is full
    return OK;
}

static enum status end(const struct nccl_call *call, enum status status)
{
    rank_context_set_wait("");
    TRY(status);
    TRY(nccl_pass_turn(call->c->world, call->queue->stream));
    return cuda_message_end(call->queue, call->name, &call->c->world->guard);
}

static enum status check(const struct nccl_call *call, ncclResult_t result, const char *what)
{
    return nccl_check(call->nccl, call->c, result, what, call->c->comm.name);
}

/* ---- sums in rank order ---- */

/* in[count] of every rank -> out[count] of each: their sum or maximum. */
static enum status gather_and_add(const struct nccl_call *call, const void *in, void *out, int64_t count,
                                  enum dtype dtype, enum reduction how)
{
    const struct comm *comm = &call->c->comm;
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    void *parts;
    TRY(cuda_message_scratch(call->queue, (size_t)comm->size * bytes, &parts));
    TRY(check(call,
              call->nccl->ncclAllGather(in, parts, (size_t)count, type_of(dtype), call->c->nccl,
                                        call->queue->stream),
              "ncclAllGather"));
    return cuda_combine(call->queue, &(struct cuda_combine){.out = out,
                                                            .parts = parts,
                                                            .mine = in,
                                                            .stride = count,
                                                            .count = count,
                                                            .rank = comm->rank,
                                                            .ranks = comm->size,
                                                            .dtype = dtype,
                                                            .maximum = how == REDUCE_MAX});
}

/* One slice per rank, consecutive: counts[r] elements, or equal sizes if counts is NULL. */
struct slices {
    char *data;
    enum dtype dtype;
    const int64_t *counts;
    int64_t equal;
};

static int64_t slice_count(const struct slices *s, int rank)
{
    return s->counts != NULL ? s->counts[rank] : s->equal;
}

/* Returns the start of the slice of `rank`. */
static char *slice_begin(const struct slices *s, int rank)
{
    int64_t before = s->counts == NULL ? rank * s->equal : 0;
    for (int r = 0; s->counts != NULL && r < rank; r++)
        before += s->counts[r];
    return s->data + (size_t)before * dtype_bytes(s->dtype);
}

/* Returns the number of elements [at, at + limit) that the slice has. */
static int64_t chunk_count(const struct slices *s, int rank, int64_t at, int64_t limit)
{
    int64_t left = slice_count(s, rank) - at;
    return left < 0 ? 0 : left < limit ? left : limit;
}

/* Sends that chunk of every slice to its rank, which adds the received chunks: out. */
static enum status scatter_and_add(const struct nccl_call *call, const struct slices *s, int64_t at,
                                   int64_t limit, void *out)
{
    const struct nccl_comm *c = call->c;
    ncclDataType_t type = type_of(s->dtype);
    int rank = c->comm.rank;
    size_t each = dtype_bytes(s->dtype), skip = (size_t)at * each;
    int64_t mine = chunk_count(s, rank, at, limit);
    void *parts;
    TRY(cuda_message_scratch(call->queue, (size_t)c->comm.size * (size_t)mine * each, &parts));
    ncclResult_t result = call->nccl->ncclGroupStart();
    for (int r = 0; r < c->comm.size && result == ncclSuccess; r++) {
        size_t theirs = (size_t)chunk_count(s, r, at, limit);
        char *part = (char *)parts + (size_t)r * (size_t)mine * each;
        if (r != rank && theirs > 0)
            result =
                call->nccl->ncclSend(slice_begin(s, r) + skip, theirs, type, r, c->nccl, call->queue->stream);
        if (r != rank && mine > 0 && result == ncclSuccess)
            result = call->nccl->ncclRecv(part, (size_t)mine, type, r, c->nccl, call->queue->stream);
    }
    TRY(end_group(c, result, "ncclSend"));
    struct cuda_combine sum = {.out = out,
                               .parts = parts,
                               .mine = slice_begin(s, rank) + skip,
                               .stride = mine,
                               .count = mine,
                               .rank = rank,
                               .ranks = c->comm.size,
                               .dtype = s->dtype};
    return mine > 0 ? cuda_combine(call->queue, &sum) : OK;
}

/* One chunk, with bounded scratch memory: equal shares, and the remainder. */
static enum status add_chunk(const struct nccl_call *call, char *data, int64_t count, enum dtype dtype)
{
    const struct comm *comm = &call->c->comm;
    size_t each = dtype_bytes(dtype);
    int64_t share = count / comm->size;
    struct slices slices = {.data = data, .dtype = dtype, .equal = share};
    if (nccl_gathers(comm->size, count, each, false))
        return gather_and_add(call, data, data, count, dtype, REDUCE_SUM);
    char *mine = slice_begin(&slices, comm->rank);
    TRY(scatter_and_add(call, &slices, 0, share, mine));
    TRY(check(call,
              call->nccl->ncclAllGather(mine, data, (size_t)share, type_of(dtype), call->c->nccl,
                                        call->queue->stream),
              "ncclAllGather"));
    int64_t done = share * comm->size;
    char *rest = data + (size_t)done * each;
    return done < count ? gather_and_add(call, rest, rest, count - done, dtype, REDUCE_SUM) : OK;
}

static enum status reduce_in_order(const struct nccl_call *call, struct tensor data, enum reduction how)
{
    size_t each = dtype_bytes(data.dtype);
    int64_t limit = nccl_chunk(call->c->comm.size, each, how == REDUCE_MAX), all = tensor_count(data);
    for (int64_t at = 0; at < all; at += limit) {
        char *chunk = (char *)data.data + (size_t)at * each;
        int64_t count = all - at < limit ? all - at : limit;
        if (how == REDUCE_MAX)
            TRY(gather_and_add(call, chunk, chunk, count, data.dtype, how));
        else
            TRY(add_chunk(call, chunk, count, data.dtype));
    }
    return OK;
}

/* ---- collectives ---- */

static enum status all_reduce_nccl(struct comm *comm, struct stream *stream, struct tensor data,
                                   enum reduction how)
{
    struct nccl_call call;
    TRY(begin(comm, stream, CALL_ALL_REDUCE, &call));
    bool in_order =
        is_float(data.dtype) && (how == REDUCE_MAX || !call.c->world->job->options->nondeterministic);
    if (in_order)
        return end(&call, reduce_in_order(&call, data, how));
    return end(&call, check(&call,
                            call.nccl->ncclAllReduce(
                                data.data, data.data, (size_t)tensor_count(data), type_of(data.dtype),
                                how == REDUCE_SUM ? ncclSum : ncclMax, call.c->nccl, call.queue->stream),
                            "ncclAllReduce"));
}

/* Integers with slices of different sizes: all-reduces everything and keeps this rank's slice. */
static enum status add_uneven_integers(const struct nccl_call *call, const struct slices *s, int64_t count,
                                       struct tensor small)
{
    char *mine = slice_begin(s, call->c->comm.rank);
    TRY(check(call,
              call->nccl->ncclAllReduce(s->data, s->data, (size_t)count, type_of(s->dtype), ncclSum,
                                        call->c->nccl, call->queue->stream),
              "ncclAllReduce"));
    if (mine == (char *)small.data || tensor_count(small) == 0)
        return OK;
    return cuda_check(
        call->queue,
        cudaMemcpyAsync(small.data, mine, tensor_bytes(small), cudaMemcpyDeviceToDevice, call->queue->stream),
        "cudaMemcpyAsync");
}

static enum status reduce_scatter_nccl(struct comm *comm, struct stream *stream, struct tensor large,
                                       const int64_t *counts, struct tensor small)
{
    struct nccl_call call;
    size_t each = dtype_bytes(large.dtype);
    struct slices slices = {
        .data = large.data, .dtype = large.dtype, .counts = counts, .equal = tensor_count(small)};
    TRY(begin(comm, stream, CALL_REDUCE_SCATTER, &call));
    if (counts == NULL && (!is_float(large.dtype) || call.c->world->job->options->nondeterministic))
        return end(&call, check(&call,
                                call.nccl->ncclReduceScatter(
                                    large.data, small.data, (size_t)tensor_count(small), type_of(large.dtype),
                                    ncclSum, call.c->nccl, call.queue->stream),
                                "ncclReduceScatter"));
    if (!is_float(large.dtype))
        return end(&call, add_uneven_integers(&call, &slices, tensor_count(large), small));
    int64_t limit = nccl_slice_chunk(comm->size, each), largest = 0;
    for (int r = 0; r < comm->size; r++)
        largest = slice_count(&slices, r) > largest ? slice_count(&slices, r) : largest;
    enum status status = OK;
    for (int64_t at = 0; at < largest && status == OK; at += limit)
        status = scatter_and_add(&call, &slices, at, limit, (char *)small.data + (size_t)at * each);
    return end(&call, status);
}

/* Slices of different sizes: each is broadcast, all in one group. */
static enum status gather_uneven(const struct nccl_call *call, struct tensor small, const struct slices *s)
{
    ncclResult_t result = call->nccl->ncclGroupStart();
    for (int r = 0; r < call->c->comm.size && result == ncclSuccess; r++) {
        char *to = slice_begin(s, r);
        const void *from = r == call->c->comm.rank ? small.data : to;
        if (slice_count(s, r) > 0)
            result = call->nccl->ncclBroadcast(from, to, (size_t)slice_count(s, r), type_of(s->dtype), r,
                                               call->c->nccl, call->queue->stream);
    }
    return end_group(call->c, result, "ncclBroadcast");
}

static enum status all_gather_nccl(struct comm *comm, struct stream *stream, struct tensor small,
                                   const int64_t *counts, struct tensor large)
{
    struct nccl_call call;
    struct slices slices = {.data = large.data, .dtype = large.dtype, .counts = counts};
    TRY(begin(comm, stream, CALL_ALL_GATHER, &call));
    if (counts != NULL)
        return end(&call, gather_uneven(&call, small, &slices));
    return end(&call, check(&call,
                            call.nccl->ncclAllGather(small.data, large.data, (size_t)tensor_count(small),
                                                     type_of(small.dtype), call.c->nccl, call.queue->stream),
                            "ncclAllGather"));
}

static enum status broadcast_nccl(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    struct nccl_call call;
    TRY(begin(comm, stream, CALL_BROADCAST, &call));
    return end(&call,
               check(&call,
                     call.nccl->ncclBroadcast(data.data, data.data, (size_t)tensor_count(data),
                                              type_of(data.dtype), root, call.c->nccl, call.queue->stream),
                     "ncclBroadcast"));
}

/* Includes a send of this rank to itself. */
static enum status all_to_all_nccl(struct comm *comm, struct stream *stream, struct tensor in,
                                   const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    struct nccl_call call;
    size_t each = dtype_bytes(in.dtype);
    const char *from = in.data;
    char *to = out.data;
    TRY(begin(comm, stream, CALL_ALL_TO_ALL, &call));
    ncclResult_t result = call.nccl->ncclGroupStart();
    for (int r = 0; r < comm->size && result == ncclSuccess; r++) {
        if (in_counts[r] > 0)
            result = call.nccl->ncclSend(from, (size_t)in_counts[r], type_of(in.dtype), r, call.c->nccl,
                                         call.queue->stream);
        if (out_counts[r] > 0 && result == ncclSuccess)
            result = call.nccl->ncclRecv(to, (size_t)out_counts[r], type_of(out.dtype), r, call.c->nccl,
                                         call.queue->stream);
        from += (size_t)in_counts[r] * each;
        to += (size_t)out_counts[r] * each;
    }
    return end(&call, end_group(call.c, result, "ncclSend"));
}

static enum status exchange_nccl(struct comm *comm, struct stream *stream, const struct message *messages,
                                 int count)
{
    struct nccl_call call;
    TRY(begin(comm, stream, messages[0].send ? CALL_SEND : CALL_RECEIVE, &call));
    ncclResult_t result = call.nccl->ncclGroupStart();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const struct message *m = &messages[i];
        size_t elements = (size_t)tensor_count(m->data);
        if (elements == 0)
            continue;
        result = m->send ? call.nccl->ncclSend(m->data.data, elements, type_of(m->data.dtype), m->peer,
                                               call.c->nccl, call.queue->stream)
                         : call.nccl->ncclRecv(m->data.data, elements, type_of(m->data.dtype), m->peer,
                                               call.c->nccl, call.queue->stream);
    }
    return end(&call, end_group(call.c, result, "ncclSend"));
}

/* An all-reduce of one unused element. */
static enum status barrier_nccl(struct comm *comm, struct stream *stream)
{
    struct nccl_call call;
    void *number = NULL;
    TRY(begin(comm, stream, CALL_BARRIER, &call));
    enum status status = cuda_message_scratch(call.queue, sizeof(int32_t), &number);
    if (status == OK)
        status = check(
            &call,
            call.nccl->ncclAllReduce(number, number, 1, ncclInt32, ncclSum, call.c->nccl, call.queue->stream),
            "ncclAllReduce");
    return end(&call, status);
}

/* ---- memory registration ---- */

/* All ranks of a message must have registered its memory, or none (NCCL's guide): so nothing is registered if
 * sums are in rank order, because their parts go through scratch memory. */
static enum status register_nccl(struct comm *comm, void *data, size_t bytes, void **handle)
{
    struct nccl_comm *c = nccl_of(comm);
    *handle = NULL;
    if (c->nccl == NULL)
        return fail(PEER_LOST, "comm %s was aborted because another rank has failed", comm->name);
    if (!c->world->job->options->nondeterministic)
        return OK;
    return nccl_check(library_of(c), c, library_of(c)->ncclCommRegister(c->nccl, data, bytes, handle),
                      "ncclCommRegister (set parallel.nccl_ub=false to avoid it)", comm->name);
}

static void unregister_nccl(struct comm *comm, void *handle)
{
    struct nccl_comm *c = nccl_of(comm);
    if (c->nccl != NULL) // aborting the comm has already released it
        library_of(c)->ncclCommDeregister(c->nccl, handle);
}

/* ---- comms ---- */

/* Sent by the first rank of a group to the others. */
struct unique_id_message {
    int32_t status;
    ncclUniqueId id;
};

static enum status broadcast_unique_id(struct nccl_world *w, const char *name, int64_t id, const int *ranks,
                                       int count, struct unique_id_message *out)
{
    _Static_assert(sizeof *out % sizeof(int32_t) == 0, "sent as an array of int32");
    const struct nccl_library *nccl = &w->job->nccl;
    struct comm *bootstrap = NULL;
    TRY(w->bootstrap->ops->comm_create(w->bootstrap, name, id, ranks, count, &bootstrap));
    enum status status = OK;
    memset(out, 0, sizeof *out);
    if (ranks[0] == w->bootstrap->rank)
        status = nccl_check(nccl, NULL, nccl->ncclGetUniqueId(&out->id), "ncclGetUniqueId", name);
    out->status = (int32_t)status;
    struct tensor words = tensor_1d(out, I32, sizeof *out / sizeof(int32_t));
    enum status sent = bootstrap->ops->broadcast(bootstrap, w->stream, words, 0);
    if (sent == OK)
        sent = stream_sync(w->stream);
    bootstrap->ops->comm_destroy(bootstrap);
    TRY(status);
    TRY(sent);
    return out->status == OK ? OK : fail(PEER_LOST, "comm %s: rank %d could not create it", name, ranks[0]);
}

/* Waits until `stream` has finished, or this rank or another one has failed. */
static enum status wait_for_stream(struct nccl_world *w, cudaStream_t stream)
{
    for (;;) {
        cudaError_t error = cudaStreamQuery(stream);
        if (error != cudaErrorNotReady)
            return cuda_check(NULL, error, "cudaStreamQuery");
        TRY(w->guard.check(&w->guard));
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Sends a first message between all pairs of ranks, even if NCCL itself reduces: overlapped chunks and slices
 * of different sizes are point-to-point. Larger groups than MAX_CONNECTED_RANKS connect on first use. */
enum { MAX_CONNECTED_RANKS = 64 };
static enum status warm_up_connections(struct nccl_comm *c)
{
    const struct nccl_library *nccl = library_of(c);
    const struct comm *comm = &c->comm;
    char *buffer = c->world->warm_up_buffer;
    cudaStream_t stream = c->world->warm_up; // idle at the end: it has no turn to pass
    TRY(nccl_wait_for_turn(c->world, stream));
    TRY(nccl_check(nccl, c, nccl->ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, c->nccl, stream),
                   "ncclAllReduce", comm->name));
    if (comm->size > MAX_CONNECTED_RANKS && c->world->job->options->nondeterministic)
        return wait_for_stream(c->world, stream);
    ncclResult_t result = nccl->ncclGroupStart();
    for (int r = 0; r < comm->size && result == ncclSuccess; r++) {
        if (r == comm->rank)
            continue;
        result = nccl->ncclSend(buffer, 1, ncclInt32, r, c->nccl, stream);
        if (result == ncclSuccess)
            result =
                nccl->ncclRecv(buffer + sizeof(int32_t) * (size_t)(r + 1), 1, ncclInt32, r, c->nccl, stream);
    }
    TRY(end_group(c, result, "ncclSend"));
    return wait_for_stream(c->world, stream);
}

/* Creates the communicator and its connections. */
static enum status connect(struct nccl_comm *c, const struct unique_id_message *message)
{
    const struct nccl_library *nccl = library_of(c);
    rank_context_set_wait(c->comm.name);
    TRY(nccl_check(nccl, c, nccl->ncclCommInitRank(&c->nccl, c->comm.size, message->id, c->comm.rank),
                   "ncclCommInitRank", c->comm.name));
    enum status status = warm_up_connections(c);
    rank_context_set_wait("");
    return status;
}

static void name_calls(struct nccl_comm *c)
{
    for (int call = 0; call < CALL_COUNT; call++)
        snprintf(c->names[call], sizeof c->names[call], "%s %s",
                 call == CALL_SEND || call == CALL_RECEIVE ? "exchange" : call_name((enum call)call),
                 c->comm.name);
}

enum status nccl_comm_create(struct world *world, const char *name, int64_t id, const int *ranks, int count,
                             struct comm **out)
{
    struct nccl_world *w = world->state;
    struct unique_id_message message;
    TRY(broadcast_unique_id(w, name, id, ranks, count, &message));
    struct nccl_comm *c = memory_zeroed(1, sizeof *c, "a communicator");
    c->comm = (struct comm){.ops = &transport_nccl, .world = world, .size = count, .state = c};
    c->world = w;
    snprintf(c->comm.name, sizeof c->comm.name, "%s", name);
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->rank)
            c->comm.rank = i;
    name_calls(c);
    c->next = w->comms;
    w->comms = c;
    enum status status = connect(c, &message);
    if (status == OK)
        *out = &c->comm;
    else
        nccl_abort(w);
    return status;
}

void nccl_comm_destroy(struct comm *comm)
{
    struct nccl_comm *c = nccl_of(comm), **link = &c->world->comms;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    if (c->nccl != NULL)
        library_of(c)->ncclCommDestroy(c->nccl);
    free(c);
}

/* In one group: aborting a comm frees its memory, which waits for the GPU, which may be blocked in a message
 * of another comm until that is aborted too (NCCL issue 1013). */
void nccl_abort(struct nccl_world *world)
{
    const struct nccl_library *nccl = &world->job->nccl;
    bool any = false;
    for (struct nccl_comm *c = world->comms; c != NULL; c = c->next) {
        if (c->nccl == NULL)
            continue;
        if (!any)
            nccl->ncclGroupStart();
        any = true;
        nccl->ncclCommAbort(c->nccl);
        c->nccl = NULL;
    }
    if (any)
        nccl->ncclGroupEnd();
}

const struct transport_ops transport_nccl = {
    .name = "nccl",
    .summary = "a GPU for each rank: threads of one process, or processes under mpirun or srun --mpi=pmix",
    .device = "cuda",
    .moves_data = true,
    .run = nccl_run,
    .comm_create = nccl_comm_create,
    .comm_destroy = nccl_comm_destroy,
    .all_reduce = all_reduce_nccl,
    .reduce_scatter = reduce_scatter_nccl,
    .all_gather = all_gather_nccl,
    .broadcast = broadcast_nccl,
    .all_to_all = all_to_all_nccl,
    .exchange = exchange_nccl,
    .barrier = barrier_nccl,
    .register_memory = register_nccl,
    .unregister_memory = unregister_nccl,
};
