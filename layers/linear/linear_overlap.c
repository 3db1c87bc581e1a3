// SPDX-License-Identifier: Apache-2.0
#include "layers/linear/linear_overlap.h"

/* The tokens of one rank. */
static struct tensor tokens_of_rank(const struct layer_context *context, struct tensor t, int rank)
{
    int64_t tokens = context_local_tokens(context);
    return tensor_rows(t, rank * tokens, (rank + 1) * tokens);
}

/* Returns the rank at that distance after this one; negative: before it. */
static int neighbour(const struct group *tp, int distance)
{
    return (tp->rank + distance + tp->size) % tp->size;
}

/* Makes later work on the communication stream wait for the work enqueued on `compute` so far. */
static enum status begin_overlap(const struct layer_context *context)
{
    return stream_wait(context->comm_stream, stream_record(context->compute));
}

static enum status swap(const struct layer_context *context, int to, struct tensor sent, int from,
                        struct tensor received)
{
    struct message messages[] = {{.data = sent, .peer = to, .send = true}, {.data = received, .peer = from}};
    return group_exchange(context->groups->tp, context->comm_stream, messages, 2);
}

enum status multiply_gathered(const struct layer_context *context, struct tensor local, struct tensor whole,
                              struct gemm args)
{
    const struct group *tp = context->groups->tp;
    struct tensor c = args.c;
    TRY(begin_overlap(context));
    TRY(copy(context->comm_stream,
             (struct copy){.in = local, .out = tokens_of_rank(context, whole, tp->rank)}));
    for (int s = 0; s < tp->size; s++) {
        struct event come = stream_record(context->comm_stream);
        int rank = neighbour(tp, s), next = neighbour(tp, s + 1);
        if (next != tp->rank)
            TRY(swap(context, neighbour(tp, -s - 1), local, next, tokens_of_rank(context, whole, next)));
        if (s > 0)
            TRY(stream_wait(context->compute, come));
        args.a = s > 0 ? tokens_of_rank(context, whole, rank) : local;
        args.c = tokens_of_rank(context, c, rank);
        TRY(gemm(context->compute, args));
    }
    return OK;
}

enum status add_partial(const struct layer_context *context, struct tensor x, struct tensor addend)
{
    if (addend.data == NULL)
        return OK;
    return residual_forward(context->compute,
                            (struct residual_forward){.x = x, .residual = addend, .out = x});
}

enum status multiply_scattered(const struct layer_context *context, struct gemm args, struct tensor addend,
                               struct tensor parts, struct tensor sum)
{
    const struct group *tp = context->groups->tp;
    struct tensor a = args.a, c = args.c;
    for (int s = 1; s <= tp->size; s++) {
        int rank = neighbour(tp, s);
        args.a = tokens_of_rank(context, a, rank);
        args.c = tokens_of_rank(context, s < tp->size ? c : parts, rank);
        TRY(gemm(context->compute, args));
        if (addend.data != NULL)
            TRY(add_partial(context, args.c, tokens_of_rank(context, addend, rank)));
        if (s == tp->size)
            break;
        int from = neighbour(tp, -s);
        TRY(begin_overlap(context));
        TRY(swap(context, rank, args.c, from, tokens_of_rank(context, parts, from)));
    }
    TRY(stream_wait(context->compute, stream_record(context->comm_stream)));
    int64_t count = tensor_count(sum);
    return add_parts(context->compute, (struct add_parts){
                                           .parts = tensor_2d(parts.data, parts.dtype, tp->size, count),
                                           .out = tensor_1d(sum.data, sum.dtype, count),
                                       });
}

enum status gather_overlapped(const struct layer_context *context, struct tensor local, struct tensor whole,
                              struct event *done)
{
    TRY(begin_overlap(context));
    TRY(group_all_gather(context->groups->tp, context->comm_stream, local, whole));
    *done = stream_record(context->comm_stream);
    return OK;
}
