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

bool step_all_reduce(struct request *r)
{
    int size = r->size, rank = r->rank;
    size_t element = dtype_bytes(r->in.dtype);
    int64_t left = tensor_count(r->in) - r->at, limit = SEGMENT_BYTES / (int64_t)element;
    if (left == 0)
        return true;
    int64_t count = left < limit ? left : limit;
    char *data = (char *)r->in.data + (size_t)r->at * element;
    bool whole = (size_t)(count * size) * element <= WHOLE_BYTES; // every rank adds everything
    int64_t begin = whole ? 0 : slice_begin(r, count, rank);
    int64_t mine = whole ? count : slice_begin(r, count, rank + 1) - begin;
    size_t stride = (size_t)mine * element;

    switch (r->phase) {
    case 0: { // send each rank its slice, receive this rank's slice from each
        char *others = request_scratch(r, stride * (size_t)size + 1);
        for (int q = 0; q < size; q++) {
            if (q == rank)
                continue;
            int64_t from = whole ? 0 : slice_begin(r, count, q),
                    to = whole ? count : slice_begin(r, count, q + 1);
            post_recv(r, others + (size_t)q * stride, stride, q);
            post_send(r, data + (size_t)from * element, (size_t)(to - from) * element, q);
        }
        r->phase = 1;
        return false;
    }
    case 1: { // this rank's slice is summed
        char *slice = data + (size_t)begin * element;
        add_in_order(r, slice, slice, r->scratch.data, stride, mine);
        r->phase = whole ? 2 : 3;
        return false;
    }
    case 3: // send the summed slice to each rank, receive theirs
        for (int q = 0; q < size; q++) {
            if (q == rank)
                continue;
            int64_t from = slice_begin(r, count, q), to = slice_begin(r, count, q + 1);
            post_recv(r, data + (size_t)from * element, (size_t)(to - from) * element, q);
            post_send(r, data + (size_t)begin * element, stride, q);
        }
        r->phase = 2;
        return false;
    default: // the next segment
        r->at += count;
        r->phase = 0;
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

bool step_reduce_scatter(struct request *r)
{
    int size = r->size, rank = r->rank;
    size_t element = dtype_bytes(r->in.dtype);
    int64_t limit = SEGMENT_BYTES / (int64_t)element / size;
    limit = limit > 0 ? limit : 1;
    if (r->at >= longest_slice(r))
        return true;
    int64_t count = segment_of(r->counts[rank], r->at, limit);
    size_t bytes = (size_t)count * element;
    const char *slice = (const char *)r->in.data + (size_t)r->at * element, *mine = slice;

    char *others = request_scratch(r, bytes * (size_t)size + 1);
    for (int q = 0; q < size; q++) {
        if (q == rank) {
            mine = slice;
        } else if (r->phase == 0) {
            post_recv(r, others + (size_t)q * bytes, bytes, q);
            post_send(r, slice, (size_t)segment_of(r->counts[q], r->at, limit) * element, q);
        }
        slice += (size_t)r->counts[q] * element;
    }
    if (r->phase == 0) {
        r->phase = 1;
        return false;
    }
    if (count > 0)
        add_in_order(r, (char *)r->out.data + (size_t)r->at * element, mine, others, bytes, count);
    r->at += limit;
    r->phase = 0;
    return false;
}

/* ---- copies: one round each ---- */

bool step_all_gather(struct request *r)
{
    if (r->phase++ > 0)
        return true;
    size_t bytes = tensor_bytes(r->in);
    char *out = r->out.data, *own = out;
    for (int q = 0; q < r->size; q++) {
        size_t theirs = (size_t)r->counts[q] * dtype_bytes(r->in.dtype);
        if (q != r->rank) {
            post_recv(r, out, theirs, q);
            post_send(r, r->in.data, bytes, q);
        } else {
            own = out;
        }
        out += theirs;
    }
    if (own != r->in.data && bytes > 0)
        memcpy(own, r->in.data, bytes);
    return false;
}

bool step_broadcast(struct request *r)
{
    if (r->phase++ > 0)
        return true;
    size_t bytes = tensor_bytes(r->in);
    if (r->root != r->rank)
        post_recv(r, r->in.data, bytes, r->root);
    for (int q = 0; q < r->size && r->root == r->rank; q++)
        if (q != r->root)
            post_send(r, r->in.data, bytes, q);
    return false;
}

bool step_all_to_all(struct request *r)
{
    if (r->phase++ > 0)
        return true;
    int size = r->size;
    size_t element = dtype_bytes(r->in.dtype);
    const char *in = r->in.data;
    char *out = r->out.data;
    for (int q = 0; q < size; q++) {
        size_t in_bytes = (size_t)r->counts[q] * element, out_bytes = (size_t)r->counts[size + q] * element;
        if (q != r->rank) {
            post_recv(r, out, out_bytes, q);
            post_send(r, in, in_bytes, q);
        }
        out += out_bytes;
        in += in_bytes;
    }
    in = r->in.data;
    out = r->out.data;
    for (int q = 0; q < r->rank; q++) {
        in += (size_t)r->counts[q] * element;
        out += (size_t)r->counts[size + q] * element;
    }
    size_t mine = (size_t)r->counts[r->rank] * element;
    if (mine > 0)
        memcpy(out, in, mine);
    return false;
}

bool step_barrier(struct request *r)
{
    if (r->phase++ > 0)
        return true;
    for (int q = 0; q < r->size; q++)
        if (q != r->rank) {
            post_recv(r, NULL, 0, q);
            post_send(r, NULL, 0, q);
        }
    return false;
}

/* Each send/receive pair has its own tag, by its number between these two ranks. */
bool step_exchange(struct request *r)
{
    if (r->phase++ > 0)
        return true;
    for (int i = 0; i < r->message_count; i++) {
        struct tensor data = r->messages[i].message.data;
        r->tag = r->messages[i].tag;
        if (r->messages[i].message.send)
            post_send(r, data.data, tensor_bytes(data), r->messages[i].message.peer);
        else
            post_recv(r, data.data, tensor_bytes(data), r->messages[i].message.peer);
    }
    return false;
}
