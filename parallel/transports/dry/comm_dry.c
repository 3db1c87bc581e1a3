// SPDX-License-Identifier: Apache-2.0
/* The dry transport: a world of any size that runs one rank at a time without peers. Every message completes
 * when its turn on the stream comes. For devices that model a GPU, the scratch memory of the GPU transport's
 * reductions is allocated too. */
#include "base/memory.h"
#include "kernels/device_plan.h"
#include "parallel/comm.h"
#include "parallel/transports/nccl/comm_nccl_scratch.h"
#include "parallel/transports/transports.h"

#include <stdio.h>
#include <stdlib.h>

struct dry_request {
    struct work work; // first
    char name[56];
};

static enum status dry_start(struct work *work)
{
    (void)work;
    return OK;
}

static enum status dry_poll(struct work *work, bool *done)
{
    *done = true;
    free(work);
    return OK;
}

static void dry_sleep(struct work *work)
{
    (void)work;
}

static enum status dry_message(struct comm *comm, struct stream *stream, enum call call)
{
    struct dry_request *r = memory_zeroed(1, sizeof *r, "a message");
    snprintf(r->name, sizeof r->name, "%s %s", call_name(call), comm->name);
    r->work = (struct work){.start = dry_start, .poll = dry_poll, .sleep = dry_sleep, .name = r->name};
    return stream_submit_work(stream, &r->work);
}

static enum status comm_create_dry(struct world *world, const char *name, int64_t id, const int *ranks,
                                   int count, struct comm **out)
{
    (void)id;
    struct comm *comm = memory_zeroed(1, sizeof *comm, "a communicator");
    *comm = (struct comm){.ops = &transport_dry, .world = world, .size = count};
    snprintf(comm->name, sizeof comm->name, "%s", name);
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->rank)
            comm->rank = i;
    *out = comm;
    return OK;
}

static void comm_destroy_dry(struct comm *comm)
{
    free(comm);
}

static enum status all_reduce_dry(struct comm *comm, struct stream *stream, struct tensor data,
                                  enum reduction how)
{
    const bool maximum = how == REDUCE_MAX, adds = maximum || stream_needs_sum_scratch(stream);
    const size_t each = dtype_bytes(data.dtype);
    if (adds && data.dtype != I32 && data.dtype != I64)
        TRY(stream_plan_message(stream,
                                nccl_all_reduce_scratch(comm->size, tensor_count(data), each, maximum)));
    return dry_message(comm, stream, CALL_ALL_REDUCE);
}

static enum status reduce_scatter_dry(struct comm *comm, struct stream *stream, struct tensor large,
                                      const int64_t *counts, struct tensor small)
{
    const bool is_float = large.dtype != I32 && large.dtype != I64;
    const int64_t mine = counts != NULL ? counts[comm->rank] : tensor_count(small);
    if (is_float && (counts != NULL || stream_needs_sum_scratch(stream)))
        TRY(stream_plan_message(stream,
                                nccl_reduce_scatter_scratch(comm->size, mine, dtype_bytes(large.dtype))));
    return dry_message(comm, stream, CALL_REDUCE_SCATTER);
}

static enum status all_gather_dry(struct comm *comm, struct stream *stream, struct tensor small,
                                  const int64_t *counts, struct tensor large)
{
    (void)small;
    (void)counts;
    (void)large;
    return dry_message(comm, stream, CALL_ALL_GATHER);
}

static enum status broadcast_dry(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    (void)data;
    (void)root;
    return dry_message(comm, stream, CALL_BROADCAST);
}

static enum status all_to_all_dry(struct comm *comm, struct stream *stream, struct tensor in,
                                  const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    (void)in;
    (void)in_counts;
    (void)out;
    (void)out_counts;
    return dry_message(comm, stream, CALL_ALL_TO_ALL);
}

static enum status exchange_dry(struct comm *comm, struct stream *stream, const struct message *messages,
                                int count)
{
    (void)count;
    return dry_message(comm, stream, messages[0].send ? CALL_SEND : CALL_RECEIVE);
}

static enum status barrier_dry(struct comm *comm, struct stream *stream)
{
    TRY(stream_plan_message(stream, sizeof(int32_t)));
    return dry_message(comm, stream, CALL_BARRIER);
}

enum status world_run_dry(int size, int rank, enum status (*body)(struct world *world, void *argument),
                          void *argument)
{
    if (rank < 0 || rank >= size)
        return fail(BAD_ARGUMENT, "there is no rank %d in a dry world of %d", rank, size);
    struct world world = {
        .ops = &transport_dry, .rank = rank, .size = size, .local_rank = rank, .local_size = size};
    int before = rank_context()->rank;
    rank_context()->rank = rank;
    enum status status = body(&world, argument);
    rank_context()->rank = before;
    world_close(&world);
    if (status == OK)
        return OK;
    char text[1024];
    snprintf(text, sizeof text, "%s", fail_text());
    return fail(status, "rank %d: %s", rank, text);
}

static enum status run_dry(const struct world_options *options,
                           enum status (*body)(struct world *world, void *argument), void *argument)
{
    for (int rank = 0; rank < options->size; rank++)
        TRY(world_run_dry(options->size, rank, body, argument));
    return OK;
}

const struct transport_ops transport_dry = {
    .name = "dry",
    .summary = "no communication: ranks run one at a time, without their peers",
    .moves_data = false,
    .run = run_dry,
    .comm_create = comm_create_dry,
    .comm_destroy = comm_destroy_dry,
    .all_reduce = all_reduce_dry,
    .reduce_scatter = reduce_scatter_dry,
    .all_gather = all_gather_dry,
    .broadcast = broadcast_dry,
    .all_to_all = all_to_all_dry,
    .exchange = exchange_dry,
    .barrier = barrier_dry,
};
