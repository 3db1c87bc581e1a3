// SPDX-License-Identifier: Apache-2.0
/* Message progress of the emulated NCCL, through shared memory, a chunk at a time. */
#include "base/status.h"
#include "kernels/numbers/narrow.h"
#include "tests/emulator/nccl/nccl_wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t nccl_bytes_of(int type)
{
    return type == ncclInt64 || type == ncclFloat64 ? 8 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
}

const char *nccl_kind_name(int kind)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                        "transfers"};
    return names[kind];
}

/* ---- agreement between ranks ---- */

/* "if any rank in a communicator passes registered buffers [...] all other ranks in the same communicator
 * must pass their registered buffers" (NCCL's guide, User Buffer Registration); otherwise the behavior is
 * undefined. */
static void expect_same_registration(const struct message *m, int mine, int theirs, int rank)
{
    if (mine != theirs)
        die(__FILE__, __LINE__, "the emulated NCCL",
            "of %d ranks, %d and %d disagree on whether the buffers are registered", m->comm->ranks,
            m->comm->rank, rank);
}

static void expect_same_call(const struct message *m, const struct call_args *theirs, int rank)
{
    const struct call_args *w = &m->args;
    expect_same_registration(m, w->registered, theirs->registered, rank);
    if (w->kind == theirs->kind && w->type == theirs->type && w->how == theirs->how &&
        w->root == theirs->root && w->count == theirs->count && w->call == theirs->call)
        return;
    die(__FILE__, __LINE__, "the emulated NCCL",
        "of %d ranks, %d calls %s of %llu of type %d from %d as call %llu, and %d %s of %llu of type %d from "
        "%d "
        "as call %llu",
        m->comm->ranks, m->comm->rank, nccl_kind_name(w->kind), (unsigned long long)w->count, w->type,
        w->root, (unsigned long long)w->call, rank, nccl_kind_name(theirs->kind),
        (unsigned long long)theirs->count, theirs->type, theirs->root, (unsigned long long)theirs->call);
}

struct slot *nccl_slot(const struct ncclComm *c, int rank)
{
    return &c->shared->slot[rank];
}

static struct slot *pair_of(const struct ncclComm *c, int from, int to)
{
    return &c->shared->slot[c->ranks + from * c->ranks + to];
}

/* ---- arithmetic ---- */

#define COMBINE(name, type, more)                            \
    static void name(char *acc, const char *x, bool maximum) \
    {                                                        \
        type a, b;                                           \
        memcpy(&a, acc, sizeof a);                           \
        memcpy(&b, x, sizeof b);                             \
        a = maximum ? (more) : (type)(a + b);                \
        memcpy(acc, &a, sizeof a);                           \
    }
COMBINE(combine_f32, float, fmaxf(a, b))
COMBINE(combine_f64, double, fmax(a, b))
COMBINE(combine_i32, int32_t, a > b ? a : b)
COMBINE(combine_i64, int64_t, a > b ? a : b)

/* Rounded at each rank. */
static void combine_narrow(int type, char *acc, const char *x, bool maximum)
{
    enum dtype dtype = type == ncclBfloat16 ? BF16 : F16;
    float a, b;
    widen_floats(dtype, acc, &a, 1);
    widen_floats(dtype, x, &b, 1);
    a = maximum ? fmaxf(a, b) : a + b;
    narrow_floats(dtype, &a, acc, 1);
}

static void combine(int type, char *acc, const char *x, bool maximum)
{
    switch (type) {
    case ncclFloat32:
        return combine_f32(acc, x, maximum);
    case ncclFloat64:
        return combine_f64(acc, x, maximum);
    case ncclInt32:
        return combine_i32(acc, x, maximum);
    case ncclInt64:
        return combine_i64(acc, x, maximum);
    case ncclBfloat16:
    case ncclFloat16:
        return combine_narrow(type, acc, x, maximum);
    }
    die(__FILE__, __LINE__, "the emulated NCCL", "cannot reduce type %d", type);
}

/* Element `i` of the message, with its parts `at` bytes into every slot: first + first + 1 + ... around the
 * ring. */
static void add_ring(const struct message *m, size_t at, int first, char *out)
{
    const struct ncclComm *c = m->comm;
    size_t each = nccl_bytes_of(m->args.type);
    memcpy(out, nccl_slot(c, first % c->ranks)->data + at, each);
    for (int r = 1; r < c->ranks; r++)
        combine(m->args.type, out, nccl_slot(c, (first + r) % c->ranks)->data + at, m->args.how == ncclMax);
}

/* ---- collectives: a chunk at a time ---- */

static uint64_t chunk_elements(const struct message *m)
{
    uint64_t most = SLOT_BYTES / nccl_bytes_of(m->args.type);
    if (m->args.kind == REDUCE_SCATTER)
        most /= (uint64_t)m->comm->ranks;
    return m->args.count - m->at < most ? m->args.count - m->at : most;
}

static void post_chunk(struct message *m, uint64_t count)
{
    struct ncclComm *c = m->comm;
    struct slot *slot = nccl_slot(c, c->rank);
    size_t each = nccl_bytes_of(m->args.type), bytes = count * each;
    slot->args = m->args;
    if (m->args.kind == REDUCE_SCATTER)
        for (int r = 0; r < c->ranks; r++)
            memcpy(slot->data + (size_t)r * bytes, m->in + ((uint64_t)r * m->args.count + m->at) * each,
                   bytes);
    else if (m->args.kind != BROADCAST || m->args.root == c->rank)
        memcpy(slot->data, m->in + m->at * each, bytes);
    atomic_store(&slot->posted, c->chunks + 1);
    m->posted = true;
}

static void consume_chunk(struct message *m, uint64_t count)
{
    struct ncclComm *c = m->comm;
    const char *order = getenv("EMULATOR_SUMS");
    int ring = order != NULL && strcmp(order, "ranks") == 0 ? 0 : 1;
    size_t each = nccl_bytes_of(m->args.type), bytes = count * each;
    for (int r = 0; r < c->ranks; r++)
        expect_same_call(m, &nccl_slot(c, r)->args, r);
    if (m->args.kind == ALL_GATHER)
        for (int r = 0; r < c->ranks; r++)
            memcpy(m->out + ((uint64_t)r * m->args.count + m->at) * each, nccl_slot(c, r)->data, bytes);
    if (m->args.kind == BROADCAST)
        memcpy(m->out + m->at * each, nccl_slot(c, m->args.root)->data, bytes);
    if (m->args.kind == ALL_REDUCE)
        for (uint64_t i = 0; i < count; i++)
            add_ring(m, i * each, ring * ((int)((m->at + i) / 16 % (uint64_t)c->ranks) + 1),
                     m->out + (m->at + i) * each);
    if (m->args.kind == REDUCE_SCATTER)
        for (uint64_t i = 0; i < count; i++)
            add_ring(m, (size_t)c->rank * bytes + i * each, ring * (c->rank + 1),
                     m->out + (m->at + i) * each);
    m->at += count;
    m->posted = false;
    atomic_store(&nccl_slot(c, c->rank)->consumed, ++c->chunks);
}

static bool all_have_reached(const struct ncclComm *c, bool posted, uint64_t chunks)
{
    for (int r = 0; r < c->ranks; r++) {
        struct slot *slot = nccl_slot(c, r);
        if (atomic_load(posted ? &slot->posted : &slot->consumed) < chunks)
            return false;
    }
    return true;
}

bool nccl_move_collective(struct message *m, bool *moved)
{
    while (m->at < m->args.count) {
        uint64_t count = chunk_elements(m);
        if (!m->posted && !all_have_reached(m->comm, false, m->comm->chunks))
            return false;
        if (!m->posted) {
            post_chunk(m, count);
            *moved = true;
        }
        if (!all_have_reached(m->comm, true, m->comm->chunks + 1))
            return false;
        consume_chunk(m, count);
        *moved = true;
    }
    return true;
}

/* ---- point-to-point ---- */

static bool move_send(struct message *m, struct transfer *t)
{
    struct slot *slot = pair_of(m->comm, m->comm->rank, t->peer);
    if (atomic_load(&slot->consumed) != atomic_load(&slot->posted))
        return false;
    if (t->at == t->bytes && t->posted) {
        t->done = true;
        return true;
    }
    size_t left = t->bytes - t->at, bytes = left < SLOT_BYTES ? left : SLOT_BYTES;
    memcpy(slot->data, t->data + t->at, bytes);
    slot->args = (struct call_args){
        .kind = POINT_TO_POINT, .type = (int32_t)t->type, .count = t->count, .registered = t->registered};
    slot->bytes = (int64_t)bytes;
    t->at += bytes;
    t->posted = true;
    atomic_fetch_add(&slot->posted, 1);
    return true;
}

static bool move_receive(struct message *m, struct transfer *t)
{
    struct slot *slot = pair_of(m->comm, t->peer, m->comm->rank);
    if (atomic_load(&slot->consumed) == atomic_load(&slot->posted))
        return false;
    expect_same_registration(m, t->registered, slot->args.registered, t->peer);
    if (slot->args.type != (int32_t)t->type || slot->args.count != t->count)
        die(__FILE__, __LINE__, "the emulated NCCL",
            "of %d ranks, %d sends %llu of type %d, and %d receives %zu of type %d", m->comm->ranks, t->peer,
            (unsigned long long)slot->args.count, slot->args.type, m->comm->rank, t->count, (int)t->type);
    memcpy(t->data + t->at, slot->data, (size_t)slot->bytes);
    t->at += (size_t)slot->bytes;
    t->done = t->at == t->bytes;
    atomic_fetch_add(&slot->consumed, 1);
    return true;
}

/* Messages between two ranks in one direction are in order. */
static bool may_move(const struct message *m, int transfer)
{
    const struct transfer *t = &m->transfers[transfer];
    for (int i = 0; i < transfer; i++)
        if (!m->transfers[i].done && m->transfers[i].send == t->send && m->transfers[i].peer == t->peer)
            return false;
    return !t->done;
}

bool nccl_move_transfers(struct message *m, bool *moved)
{
    int done = 0;
    for (bool again = true; again;) {
        again = false;
        done = 0;
        for (int i = 0; i < m->transfer_count; i++) {
            struct transfer *t = &m->transfers[i];
            if (may_move(m, i))
                again = (t->send ? move_send(m, t) : move_receive(m, t)) || again;
            done += t->done;
        }
        *moved = *moved || again;
    }
    return done == m->transfer_count;
}
