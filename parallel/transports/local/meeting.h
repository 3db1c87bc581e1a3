// SPDX-License-Identifier: Apache-2.0
/* How ranks that are threads of one process exchange data (the inside of comm_local.c).
 *
 * Nobody sends anything. A message is a meeting: each rank takes its seat by publishing where its buffers
 * are. When all seats are taken the work, cut into slices, lies there for whoever waits: waiters claim
 * slices one by one, and for its slice each adds or copies the buffers of *all* ranks. So one waiter alone
 * can finish a message while the others compute, four waiters share it, and nobody depends on a
 * particular partner being awake.
 *
 *     rank 0  takes seat ................ waits: claims slice 0, 2, 3 .. done, leaves
 *     rank 1  .... takes seat, computes ........................ polls: done, leaves
 *     rank 2  ............ takes the last seat, waits: claims 1 .... done, leaves
 *
 * A small message is not worth a wake-up: who takes its last seat does all of it at once.
 *
 * The trap: once the last slice is done the owners may overwrite their buffers, so after claiming a slice
 * number beyond the end nobody may look at a seat any more. */
#pragma once

#include "kernels/tensor.h"
#include "parallel/comm.h"

#include <pthread.h>
#include <stdatomic.h>

/* Where a rank sleeps. Anyone rings; only the owner rests. */
struct notification {
    _Alignas(64) _Atomic uint32_t news; // counts what happened to the owner's messages
    _Atomic bool sleeping;
    uint32_t seen;                 // the owner's: the news at the end of its last rest
    int64_t spin_ns, most_spin_ns; // the next look's, and the limit
    pthread_mutex_t lock;
    pthread_cond_t rung;
};
void notification_init(struct notification *notification, int64_t spin_ns);
void notification_fini(struct notification *notification);
void notification_ring(struct notification *notification);
/* Returns when there was news since the last rest returned: looks for spin_ns, then sleeps. */
void notification_rest(struct notification *notification);

enum operation_kind { // what a meeting is for
    OPERATION_ALL_REDUCE,
    OPERATION_REDUCE_SCATTER,
    OPERATION_ALL_GATHER,
    OPERATION_BROADCAST,
    OPERATION_ALL_TO_ALL,
    OPERATION_SEND_RECEIVE, // one send and its receive: seat 0 sends, seat 1 receives
    OPERATION_BARRIER,
    OPERATION_COUNT
};

/* What all seats of a meeting must agree on. */
struct operation {
    enum operation_kind kind;
    int from, to;      // of a letter, ranks of the comm; -1 for a collective
    uint64_t sequence; // counted by each rank as it calls: per comm, for letters per (from, to)
    enum dtype dtype;
    enum reduction how;
    int root;
    int64_t
        count; // all_reduce, broadcast, letter: all elements; reduce_scatter, all_gather: the most of a rank
};

struct participant {
    char *in, *out;
    const int64_t *in_counts;  // all_to_all; reduce_scatter, all_gather: of each rank's slice
    const int64_t *out_counts; // all_to_all
    int rank;                  // of the comm
};

struct meeting;

/* The middle of a comm, shared by its ranks. */
struct hub {
    struct hub *next; // of the world's list, under the world's lock
    int64_t id;
    char name[32];
    int size, expected;                  // ranks that have not left for good
    struct notification **notifications; // [size]
    int *ranks;                          // [size] world ranks
    bool *seen;                          // [size] who has come; under the world's lock
    pthread_mutex_t lock;
    struct meeting *open, *spare; // under the lock: seats still free; ready to be used again
};
MUST_USE enum status hub_create(int64_t id, const char *name, const int *ranks, int size, struct hub **out);
void hub_destroy(struct hub *hub);

/* Takes a seat; `seat.rank` is whose. BAD_ARGUMENT when the others are here for something else. */
MUST_USE enum status meeting_join(struct hub *hub, struct operation operation, struct participant participant,
                                  struct meeting **out);
/* Does what can be done now; true when all is done, and then this rank has left. */
bool meeting_help(struct hub *hub, struct meeting *meeting, int rank);
