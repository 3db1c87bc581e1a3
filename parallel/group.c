// SPDX-License-Identifier: Apache-2.0
/* Checked API over comms. Transports may rely on: a group of at least two, dense tensors, matching counts and
 * types, valid ranks, at least one element. */
#include "parallel/group.h"

#include "base/memory.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status group_create(struct world *world, const char *name, int64_t id, const int *ranks, int count,
                         struct group **out)
{
    int mine = -1;
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->rank)
            mine = i;
    if (mine < 0) {
        *out = NULL;
        return OK;
    }
    struct group *group = memory_zeroed(1, sizeof *group, "a group");
    group->rank = mine;
    group->size = count;
    snprintf(group->name, sizeof group->name, "%s", name);
    group->ranks = memory_zeroed((size_t)count, sizeof *ranks, "a group");
    memcpy(group->ranks, ranks, (size_t)count * sizeof *ranks);
    enum status status = OK;
    if (count > 1)
        status = comm_create(world, name, id, ranks, count, &group->comm);
    if (status == OK && group->comm != NULL)
        group->comm->ranks = group->ranks;
    if (status == OK)
        *out = group;
    else
        group_destroy(group);
    return status;
}

void group_destroy(struct group *group)
{
    if (group == NULL)
        return;
    comm_destroy(group->comm);
    free(group->ranks);
    free(group);
}

/* ---- checks common to all calls ---- */

static enum status check_call(const struct group *group, enum call call, const struct stream *stream)
{
    if (group == NULL || stream == NULL)
        return fail(BAD_ARGUMENT, "%s: no %s", call_name(call), group == NULL ? "group" : "stream");
    if (group->comm == NULL)
        return OK;
    const struct device *device = stream_device(stream);
    const struct transport_ops *ops = group->comm->ops;
    if (ops->moves_data != device_computes(device) ||
        (ops->device != NULL && strcmp(ops->device, device_name(device)) != 0))
        return fail(BAD_ARGUMENT, "%s %s: transport %s does not support device %s", call_name(call),
                    group->name, group->comm->ops->name, device_name(device));
    return OK;
}

static enum status check_tensor(const struct group *group, enum call call, struct tensor t)
{
    char text[TENSOR_TEXT_CHARS];
    if (!tensor_is_dense(t))
        return fail(BAD_ARGUMENT, "%s %s: %s is not dense", call_name(call), group->name,
                    tensor_text(t, text));
    if (t.data == NULL && tensor_count(t) > 0)
        return fail(BAD_ARGUMENT, "%s %s: %s has no data", call_name(call), group->name,
                    tensor_text(t, text));
    return OK;
}

static bool overlap(struct tensor a, struct tensor b)
{
    const char *x = a.data, *y = b.data;
    return tensor_count(a) > 0 && tensor_count(b) > 0 && x < y + tensor_bytes(b) && y < x + tensor_bytes(a);
}

/* Checks `small`, one rank's share, against `large`, the shares of all ranks. */
static enum status check_shares(const struct group *group, enum call call, struct tensor small,
                                struct tensor large)
{
    TRY(check_tensor(group, call, small));
    TRY(check_tensor(group, call, large));
    char a[TENSOR_TEXT_CHARS], b[TENSOR_TEXT_CHARS];
    if (small.dtype != large.dtype || tensor_count(small) * group->size != tensor_count(large))
        return fail(BAD_ARGUMENT, "%s %s: %s is not one of %d equal shares of %s", call_name(call),
                    group->name, tensor_text(small, a), group->size, tensor_text(large, b));
    return OK;
}

/* For a group of one: copies if in and out differ. */
static enum status copy_alone(struct stream *stream, struct tensor in, struct tensor out)
{
    int64_t count = tensor_count(in);
    if (in.data == out.data || count == 0)
        return OK;
    return copy(stream, (struct copy){.in = tensor_1d(in.data, in.dtype, count),
                                      .out = tensor_1d(out.data, out.dtype, count)});
}

/* ---- collectives ---- */

enum status group_all_reduce(struct group *group, struct stream *stream, struct tensor data,
                             enum reduction how)
{
    TRY(check_call(group, CALL_ALL_REDUCE, stream));
    TRY(check_tensor(group, CALL_ALL_REDUCE, data));
    if (how != REDUCE_SUM && how != REDUCE_MAX)
        return fail(BAD_ARGUMENT, "all_reduce %s: reduction %d is neither sum nor maximum", group->name,
                    (int)how);
    if (group->size == 1 || tensor_count(data) == 0)
        return OK;
    return group->comm->ops->all_reduce(group->comm, stream, data, how);
}

enum status group_reduce_scatter(struct group *group, struct stream *stream, struct tensor in,
                                 struct tensor out)
{
    TRY(check_call(group, CALL_REDUCE_SCATTER, stream));
    TRY(check_shares(group, CALL_REDUCE_SCATTER, out, in));
    if (group->size == 1)
        return copy_alone(stream, in, out);
    const char *own = (const char *)in.data + tensor_bytes(out) * (size_t)group->rank;
    if (overlap(in, out) && (const char *)out.data != own)
        return fail(BAD_ARGUMENT, "reduce_scatter %s: out overlaps in, and is not its own share of it",
                    group->name);
    if (tensor_count(out) == 0)
        return OK;
    return group->comm->ops->reduce_scatter(group->comm, stream, in, NULL, out);
}

enum status group_all_gather(struct group *group, struct stream *stream, struct tensor in, struct tensor out)
{
    TRY(check_call(group, CALL_ALL_GATHER, stream));
    TRY(check_shares(group, CALL_ALL_GATHER, in, out));
    if (group->size == 1)
        return copy_alone(stream, in, out);
    const char *own = (const char *)out.data + tensor_bytes(in) * (size_t)group->rank;
    if (overlap(in, out) && (const char *)in.data != own)
        return fail(BAD_ARGUMENT, "all_gather %s: in overlaps out, and is not its own share of it",
                    group->name);
    if (tensor_count(in) == 0)
        return OK;
    return group->comm->ops->all_gather(group->comm, stream, in, NULL, out);
}

/* Checks that counts[r] elements of each rank make up `t`; *own: this rank's part. */
static enum status check_counts(const struct group *group, enum call call, const char *side, struct tensor t,
                                const int64_t *counts, struct tensor *own)
{
    int64_t sum = 0, all = tensor_count(t);
    for (int r = 0; r < group->size; r++) {
        if (counts[r] < 0 || counts[r] > all - sum)
            return fail(BAD_ARGUMENT, "%s %s: %scount %lld for rank %d does not fit into %lld elements",
                        call_name(call), group->name, side, (long long)counts[r], r, (long long)all);
        if (r == group->rank)
            *own = tensor_1d((char *)t.data + (size_t)sum * dtype_bytes(t.dtype), t.dtype, counts[r]);
        sum += counts[r];
    }
    if (sum != all)
        return fail(BAD_ARGUMENT, "%s %s: the %scounts add up to %lld, but there are %lld elements",
                    call_name(call), group->name, side, (long long)sum, (long long)all);
    return OK;
}

/* *own stays unset if there is no data to transfer. */
static enum status enter_uneven(struct group *group, enum call call, struct stream *stream,
                                struct tensor data, const int64_t *counts, struct tensor *own)
{
    TRY(check_call(group, call, stream));
    TRY(check_tensor(group, call, data));
    TRY(check_counts(group, call, "", data, counts, own));
    return OK;
}

enum status group_reduce_scatter_v(struct group *group, struct stream *stream, struct tensor data,
                                   const int64_t *counts)
{
    struct tensor own;
    TRY(enter_uneven(group, CALL_REDUCE_SCATTER, stream, data, counts, &own));
    if (group->size == 1 || tensor_count(data) == 0)
        return OK;
    return group->comm->ops->reduce_scatter(group->comm, stream, data, counts, own);
}

enum status group_all_gather_v(struct group *group, struct stream *stream, struct tensor data,
                               const int64_t *counts)
{
    struct tensor own;
    TRY(enter_uneven(group, CALL_ALL_GATHER, stream, data, counts, &own));
    if (group->size == 1 || tensor_count(data) == 0)
        return OK;
    return group->comm->ops->all_gather(group->comm, stream, own, counts, data);
}

enum status group_broadcast(struct group *group, struct stream *stream, struct tensor data, int root)
{
    TRY(check_call(group, CALL_BROADCAST, stream));
    TRY(check_tensor(group, CALL_BROADCAST, data));
    if (root < 0 || root >= group->size)
        return fail(BAD_ARGUMENT, "broadcast %s: there is no rank %d among %d", group->name, root,
                    group->size);
    if (group->size == 1 || tensor_count(data) == 0)
        return OK;
    return group->comm->ops->broadcast(group->comm, stream, data, root);
}

enum status group_all_to_all(struct group *group, struct stream *stream, struct tensor in,
                             const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    TRY(check_call(group, CALL_ALL_TO_ALL, stream));
    TRY(check_tensor(group, CALL_ALL_TO_ALL, in));
    TRY(check_tensor(group, CALL_ALL_TO_ALL, out));
    struct tensor own;
    TRY(check_counts(group, CALL_ALL_TO_ALL, "in ", in, in_counts, &own));
    TRY(check_counts(group, CALL_ALL_TO_ALL, "out ", out, out_counts, &own));
    if (in.dtype != out.dtype || in_counts[group->rank] != out_counts[group->rank])
        return fail(BAD_ARGUMENT, "all_to_all %s: in and out differ in type, or in this rank's own count",
                    group->name);
    if (group->size == 1)
        return copy_alone(stream, in, out);
    if (overlap(in, out))
        return fail(BAD_ARGUMENT, "all_to_all %s: in and out overlap", group->name);
    return group->comm->ops->all_to_all(group->comm, stream, in, in_counts, out, out_counts);
}

enum status group_exchange(struct group *group, struct stream *stream, const struct message *messages,
                           int count)
{
    TRY(check_call(group, CALL_SEND, stream));
    for (int i = 0; i < count; i++) {
        const struct message *m = &messages[i];
        TRY(check_tensor(group, m->send ? CALL_SEND : CALL_RECEIVE, m->data));
        if (m->peer < 0 || m->peer >= group->size || m->peer == group->rank)
            return fail(BAD_ARGUMENT, "exchange %s: rank %d of %d cannot %s rank %d", group->name,
                        group->rank, group->size, m->send ? "send to" : "receive from", m->peer);
        for (int j = 0; j < i; j++)
            if ((!m->send || !messages[j].send) && overlap(m->data, messages[j].data))
                return fail(BAD_ARGUMENT, "exchange %s: message %d receives into the memory of message %d",
                            group->name, m->send ? j : i, m->send ? i : j);
    }
    if (count == 0)
        return OK;
    return group->comm->ops->exchange(group->comm, stream, messages, count);
}

enum status group_register(struct group *group, struct tensor data, void **handle)
{
    *handle = NULL;
    if (group->comm == NULL || group->comm->ops->register_memory == NULL || tensor_count(data) == 0)
        return OK;
    return group->comm->ops->register_memory(group->comm, data.data, tensor_bytes(data), handle);
}

void group_unregister(struct group *group, void *handle)
{
    if (handle != NULL)
        group->comm->ops->unregister_memory(group->comm, handle);
}

enum status group_barrier(struct group *group, struct stream *stream)
{
    TRY(check_call(group, CALL_BARRIER, stream));
    if (group->size > 1)
        TRY(group->comm->ops->barrier(group->comm, stream));
    return stream_sync(stream);
}
