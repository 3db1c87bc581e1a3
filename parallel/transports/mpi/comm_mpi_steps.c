// SPDX-License-Identifier: Apache-2.0
/* Algorithms of the mpi transport. MPI's own reductions choose their tree, and thus the order of additions,
 * by message size and machine. Here everything consists of sends and receives, and sums are in rank order:
 *
 *     all_reduce   split the array into one slice per rank; send slice q to rank q; add the received slices,
 *                  in rank order; send the finished slice to all ranks
 *                  (small arrays are sent whole to all ranks, and each adds them)
 *
 * Caution: both ends must post the same messages between them in the same order, including empty ones, so
 * branches may only depend on data known to all ranks. */
#include "parallel/transports/mpi/comm_mpi.h"

#include "parallel/transports/reduce.h"

#include <string.h>

enum {
    WHOLE_BYTES = 64 * 1024,     // over all ranks; below it a second round costs more than the traffic
    SEGMENT_BYTES = 2 * 1048576, // sums are segmented, to bound the scratch memory
    TILE = 2048                  // elements added at a time
};

/* out = sum of the ranks' chunks in rank order; mine is at `mine` (or already in out), the others' in scratch
 * memory, `stride` apart. Accumulates in the storage of rank 0's chunk, in tiles that stay in the cache. */
static void add_in_order(struct request *r, char *out, const char *mine, char *others, size_t stride,
                         int64_t count)
{
    enum dtype dtype = r->in.dtype;
    float buffer[TILE];
    for (int64_t begin = 0; begin < count; begin += TILE) {
        int64_t n = count - begin < TILE ? count - begin : TILE;
        size_t at = (size_t)begin * dtype_bytes(dtype), bytes = (size_t)n * dtype_bytes(dtype);
        char *sum = (r->rank == 0 ? out : others) + at;
        void *acc = reduce_begin(dtype, sum, r->rank == 0 ? mine + at : sum, buffer, n);
        for (int q = 1; q < r->size; q++)
            reduce_into(dtype, r->how, acc, (q == r->rank ? mine : others + (size_t)q * stride) + at, n);
        reduce_end(dtype, acc, sum, n);
        if (r->rank != 0)
            memcpy(out + at, sum, bytes);
    }
}

/* Returns the start of slice q of `count` elements, split into one per rank. */
static int64_t slice_begin(const struct request *r, int64_t count, int q)
{
    int64_t each = (count + r->size - 1) / r->size, begin = each * q;
    return begin < count ? begin : count;
}

bool step_all_reduce(struct request *request)
{
    int size = request->size, rank = request->rank;
    size_t element = dtype_bytes(request->in.dtype);
    int64_t left = tensor_count(request->in) - request->at, limit = SEGMENT_BYTES / (int64_t)element;
    if (left == 0)
        return true;
    int64_t count = left < limit ? left : limit;
    char *data = (char *)request->in.data + (size_t)request->at * element;
    bool whole = (size_t)(count * size) * element <= WHOLE_BYTES; // every rank adds everything
    int64_t begin = whole ? 0 : slice_begin(request, count, rank);
    int64_t mine = whole ? count : slice_begin(request, count, rank + 1) - begin;
    size_t stride = (size_t)mine * element;

    switch (request->phase) {
    case 0: { // send each rank its slice, receive this rank's slice from each
        char *others = request_scratch(request, stride * (size_t)size + 1);
        for (int q = 0; q < size; q++) {
            if (q == rank)
                continue;
            int64_t from = whole ? 0 : slice_begin(request, count, q),
                    to = whole ? count : slice_begin(request, count, q + 1);
            post_recv(request, others + (size_t)q * stride, stride, q);
            post_send(request, data + (size_t)from * element, (size_t)(to - from) * element, q);
        }
        request->phase = 1;
        return false;
    }
    case 1: { // this rank's slice is summed
        char *slice = data + (size_t)begin * element;
        add_in_order(request, slice, slice, request->scratch.data, stride, mine);
        request->phase = whole ? 2 : 3;
        return false;
    }
    case 3: // send the summed slice to each rank, receive theirs
        for (int q = 0; q < size; q++) {
            if (q == rank)
                continue;
            int64_t from = slice_begin(request, count, q), to = slice_begin(request, count, q + 1);
            post_recv(request, data + (size_t)from * element, (size_t)(to - from) * element, q);
            post_send(request, data + (size_t)begin * element, stride, q);
        }
        request->phase = 2;
        return false;
    default: // the next segment
        request->at += count;
        request->phase = 0;
        return false;
    }
}

/* Returns the elements of the longest slice of any rank. */
static int64_t longest_slice(const struct request *r)
{
    int64_t longest = 0;
    for (int q = 0; q < r->size; q++)
        longest = r->counts[q] > longest ? r->counts[q] : longest;
    return longest;
}

/* Returns the number of elements from `at` on in a slice of `all`, at most `limit`. */
static int64_t segment_of(int64_t all, int64_t at, int64_t limit)
{
    return all - at > limit ? limit : all > at ? all - at : 0;
}

bool step_reduce_scatter(struct request *request)
{
    int size = request->size, rank = request->rank;
    size_t element = dtype_bytes(request->in.dtype);
    int64_t limit = SEGMENT_BYTES / (int64_t)element / size;
    limit = limit > 0 ? limit : 1;
    if (request->at >= longest_slice(request))
        return true;
    int64_t count = segment_of(request->counts[rank], request->at, limit);
    size_t bytes = (size_t)count * element;
    const char *slice = (const char *)request->in.data + (size_t)request->at * element, *mine = slice;

    char *others = request_scratch(request, bytes * (size_t)size + 1);
    for (int q = 0; q < size; q++) {
        if (q == rank) {
            mine = slice;
        } else if (request->phase == 0) {
            post_recv(request, others + (size_t)q * bytes, bytes, q);
            post_send(request, slice, (size_t)segment_of(request->counts[q], request->at, limit) * element,
                      q);
        }
        slice += (size_t)request->counts[q] * element;
    }
    if (request->phase == 0) {
        request->phase = 1;
        return false;
    }
    if (count > 0)
        add_in_order(request, (char *)request->out.data + (size_t)request->at * element, mine, others, bytes,
                     count);
    request->at += limit;
    request->phase = 0;
    return false;
}

/* ---- copies: one round each ---- */

bool step_all_gather(struct request *request)
{
    if (request->phase++ > 0)
        return true;
    size_t bytes = tensor_bytes(request->in);
    char *out = request->out.data, *own = out;
    for (int q = 0; q < request->size; q++) {
        size_t theirs = (size_t)request->counts[q] * dtype_bytes(request->in.dtype);
        if (q != request->rank) {
            post_recv(request, out, theirs, q);
            post_send(request, request->in.data, bytes, q);
        } else {
            own = out;
        }
        out += theirs;
    }
    if (own != request->in.data && bytes > 0)
        memcpy(own, request->in.data, bytes);
    return false;
}

bool step_broadcast(struct request *request)
{
    if (request->phase++ > 0)
        return true;
    size_t bytes = tensor_bytes(request->in);
    if (request->root != request->rank)
        post_recv(request, request->in.data, bytes, request->root);
    for (int q = 0; q < request->size && request->root == request->rank; q++)
        if (q != request->root)
            post_send(request, request->in.data, bytes, q);
    return false;
}

bool step_all_to_all(struct request *request)
{
    if (request->phase++ > 0)
        return true;
    int size = request->size;
    size_t element = dtype_bytes(request->in.dtype);
    const char *in = request->in.data;
    char *out = request->out.data;
    for (int q = 0; q < size; q++) {
        size_t in_bytes = (size_t)request->counts[q] * element,
               out_bytes = (size_t)request->counts[size + q] * element;
        if (q != request->rank) {
            post_recv(request, out, out_bytes, q);
            post_send(request, in, in_bytes, q);
        }
        out += out_bytes;
        in += in_bytes;
    }
    in = request->in.data;
    out = request->out.data;
    for (int q = 0; q < request->rank; q++) {
        in += (size_t)request->counts[q] * element;
        out += (size_t)request->counts[size + q] * element;
    }
    size_t mine = (size_t)request->counts[request->rank] * element;
    if (mine > 0)
        memcpy(out, in, mine);
    return false;
}

bool step_barrier(struct request *request)
{
    if (request->phase++ > 0)
        return true;
    for (int q = 0; q < request->size; q++)
        if (q != request->rank) {
            post_recv(request, NULL, 0, q);
            post_send(request, NULL, 0, q);
        }
    return false;
}

/* Each send/receive pair has its own tag, by its number between these two ranks. */
bool step_exchange(struct request *request)
{
    if (request->phase++ > 0)
        return true;
    for (int i = 0; i < request->message_count; i++) {
        struct tensor data = request->messages[i].message.data;
        request->tag = request->messages[i].tag;
        if (request->messages[i].message.send)
            post_send(request, data.data, tensor_bytes(data), request->messages[i].message.peer);
        else
            post_recv(request, data.data, tensor_bytes(data), request->messages[i].message.peer);
    }
    return false;
}
