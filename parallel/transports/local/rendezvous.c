// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/local/rendezvous.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/transports/reduce.h"
#include "parallel/transports/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLICE_BYTES = 64 * 1024, // of each buffer: large enough that claiming is cheap, small enough to share the
                             // work
    TILE_BYTES = 4096,       // of each buffer, within a slice: stays in the L1 cache while it is summed
    SMALL_BYTES = 32 * 1024  // moved in all; up to here the last rank to join does all of it
};

struct rendezvous {
    struct rendezvous *next; // in the open or spare list of the shared comm
    struct operation operation;
    int participants, joined; // joined and left: under the lock of the shared comm
    int64_t slices;           // written before `ready`
    _Alignas(64) _Atomic bool ready;
    _Alignas(64) _Atomic int64_t claimed;
    _Alignas(64) _Atomic int64_t finished;
    _Atomic int left;
    struct participant participant[];
};

void notification_init(struct notification *notification, int64_t spin_ns)
{
    notification->spin_ns = notification->max_spin_ns = spin_ns;
    atomic_init(&notification->events, 0);
    atomic_init(&notification->sleeping, false);
    notification->seen = 0;
    CHECK(pthread_mutex_init(&notification->lock, NULL) == 0);
    CHECK(pthread_cond_init(&notification->signaled, NULL) == 0);
}

void notification_fini(struct notification *notification)
{
    pthread_mutex_destroy(&notification->lock);
    pthread_cond_destroy(&notification->signaled);
}

/* `events` is written before `sleeping` is read here, and in the opposite order in notification_wait. With a
 * total order of the accesses, either the notifier sees the sleeper or the sleeper sees the events. */
void notification_signal(struct notification *notification)
{
    atomic_fetch_add(&notification->events, 1);
    if (!atomic_load(&notification->sleeping))
        return;
    pthread_mutex_lock(&notification->lock);
    pthread_cond_signal(&notification->signaled);
    pthread_mutex_unlock(&notification->lock);
}

/* Spins before sleeping: half as long if the last spin found nothing (other threads need the cores), twice as
 * long if it did. */
static void spin(struct notification *notification)
{
    enum { SHORTEST = 16 }; // the shortest spin is this fraction of the longest
    int64_t half = notification->spin_ns / 2, least = notification->max_spin_ns / SHORTEST;
    int64_t until = 0;
    for (int i = 0; atomic_load_explicit(&notification->events, memory_order_acquire) == notification->seen;
         i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (i % 16 != 15)
            continue;
        int64_t now = clock_ns();
        until = until == 0 ? now + notification->spin_ns : until;
        if (now >= until) {
            notification->spin_ns = half > least ? half : least;
            return;
        }
    }
    notification->spin_ns = 4 * half < notification->max_spin_ns ? 4 * half : notification->max_spin_ns;
}

void notification_wait(struct notification *notification)
{
    spin(notification);
    if (atomic_load(&notification->events) == notification->seen) {
        pthread_mutex_lock(&notification->lock);
        atomic_store(&notification->sleeping, true);
        while (atomic_load(&notification->events) == notification->seen)
            pthread_cond_wait(&notification->signaled, &notification->lock);
        atomic_store(&notification->sleeping, false);
        pthread_mutex_unlock(&notification->lock);
    }
    notification->seen = atomic_load(&notification->events);
}

struct shared_comm *shared_comm_create(int64_t id, const char *name, const int *ranks, int size)
{
    struct shared_comm *shared = memory_zeroed(1, sizeof *shared, "a communicator");
    CHECK(pthread_mutex_init(&shared->lock, NULL) == 0);
    shared->id = id;
    shared->size = shared->expected = size;
    snprintf(shared->name, sizeof shared->name, "%s", name);
    shared->notifications = memory_zeroed((size_t)size, sizeof *shared->notifications, "a communicator");
    shared->ranks = memory_zeroed((size_t)size, sizeof *shared->ranks, "a communicator");
    shared->seen = memory_zeroed((size_t)size, sizeof *shared->seen, "a communicator");
    memcpy(shared->ranks, ranks, (size_t)size * sizeof *ranks);
    return shared;
}

void shared_comm_destroy(struct shared_comm *shared)
{
    if (shared == NULL)
        return;
    struct rendezvous *lists[] = {shared->open, shared->spare};
    for (size_t i = 0; i < 2; i++)
        for (struct rendezvous *m = lists[i], *next; m != NULL; m = next) {
            next = m->next;
            free(m);
        }
    pthread_mutex_destroy(&shared->lock);
    free(shared->notifications);
    free(shared->ranks);
    free(shared->seen);
    free(shared);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t slice_elements(const struct operation *operation)
{
    return SLICE_BYTES / (int64_t)dtype_bytes(operation->dtype);
}

/* Returns the number of slices; *bytes: the total traffic (to detect small messages). */
static int64_t slices_of(const struct rendezvous *m, int64_t *bytes)
{
    const struct operation *a = &m->operation;
    int64_t per_buffer = ceil_div(a->count, slice_elements(a)), size = (int64_t)dtype_bytes(a->dtype);
    int64_t participants = m->participants;
    switch (a->kind) {
    case OPERATION_ALL_REDUCE:
    case OPERATION_BROADCAST:
        *bytes = a->count * size * participants;
        return per_buffer;
    case OPERATION_SEND_RECEIVE:
        *bytes = a->count * size;
        return per_buffer;
    case OPERATION_REDUCE_SCATTER:
    case OPERATION_ALL_GATHER:
        *bytes = a->count * size * participants * participants;
        return per_buffer * participants;
    case OPERATION_ALL_TO_ALL:
        *bytes = 0;
        for (int r = 0; r < m->participants; r++)
            for (int to = 0; to < m->participants; to++)
                *bytes += m->participant[r].in_counts[to] * size;
        return participants * participants;
    case OPERATION_BARRIER:
    case OPERATION_COUNT:
        break;
    }
    *bytes = 0;
    return 0;
}

/* Sums elements [begin, end) in rank order into participant 0's buffer and copies them to the others, tile by
 * tile, while the tile is still in the cache. */
static void all_reduce_range(const struct rendezvous *m, int64_t begin, int64_t end)
{
    const struct operation *a = &m->operation;
    int64_t size = (int64_t)dtype_bytes(a->dtype), tile = TILE_BYTES / size;
    float buffer[TILE_BYTES / 2];
    for (int64_t at = begin; at < end; at += tile) {
        int64_t count = end - at < tile ? end - at : tile;
        char *out = m->participant[0].out + at * size;
        void *acc = reduce_begin(a->dtype, out, out, buffer, count);
        for (int r = 1; r < m->participants; r++)
            reduce_into(a->dtype, a->how, acc, m->participant[r].out + at * size, count);
        reduce_end(a->dtype, acc, out, count);
        for (int r = 1; r < m->participants; r++)
            memcpy(m->participant[r].out + at * size, out, (size_t)(count * size));
    }
}

/* Returns the start of the slice of rank `owner`. */
static int64_t slice_base(const struct rendezvous *m, int owner)
{
    int64_t base = 0;
    for (int r = 0; r < owner; r++)
        base += m->participant[0].in_counts[r];
    return base;
}

/* Sums the same range of every rank's input, in rank order, into the output of one rank. The output may alias
 * an input, so the sum is accumulated in a separate buffer. */
static void reduce_scatter_range(const struct rendezvous *m, int owner, int64_t begin, int64_t end)
{
    const struct operation *a = &m->operation;
    int64_t size = (int64_t)dtype_bytes(a->dtype), tile = TILE_BYTES / size;
    float buffer[TILE_BYTES / 2];
    double sum[TILE_BYTES / sizeof(double)]; // aligned for every type
    int64_t base = slice_base(m, owner);
    for (int64_t at = begin; at < end; at += tile) {
        int64_t count = end - at < tile ? end - at : tile;
        void *acc = reduce_begin(a->dtype, sum, m->participant[0].in + (base + at) * size, buffer, count);
        for (int r = 1; r < m->participants; r++)
            reduce_into(a->dtype, REDUCE_SUM, acc, m->participant[r].in + (base + at) * size, count);
        reduce_end(a->dtype, acc, sum, count);
        memcpy(m->participant[owner].out + at * size, sum, (size_t)(count * size));
    }
}

/* `from` and `to` may be equal. */
static void copy_bytes(char *to, const char *from, int64_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static void all_to_all_pair(const struct rendezvous *m, int from, int to)
{
    int64_t size = (int64_t)dtype_bytes(m->operation.dtype), in_at = 0, out_at = 0;
    for (int r = 0; r < to; r++)
        in_at += m->participant[from].in_counts[r];
    for (int r = 0; r < from; r++)
        out_at += m->participant[to].out_counts[r];
    copy_bytes(m->participant[to].out + out_at * size, m->participant[from].in + in_at * size,
               m->participant[from].in_counts[to] * size);
}

static void slice_run(const struct rendezvous *m, int64_t index)
{
    const struct operation *a = &m->operation;
    if (a->kind == OPERATION_ALL_TO_ALL) {
        all_to_all_pair(m, (int)(index / m->participants), (int)(index % m->participants));
        return;
    }
    // All slices of one buffer first, then those of the next buffer.
    int64_t length = slice_elements(a), per_buffer = ceil_div(a->count, length);
    int64_t size = (int64_t)dtype_bytes(a->dtype);
    int owner = (int)(index / per_buffer);
    int64_t begin = index % per_buffer * length;
    bool cut = a->kind == OPERATION_REDUCE_SCATTER || a->kind == OPERATION_ALL_GATHER;
    int64_t all = cut ? m->participant[0].in_counts[owner] : a->count;
    int64_t end = begin + length < all ? begin + length : all;
    int64_t bytes = (end - begin) * size; // not positive after the end of a short buffer
    switch (a->kind) {
    case OPERATION_ALL_REDUCE:
        all_reduce_range(m, begin, end);
        break;
    case OPERATION_REDUCE_SCATTER:
        reduce_scatter_range(m, owner, begin, end);
        break;
    case OPERATION_ALL_GATHER:
        for (int r = 0; r < m->participants; r++)
            copy_bytes(m->participant[r].out + (slice_base(m, owner) + begin) * size,
                       m->participant[owner].in + begin * size, bytes);
        break;
    case OPERATION_BROADCAST:
        for (int r = 0; r < m->participants; r++)
            copy_bytes(m->participant[r].out + begin * size, m->participant[a->root].out + begin * size,
                       bytes);
        break;
    case OPERATION_SEND_RECEIVE:
        copy_bytes(m->participant[1].out + begin * size, m->participant[0].in + begin * size, bytes);
        break;
    case OPERATION_ALL_TO_ALL:
    case OPERATION_BARRIER:
    case OPERATION_COUNT:
        break;
    }
}

static void notify_others(const struct shared_comm *shared, const struct rendezvous *m, int rank)
{
    for (int s = 0; s < m->participants; s++)
        if (m->participant[s].rank != rank)
            notification_signal(shared->notifications[m->participant[s].rank]);
}

static void run_slices(struct shared_comm *shared, struct rendezvous *m, int rank)
{
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&m->claimed, 1, memory_order_relaxed);
        if (index >= m->slices)
            return;
        slice_run(m, index);
        // Release: readers of `finished` see the writes of this slice.
        if (atomic_fetch_add_explicit(&m->finished, 1, memory_order_acq_rel) + 1 == m->slices)
            notify_others(shared, m, rank);
    }
}

/* Returns a description of the mismatch between two participants of a rendezvous, or NULL. */
static const char *mismatch(const struct operation *a, const struct operation *b)
{
    if (a->kind != b->kind)
        return "a different call";
    if (a->dtype != b->dtype)
        return "a different type";
    if (a->count != b->count)
        return "a different count";
    if (a->how != b->how || a->root != b->root)
        return "a different reduction or root";
    return NULL;
}

static const char *const operation_names[] = {
    [OPERATION_ALL_REDUCE] = "all_reduce", [OPERATION_REDUCE_SCATTER] = "reduce_scatter",
    [OPERATION_ALL_GATHER] = "all_gather", [OPERATION_BROADCAST] = "broadcast",
    [OPERATION_ALL_TO_ALL] = "all_to_all", [OPERATION_SEND_RECEIVE] = "exchange",
    [OPERATION_BARRIER] = "barrier",
};
_Static_assert(sizeof operation_names / sizeof *operation_names == OPERATION_COUNT,
               "one name for each operation");

/* Finds the open rendezvous of this operation; requires the lock of the shared comm. */
static struct rendezvous **find_open(struct shared_comm *shared, const struct operation *operation)
{
    struct rendezvous **at = &shared->open;
    while (*at != NULL && ((*at)->operation.sequence != operation->sequence ||
                           (*at)->operation.from != operation->from || (*at)->operation.to != operation->to))
        at = &(*at)->next;
    return at;
}

static struct rendezvous *rendezvous_open(struct shared_comm *shared, const struct operation *operation)
{
    struct rendezvous *m = shared->spare;
    if (m != NULL) {
        shared->spare = m->next;
    } else {
        size_t bytes = sizeof *m + (size_t)(shared->size < 2 ? 2 : shared->size) * sizeof m->participant[0];
        m = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (m == NULL)
            return NULL;
    }
    m->operation = *operation;
    m->participants = operation->from >= 0 ? 2 : shared->size;
    m->joined = 0;
    m->slices = 0;
    atomic_init(&m->ready, false);
    atomic_init(&m->claimed, 0);
    atomic_init(&m->finished, 0);
    atomic_init(&m->left, 0);
    m->next = shared->open;
    shared->open = m;
    return m;
}

static enum status counts_check(const struct shared_comm *shared, const struct rendezvous *m)
{
    for (int from = 0; from < m->participants; from++)
        for (int to = 0; to < m->participants; to++)
            if (m->participant[from].in_counts[to] != m->participant[to].out_counts[from])
                return fail(BAD_ARGUMENT,
                            "all_to_all %s: rank %d sends %lld elements to rank %d, which expects %lld",
                            shared->name, shared->ranks[from], (long long)m->participant[from].in_counts[to],
                            shared->ranks[to], (long long)m->participant[to].out_counts[from]);
    return OK;
}

/* Checks that all ranks split the data identically. */
static enum status slices_check(const struct shared_comm *shared, const struct rendezvous *m)
{
    for (int s = 1; s < m->participants; s++)
        for (int r = 0; r < m->participants; r++)
            if (m->participant[s].in_counts[r] != m->participant[0].in_counts[r])
                return fail(BAD_ARGUMENT,
                            "%s %s: rank %d expects the slice of rank %d to have %lld elements, but rank %d "
                            "expects %lld",
                            operation_names[m->operation.kind], shared->name, shared->ranks[0],
                            shared->ranks[r], (long long)m->participant[0].in_counts[r], shared->ranks[s],
                            (long long)m->participant[s].in_counts[r]);
    return OK;
}

/* Called when all ranks have joined: completes a small message immediately, else publishes the slices for
 * waiting ranks. */
static enum status rendezvous_begin(struct shared_comm *shared, struct rendezvous *m, int rank)
{
    int64_t bytes = 0;
    if (m->operation.kind == OPERATION_ALL_TO_ALL)
        TRY(counts_check(shared, m));
    if (m->operation.kind == OPERATION_REDUCE_SCATTER || m->operation.kind == OPERATION_ALL_GATHER)
        TRY(slices_check(shared, m));
    m->slices = slices_of(m, &bytes);
    if (bytes <= SMALL_BYTES) {
        for (int64_t i = 0; i < m->slices; i++)
            slice_run(m, i);
        atomic_store_explicit(&m->claimed, m->slices, memory_order_relaxed);
        atomic_store_explicit(&m->finished, m->slices, memory_order_relaxed);
    }
    atomic_store_explicit(&m->ready, true, memory_order_release);
    notify_others(shared, m, rank);
    return OK;
}

enum status rendezvous_join(struct shared_comm *shared, struct operation operation,
                            struct participant participant, struct rendezvous **out)
{
    pthread_mutex_lock(&shared->lock);
    struct rendezvous **at = find_open(shared, &operation), *m = *at;
    if (m == NULL) {
        m = rendezvous_open(shared, &operation);
        at = &shared->open;
    }
    const char *wrong = m != NULL ? mismatch(&m->operation, &operation) : NULL;
    bool full = false;
    if (m != NULL && wrong == NULL) {
        int slot = operation.from < 0 ? participant.rank : participant.rank == operation.to;
        m->participant[slot] = participant;
        m->joined++;
        full = m->joined == m->participants;
        if (full)
            *at = m->next;
    }
    pthread_mutex_unlock(&shared->lock);

    if (m == NULL)
        return fail(NO_MEMORY, "no memory for a message on %s", shared->name);
    if (wrong != NULL)
        return fail(BAD_ARGUMENT,
                    "%s %s, message %llu: rank %d passes %lld elements, another rank passes %s: "
                    "the ranks are out of sync",
                    operation_names[operation.kind], shared->name, (unsigned long long)operation.sequence,
                    shared->ranks[participant.rank], (long long)operation.count, wrong);
    *out = m;
    return full ? rendezvous_begin(shared, m, participant.rank) : OK;
}

bool rendezvous_progress(struct shared_comm *shared, struct rendezvous *rendezvous, int rank)
{
    if (!atomic_load_explicit(&rendezvous->ready, memory_order_acquire))
        return false;
    if (atomic_load_explicit(&rendezvous->claimed, memory_order_relaxed) < rendezvous->slices)
        run_slices(shared, rendezvous, rank);
    if (atomic_load_explicit(&rendezvous->finished, memory_order_acquire) < rendezvous->slices)
        return false;

    // The last rank to leave recycles the rendezvous. Other ranks must not access it after they have left: it
    // may be in use again.
    int participants = rendezvous->participants;
    if (atomic_fetch_add_explicit(&rendezvous->left, 1, memory_order_acq_rel) + 1 == participants) {
        pthread_mutex_lock(&shared->lock);
        rendezvous->next = shared->spare;
        shared->spare = rendezvous;
        pthread_mutex_unlock(&shared->lock);
    }
    return true;
}
