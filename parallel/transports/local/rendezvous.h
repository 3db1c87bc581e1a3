// SPDX-License-Identifier: Apache-2.0
/* Message exchange between ranks that are threads of one process (internal to comm_local.c).
 *
 * Nothing is sent. A message is a rendezvous: each rank joins by publishing the addresses of its buffers.
 * When all participants have joined, the work is cut into slices, and waiting ranks claim slices one by
 * one: for its slice a rank adds or copies the buffers of *all* ranks. One waiting rank can thus complete
 * a message while the others compute, four waiting ranks share it, and no message depends on a particular
 * rank being awake.
 *
 *     rank 0  joins ..................... waits: claims slices 0, 2, 3 . done, leaves
 *     rank 1  .... joins, computes ............................. polls: done, leaves
 *     rank 2  ............ joins last, waits: claims slice 1 ........ done, leaves
 *
 * A small message is not worth a wake-up: the last rank to join does all of it immediately.
 *
 * Caution: once the last slice is done the owners may overwrite their buffers, so after claiming a slice
 * number past the end a rank must not read participants any more. */
#pragma once

#include "kernels/tensor.h"
#include "parallel/comm.h"

#include <pthread.h>
#include <stdatomic.h>

/* Wake-up of a sleeping rank. Any rank may signal; only the owner waits. */
struct notification {
    _Alignas(64) _Atomic uint32_t events; // counts events of the owner's messages
    _Atomic bool sleeping;
    uint32_t seen;                // owner only: `events` at the end of its last wait
    int64_t spin_ns, max_spin_ns; // duration of the next spin, and its limit
    pthread_mutex_t lock;
    pthread_cond_t signaled;
};
void notification_init(struct notification *notification, int64_t spin_ns);
void notification_fini(struct notification *notification);
void notification_signal(struct notification *notification);
/* Returns when there were events since the last wait returned: spins for spin_ns, then sleeps. */
void notification_wait(struct notification *notification);

enum operation_kind { // the kind of message
    OPERATION_ALL_REDUCE,
    OPERATION_REDUCE_SCATTER,
    OPERATION_ALL_GATHER,
    OPERATION_BROADCAST,
    OPERATION_ALL_TO_ALL,
    OPERATION_SEND_RECEIVE, // one send and its receive: participant 0 sends, participant 1 receives
    OPERATION_BARRIER,
    OPERATION_COUNT
};

/* Properties that all participants of a rendezvous must agree on. */
struct operation {
    enum operation_kind kind;
    int from, to;      // of a send/receive pair, ranks of the comm; -1 for a collective
    uint64_t sequence; // counted by each rank as it calls: per comm, for send/receive per (from, to)
    enum dtype dtype;
    enum reduction how;
    int root;
    int64_t
        count; // all_reduce, broadcast, send/receive: all elements; reduce_scatter, all_gather: the largest
               // slice
};

struct participant {
    char *in, *out;
    const int64_t *in_counts;  // all_to_all; reduce_scatter, all_gather: of each rank's slice
    const int64_t *out_counts; // all_to_all
    int rank;                  // of the comm
};

struct rendezvous;

/* The state of a comm that its ranks share. */
struct shared_comm {
    struct shared_comm *next; // list of the world, under the world's lock
    int64_t id;
    char name[32];
    int size, expected;                  // expected: ranks that have not destroyed the comm yet
    struct notification **notifications; // [size]
    int *ranks;                          // [size] world ranks
    bool *seen;                          // [size] ranks that have joined; under the world's lock
    pthread_mutex_t lock;
    // Under the lock: those that participants may still join; those for reuse.
    struct rendezvous *open, *spare;
};
struct shared_comm *shared_comm_create(int64_t id, const char *name, const int *ranks, int size);
void shared_comm_destroy(struct shared_comm *shared);

/* Joins a rendezvous as participant.rank. BAD_ARGUMENT if other participants have a different operation. */
MUST_USE enum status rendezvous_join(struct shared_comm *shared, struct operation operation,
                                     struct participant participant, struct rendezvous **out);
/* Runs the slices available now. Returns true when all are done; this rank has then left the rendezvous. */
bool rendezvous_progress(struct shared_comm *shared, struct rendezvous *rendezvous, int rank);
