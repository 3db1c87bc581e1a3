// SPDX-License-Identifier: Apache-2.0
/* The local transport: ranks are threads of this process. rendezvous.h implements the exchange; this file has
 * the world of threads, the comms, and the calls that enqueue requests on a stream.
 *
 * Caution: a failed rank cannot unblock the others, which wait for its messages on condition variables. The
 * first failure therefore starts a timer; if the other ranks have not finished when it expires, the process
 * exits with that rank's error. */
#include "base/memory.h"
#include "parallel/comm.h"
#include "parallel/transports/local/rendezvous.h"
#include "parallel/transports/transports.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct local_world {
    int size;
    struct notification *notifications; // [size]
    pthread_mutex_t lock;
    struct shared_comm *shared_comms; // under the lock
};

struct local_comm {
    struct comm comm; // first: callers hold a pointer to it
    struct shared_comm *shared;
    uint64_t calls;            // collectives so far
    uint64_t *sent, *received; // [size] sends and receives so far, by peer
};

static struct local_comm *local_of(struct comm *comm)
{
    return (struct local_comm *)comm->state;
}

static struct notification *own_notification(const struct local_comm *c)
{
    return c->shared->notifications[c->comm.rank];
}

/* ---- comms ---- */

static int index_of(int rank, const int *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

/* Returns the oldest shared comm of this id that `rank` is a member of and has not joined yet. Ranks create
 * their comms in the same order, so it is the one that faster ranks created in the same call. Those that this
 * rank has joined belong to an earlier use of the id and are still held by slower ranks. */
static struct shared_comm **find_shared_comm(struct local_world *world, int64_t id, int rank)
{
    struct shared_comm **at = &world->shared_comms;
    for (; *at != NULL; at = &(*at)->next) {
        int mine = index_of(rank, (*at)->ranks, (*at)->size);
        if ((*at)->id == id && mine >= 0 && !(*at)->seen[mine])
            break;
    }
    return at;
}

/* Requires the world's lock. */
static enum status shared_comm_join(struct local_world *world, const char *name, int64_t id, int rank,
                                    const int *ranks, int count, struct shared_comm **out)
{
    struct shared_comm **at = find_shared_comm(world, id, rank), *shared = *at;
    if (shared != NULL &&
        (shared->size != count || memcmp(shared->ranks, ranks, (size_t)count * sizeof *ranks) != 0))
        return fail(BAD_ARGUMENT, "comm %s: rank %d and another rank disagree about its members", name, rank);
    if (shared == NULL) {
        shared = shared_comm_create(id, name, ranks, count);
        for (int i = 0; i < count; i++)
            shared->notifications[i] = &world->notifications[ranks[i]];
        *at = shared; // append: oldest first
    }
    shared->seen[index_of(rank, ranks, count)] = true;
    *out = shared;
    return OK;
}

static void shared_comm_leave(struct local_world *world, struct shared_comm *shared)
{
    pthread_mutex_lock(&world->lock);
    shared->expected--; // also counts the ranks that have not joined yet
    if (shared->expected == 0) {
        struct shared_comm **at = &world->shared_comms;
        while (*at != shared)
            at = &(*at)->next;
        *at = shared->next;
        shared_comm_destroy(shared);
    }
    pthread_mutex_unlock(&world->lock);
}

static void comm_destroy_local(struct comm *comm)
{
    struct local_comm *c = local_of(comm);
    if (c->shared != NULL)
        shared_comm_leave(comm->world->state, c->shared);
    free(c->sent);
    free(c->received);
    free(c);
}

static enum status comm_create_local(struct world *world, const char *name, int64_t id, const int *ranks,
                                     int count, struct comm **out)
{
    struct local_world *w = world->state;
    struct local_comm *c = memory_zeroed(1, sizeof *c, "a communicator");
    c->comm = (struct comm){.ops = &transport_local, .world = world, .size = count, .state = c};
    snprintf(c->comm.name, sizeof c->comm.name, "%s", name);
    c->comm.rank = index_of(world->rank, ranks, count);
    c->sent = memory_zeroed((size_t)count, sizeof *c->sent, "a communicator");
    c->received = memory_zeroed((size_t)count, sizeof *c->received, "a communicator");
    pthread_mutex_lock(&w->lock);
    const enum status status = shared_comm_join(w, name, id, world->rank, ranks, count, &c->shared);
    pthread_mutex_unlock(&w->lock);
    if (status == OK)
        *out = &c->comm;
    else
        comm_destroy_local(&c->comm);
    return status;
}

/* ---- requests on a stream ---- */

struct pending {
    struct operation operation;
    struct participant participant;
    struct rendezvous *rendezvous; // NULL: not joined yet, or already left
    bool done;
};

struct request {
    struct work work; // first
    struct local_comm *comm;
    char name[56];
    int64_t *counts; // copy of the caller's array, read by the other ranks; for all_to_all both arrays
    int count;
    struct pending pending[];
};

static void request_free(struct request *request)
{
    free(request->counts);
    free(request);
}

static enum status request_start(struct work *work)
{
    struct request *r = (struct request *)work;
    for (int i = 0; i < r->count; i++) {
        struct pending *t = &r->pending[i];
        TRY(rendezvous_join(r->comm->shared, t->operation, t->participant, &t->rendezvous));
    }
    return OK;
}

static enum status request_poll(struct work *work, bool *done)
{
    struct request *r = (struct request *)work;
    bool all = true;
    for (int i = 0; i < r->count; i++) {
        struct pending *t = &r->pending[i];
        if (!t->done)
            t->done = rendezvous_progress(r->comm->shared, t->rendezvous, r->comm->comm.rank);
        all = all && t->done;
    }
    *done = all;
    if (all)
        request_free(r);
    return OK;
}

static void request_sleep(struct work *work)
{
    notification_wait(own_notification(((struct request *)work)->comm));
}

static struct request *request_create(struct local_comm *c, const char *what, int count)
{
    struct request *r = memory_zeroed(1, sizeof *r + (size_t)count * sizeof r->pending[0], "a message");
    r->comm = c;
    r->count = count;
    snprintf(r->name, sizeof r->name, "%s %s", what, c->comm.name);
    r->work =
        (struct work){.start = request_start, .poll = request_poll, .sleep = request_sleep, .name = r->name};
    return r;
}

static enum status collective(struct comm *comm, struct stream *stream, const char *what,
                              struct operation operation, struct participant participant)
{
    struct local_comm *c = local_of(comm);
    struct request *r = request_create(c, what, 1);
    operation.from = operation.to = -1;
    operation.sequence = c->calls++;
    participant.rank = comm->rank;
    r->pending[0] = (struct pending){.operation = operation, .participant = participant};
    return stream_submit_work(stream, &r->work);
}

static enum status all_reduce_local(struct comm *comm, struct stream *stream, struct tensor data,
                                    enum reduction how)
{
    struct operation operation = {
        .kind = OPERATION_ALL_REDUCE, .dtype = data.dtype, .how = how, .count = tensor_count(data)};
    return collective(comm, stream, "all_reduce", operation,
                      (struct participant){.in = data.data, .out = data.data});
}

/* One slice per rank: counts[r] elements, or `each` elements if counts is NULL. */
static enum status slices(struct comm *comm, struct stream *stream, struct operation operation,
                          struct participant participant, const int64_t *counts, int64_t each)
{
    struct local_comm *c = local_of(comm);
    const char *what = operation.kind == OPERATION_ALL_GATHER ? "all_gather" : "reduce_scatter";
    struct request *r = request_create(c, what, 1);
    r->counts = memory_zeroed((size_t)comm->size, sizeof *counts, "the counts of a collective");
    for (int q = 0; q < comm->size; q++) {
        r->counts[q] = counts != NULL ? counts[q] : each;
        operation.count = r->counts[q] > operation.count ? r->counts[q] : operation.count;
    }
    operation.from = operation.to = -1;
    operation.sequence = c->calls++;
    participant.rank = comm->rank;
    participant.in_counts = r->counts;
    r->pending[0] = (struct pending){.operation = operation, .participant = participant};
    return stream_submit_work(stream, &r->work);
}

static enum status reduce_scatter_local(struct comm *comm, struct stream *stream, struct tensor large,
                                        const int64_t *counts, struct tensor small)
{
    struct operation operation = {.kind = OPERATION_REDUCE_SCATTER, .dtype = large.dtype};
    return slices(comm, stream, operation, (struct participant){.in = large.data, .out = small.data}, counts,
                  tensor_count(small));
}

static enum status all_gather_local(struct comm *comm, struct stream *stream, struct tensor small,
                                    const int64_t *counts, struct tensor large)
{
    struct operation operation = {.kind = OPERATION_ALL_GATHER, .dtype = small.dtype};
    return slices(comm, stream, operation, (struct participant){.in = small.data, .out = large.data}, counts,
                  tensor_count(small));
}

static enum status broadcast_local(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    struct operation operation = {
        .kind = OPERATION_BROADCAST, .dtype = data.dtype, .root = root, .count = tensor_count(data)};
    return collective(comm, stream, "broadcast", operation,
                      (struct participant){.in = data.data, .out = data.data});
}

static enum status barrier_local(struct comm *comm, struct stream *stream)
{
    return collective(comm, stream, "barrier", (struct operation){.kind = OPERATION_BARRIER},
                      (struct participant){0});
}

static enum status all_to_all_local(struct comm *comm, struct stream *stream, struct tensor in,
                                    const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    struct local_comm *c = local_of(comm);
    size_t n = (size_t)comm->size;
    struct request *r = request_create(c, "all_to_all", 1);
    int64_t *counts = memory_zeroed(2 * n, sizeof *counts, "the counts of a collective");
    memcpy(counts, in_counts, n * sizeof *counts);
    memcpy(counts + n, out_counts, n * sizeof *counts);
    r->counts = counts;
    r->pending[0] = (struct pending){
        .operation =
            {.kind = OPERATION_ALL_TO_ALL, .from = -1, .to = -1, .sequence = c->calls++, .dtype = in.dtype},
        .participant = {.in = in.data,
                        .out = out.data,
                        .in_counts = counts,
                        .out_counts = counts + n,
                        .rank = comm->rank},
    };
    return stream_submit_work(stream, &r->work);
}

static enum status exchange_local(struct comm *comm, struct stream *stream, const struct message *messages,
                                  int count)
{
    struct local_comm *c = local_of(comm);
    struct request *r = request_create(c, "exchange", count);
    for (int i = 0; i < count; i++) {
        const struct message *m = &messages[i];
        struct operation operation = {.kind = OPERATION_SEND_RECEIVE,
                                      .from = m->send ? comm->rank : m->peer,
                                      .to = m->send ? m->peer : comm->rank,
                                      .sequence = m->send ? c->sent[m->peer]++ : c->received[m->peer]++,
                                      .dtype = m->data.dtype,
                                      .count = tensor_count(m->data)};
        struct participant participant = {.in = m->data.data, .out = m->data.data, .rank = comm->rank};
        r->pending[i] = (struct pending){.operation = operation, .participant = participant};
    }
    return stream_submit_work(stream, &r->work);
}

/* ---- world ---- */

struct local_launch;

struct rank_thread {
    struct local_launch *job;
    int rank;
    pthread_t thread;
    bool ended;
    enum status status;
    char text[2048];
    struct rank_context who; // what it was doing when it ended
};

struct local_launch {
    struct local_world world;
    enum status (*body)(struct world *world, void *argument);
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { GATE_SHUT, GATE_OPEN, GATE_CANCELLED } gate;
    int ended;
    struct rank_thread *ranks; // [size]
};

static void *rank_main(void *argument)
{
    struct rank_thread *me = argument;
    struct local_launch *job = me->job;
    pthread_mutex_lock(&job->lock);
    while (job->gate == GATE_SHUT)
        pthread_cond_wait(&job->changed, &job->lock);
    bool go = job->gate == GATE_OPEN;
    pthread_mutex_unlock(&job->lock);

    enum status status = OK;
    if (go) {
        struct world world = {.ops = &transport_local,
                              .rank = me->rank,
                              .size = job->world.size,
                              .local_rank = me->rank,
                              .local_size = job->world.size,
                              .state = &job->world};
        rank_context()->rank = me->rank;
        status = job->body(&world, job->argument);
        world_close(&world);
    }

    pthread_mutex_lock(&job->lock);
    me->status = status;
    me->who = *rank_context();
    snprintf(me->text, sizeof me->text, "%s", status == OK ? "" : fail_text());
    me->ended = true;
    job->ended++;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* Returns the lowest failed rank so far, or NULL; ranks with PEER_LOST come last. STOPPED is not a failure:
 * no rank is blocked by it. */
static const struct rank_thread *first_failure(const struct local_launch *job, bool count_stopped)
{
    const struct rank_thread *found = NULL;
    for (int r = job->world.size - 1; r >= 0; r--) {
        const struct rank_thread *t = &job->ranks[r];
        if (!t->ended || t->status == OK || (!count_stopped && t->status == STOPPED))
            continue;
        if (found == NULL || t->status != PEER_LOST || found->status == PEER_LOST)
            found = t;
    }
    return found;
}

/* Waits until every rank has finished, with a time limit once a rank has failed. */
static void job_wait(struct local_launch *job)
{
    struct timespec until = {0};
    pthread_mutex_lock(&job->lock);
    while (job->ended < job->world.size) {
        const struct rank_thread *failed = first_failure(job, false);
        if (failed == NULL) {
            pthread_cond_wait(&job->changed, &job->lock);
            continue;
        }
        if (until.tv_sec == 0) {
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += GRACE_MS * 1000000L;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
        }
        if (pthread_cond_timedwait(&job->changed, &job->lock, &until) == ETIMEDOUT &&
            job->ended < job->world.size) {
            *rank_context() = failed->who;
            exit_of_rank(failed->status, failed->rank, failed->text);
        }
    }
    pthread_mutex_unlock(&job->lock);
}

static enum status job_run(struct local_launch *job)
{
    int size = job->world.size, started = 0;
    for (; started < size; started++) {
        struct rank_thread *t = &job->ranks[started];
        *t = (struct rank_thread){.job = job, .rank = started};
        if (pthread_create(&t->thread, NULL, rank_main, t) != 0)
            break;
    }
    pthread_mutex_lock(&job->lock);
    job->gate = started == size ? GATE_OPEN : GATE_CANCELLED;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);

    if (started == size)
        job_wait(job);
    for (int r = 0; r < started; r++)
        pthread_join(job->ranks[r].thread, NULL);
    if (started < size)
        return fail(NO_MEMORY, "cannot create more than %d of %d threads", started, size);
    const struct rank_thread *failed = first_failure(job, true);
    if (failed == NULL)
        return OK;
    if (size == 1) // a single rank needs no prefix
        return fail(failed->status, "%s", failed->text);
    return fail(failed->status, "rank %d: %s", failed->rank, failed->text);
}

static enum status run_local(const struct world_options *options,
                             enum status (*body)(struct world *world, void *argument), void *argument)
{
    int size = options->size;
    if (size < 1)
        return fail(BAD_ARGUMENT, "a local world needs a size, not %d", size);
    struct local_launch job = {.world = {.size = size}, .body = body, .argument = argument};
    job.ranks = memory_zeroed((size_t)size, sizeof *job.ranks, "the threads of ranks");
    job.world.notifications =
        aligned_alloc(_Alignof(struct notification), (size_t)size * sizeof *job.world.notifications);
    if (job.world.notifications == NULL) {
        free(job.ranks);
        return fail(NO_MEMORY, "no memory for %d ranks", size);
    }
    for (int r = 0; r < size; r++)
        notification_init(&job.world.notifications[r], spin_ns(size));
    pthread_condattr_t clock;
    CHECK(pthread_condattr_init(&clock) == 0);
    CHECK(pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&job.lock, NULL) == 0);
    CHECK(pthread_mutex_init(&job.world.lock, NULL) == 0);
    CHECK(pthread_cond_init(&job.changed, &clock) == 0);

    enum status status = job_run(&job);

    // Some are left only after a failure.
    for (struct shared_comm *shared = job.world.shared_comms, *next; shared != NULL; shared = next) {
        next = shared->next;
        shared_comm_destroy(shared);
    }
    pthread_cond_destroy(&job.changed);
    pthread_mutex_destroy(&job.world.lock);
    pthread_mutex_destroy(&job.lock);
    pthread_condattr_destroy(&clock);
    for (int r = 0; r < size; r++)
        notification_fini(&job.world.notifications[r]);
    free(job.world.notifications);
    free(job.ranks);
    return status;
}

const struct transport_ops transport_local = {
    .name = "local",
    .summary = "ranks are threads of this process; needs no launcher",
    .moves_data = true,
    .run = run_local,
    .comm_create = comm_create_local,
    .comm_destroy = comm_destroy_local,
    .all_reduce = all_reduce_local,
    .reduce_scatter = reduce_scatter_local,
    .all_gather = all_gather_local,
    .broadcast = broadcast_local,
    .all_to_all = all_to_all_local,
    .exchange = exchange_local,
    .barrier = barrier_local,
};
