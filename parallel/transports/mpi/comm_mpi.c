// SPDX-License-Identifier: Apache-2.0
/* The mpi transport: one process per rank. Only this file includes mpi.h; comm_mpi_steps.c has the
 * algorithms.
 *
 * MPI makes progress only inside its calls, so progress needs polling. An idle process yields, then sleeps
 * briefly, since there may be more ranks than cores.
 *
 * Caution: tags. A tag is (exchange or collective, sequence number), so that messages match whichever stream
 * starts them first; within one request, messages between two ranks are posted in the same order on both. */
#include "parallel/transports/mpi/comm_mpi.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/transports/transports.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    TAG_SEQUENCES = 1 << 21,     // MPI_TAG_UB may be as low as 2^23 - 1
    TAG_MESSAGE = TAG_SEQUENCES, // added to the tags of exchanges
    CHUNK_BYTES = 1 << 30,
    SLEEP_NS = 5000,       // the first sleep after finding nothing to do;
    SLEEP_LONG_NS = 80000, // each is twice as long as the previous one, up to this,
    SLEEP_PART = 12,       // or to this part of the wait so far,
    SLEEP_MAX_NS = 1000000 // but never longer
};

struct mpi_world {
    MPI_Comm comm;
    int64_t spin_ns;
    int64_t idle_since_ns; // time of the first idle poll since the last progress; 0: progress was made
    int64_t sleep_ns;      // the next sleep
};

struct mpi_comm {
    struct comm comm; // first: callers hold a pointer to it
    MPI_Comm mpi;
    uint64_t calls;            // collectives so far
    uint64_t *sent, *received; // [size] sends and receives so far, by peer
    int *ranks;                // [size] world ranks
    struct buffer spare;       // the largest scratch buffer of completed requests
};

struct pending {
    MPI_Request request;
    int bytes; // expected by a receive; -1: a send
    int peer;  // world rank
};

static struct mpi_comm *mpi_of(struct comm *comm)
{
    return (struct mpi_comm *)comm->state;
}

static struct mpi_world *world_of(const struct mpi_comm *c)
{
    return c->comm.world->state;
}

/* MPI calls fail only if the job is broken: report the call, the peer and the reason, and exit. */
static void check(int code, const char *call, const char *name, int peer)
{
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    if (peer >= 0)
        die(__FILE__, __LINE__, call, "%s with rank %d: %s", name, peer, text);
    die(__FILE__, __LINE__, call, "%s: %s", name, text);
}

/* ---- requests ---- */

static void swap_buffers(struct buffer *a, struct buffer *b)
{
    struct buffer other = *a;
    *a = *b;
    *b = other;
}

static void request_free(struct request *r)
{
    struct mpi_comm *c = r->c;
    if (r->scratch.bytes > c->spare.bytes)
        swap_buffers(&r->scratch, &c->spare);
    buffer_free(&r->scratch);
    free(r->pending);
    free(r->counts);
    free(r->messages);
    free(r);
}

char *request_scratch(struct request *request, size_t bytes)
{
    struct mpi_comm *c = request->c;
    if (request->scratch.bytes < bytes && c->spare.bytes >= bytes)
        swap_buffers(&request->scratch, &c->spare);
    if (request->scratch.bytes < bytes) {
        buffer_free(&request->scratch);
        MUST(buffer_alloc(request->device, PART_COMMUNICATION, bytes, &request->scratch));
    }
    return request->scratch.data;
}

static struct pending *pending_add(struct request *r, int expected_bytes, int peer)
{
    if (r->count == r->capacity) {
        r->capacity = r->capacity == 0 ? 16 : 2 * r->capacity;
        r->pending = memory_resized(r->pending, (size_t)r->capacity, sizeof *r->pending, "pending messages");
    }
    struct pending *p = &r->pending[r->count++];
    *p = (struct pending){.request = MPI_REQUEST_NULL, .bytes = expected_bytes, .peer = r->c->ranks[peer]};
    return p;
}

/* Returns the size of the next chunk of a message with `bytes` left: an MPI count is an int. */
static int chunk_of(const struct request *r, size_t bytes)
{
    size_t limit = r->c->comm.world->chunk_bytes;
    limit = limit > 0 && limit < CHUNK_BYTES ? limit : CHUNK_BYTES;
    return (int)(bytes < limit ? bytes : limit);
}

void post_send(struct request *request, const void *data, size_t bytes, int peer)
{
    // Exchanges only: collectives post on both sides before they wait, so they never need buffering.
    bool synchronous = request->c->comm.world->synchronous && request->messages != NULL;
    const char *from = data;
    for (;;) {
        int chunk = chunk_of(request, bytes);
        struct pending *p = pending_add(request, -1, peer);
        check((synchronous ? MPI_Issend : MPI_Isend)(from, chunk, MPI_BYTE, peer, request->tag,
                                                     request->c->mpi, &p->request),
              synchronous ? "MPI_Issend" : "MPI_Isend", request->name, p->peer);
        bytes -= (size_t)chunk;
        if (bytes == 0) // `data` may be NULL then
            return;
        from += chunk;
    }
}

void post_recv(struct request *request, void *data, size_t bytes, int peer)
{
    char *to = data;
    for (;;) {
        int chunk = chunk_of(request, bytes);
        struct pending *p = pending_add(request, chunk, peer);
        check(MPI_Irecv(to, chunk, MPI_BYTE, peer, request->tag, request->c->mpi, &p->request), "MPI_Irecv",
              request->name, p->peer);
        bytes -= (size_t)chunk;
        if (bytes == 0) // `data` may be NULL then
            return;
        to += chunk;
    }
}

/* *done: true if everything pending has completed. */
static enum status pending_done(struct request *r, bool *done)
{
    for (int i = 0; i < r->count; i++) {
        struct pending *p = &r->pending[i];
        if (p->request == MPI_REQUEST_NULL)
            continue;
        int flag = 0, bytes = 0;
        MPI_Status status;
        check(MPI_Test(&p->request, &flag, &status), "MPI_Test", r->name, p->peer);
        if (flag == 0)
            continue;
        r->left--;
        world_of(r->c)->idle_since_ns = 0;
        if (p->bytes < 0)
            continue;
        check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", r->name, p->peer);
        if (bytes != p->bytes)
            return fail(BAD_ARGUMENT,
                        "%s: %d bytes came from rank %d, and %d were expected: the ranks are out of sync",
                        r->name, bytes, p->peer, p->bytes);
    }
    *done = r->left == 0;
    return OK;
}

/* Runs steps until one has posted messages. */
static bool run_steps(struct request *r)
{
    r->count = 0;
    while (!r->step(r))
        if (r->count > 0) {
            r->left = r->count;
            return false;
        }
    return true;
}

static enum status request_start(struct work *work)
{
    struct request *r = (struct request *)work;
    if (run_steps(r))
        r->count = r->left = 0;
    return OK;
}

static enum status request_poll(struct work *work, bool *done)
{
    struct request *r = (struct request *)work;
    *done = false;
    while (r->count > 0) {
        bool all = false;
        TRY(pending_done(r, &all));
        if (!all)
            return OK;
        if (run_steps(r))
            r->count = 0;
    }
    *done = true;
    request_free(r);
    return OK;
}

/* There may be more ranks than cores, and other programs: a process that sleeps briefly is woken promptly,
 * while one that yields may wait for a time slice of every other process. Polls of ranks that wait take time
 * from those that compute, so they become rare in a long wait; its end is noticed a small part of it late. */
static void sleep_until_poll(struct mpi_world *w)
{
    int64_t now = clock_ns();
    if (w->idle_since_ns == 0) {
        w->idle_since_ns = now;
        w->sleep_ns = SLEEP_NS;
    }
    if (now - w->idle_since_ns < w->spin_ns)
        return;
    nanosleep(&(struct timespec){.tv_nsec = w->sleep_ns}, NULL);
    const int64_t part_ns = (now - w->idle_since_ns) / SLEEP_PART;
    const int64_t capped_ns = part_ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : part_ns;
    const int64_t limit_ns = capped_ns > SLEEP_LONG_NS ? capped_ns : SLEEP_LONG_NS;
    w->sleep_ns = 2 * w->sleep_ns < limit_ns ? 2 * w->sleep_ns : limit_ns;
}

static void request_sleep(struct work *work)
{
    sleep_until_poll(world_of(((struct request *)work)->c));
}

static struct request *request_create(struct comm *comm, const char *what,
                                      bool (*step)(struct request *request))
{
    struct request *r = memory_zeroed(1, sizeof *r, "a message");
    r->c = mpi_of(comm);
    r->size = comm->size;
    r->rank = comm->rank;
    r->step = step;
    snprintf(r->name, sizeof r->name, "%s %s", what, comm->name);
    r->work =
        (struct work){.start = request_start, .poll = request_poll, .sleep = request_sleep, .name = r->name};
    return r;
}

/* The tag of a collective is its sequence number, counted in call order. */
static enum status submit(struct request *r, struct stream *stream)
{
    r->tag = (int)(r->c->calls++ % TAG_SEQUENCES);
    r->device = stream_device(stream);
    return stream_submit_work(stream, &r->work);
}

/* ---- collectives ---- */

static enum status all_reduce_mpi(struct comm *comm, struct stream *stream, struct tensor data,
                                  enum reduction how)
{
    struct request *r = request_create(comm, "all_reduce", step_all_reduce);
    r->in = data;
    r->how = how;
    return submit(r, stream);
}

static int64_t *counts_create(size_t count)
{
    return memory_zeroed(count, sizeof(int64_t), "the counts of a collective");
}

/* One slice per rank: counts[r] elements, or `each` elements if counts is NULL. */
static enum status submit_slices(struct request *r, struct stream *stream, const int64_t *counts,
                                 int64_t each)
{
    r->how = REDUCE_SUM;
    r->counts = counts_create((size_t)r->size);
    for (int q = 0; q < r->size; q++)
        r->counts[q] = counts != NULL ? counts[q] : each;
    return submit(r, stream);
}

static enum status reduce_scatter_mpi(struct comm *comm, struct stream *stream, struct tensor large,
                                      const int64_t *counts, struct tensor small)
{
    struct request *r = request_create(comm, "reduce_scatter", step_reduce_scatter);
    r->in = large;
    r->out = small;
    return submit_slices(r, stream, counts, tensor_count(small));
}

static enum status all_gather_mpi(struct comm *comm, struct stream *stream, struct tensor small,
                                  const int64_t *counts, struct tensor large)
{
    struct request *r = request_create(comm, "all_gather", step_all_gather);
    r->in = small;
    r->out = large;
    return submit_slices(r, stream, counts, tensor_count(small));
}

static enum status broadcast_mpi(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    struct request *r = request_create(comm, "broadcast", step_broadcast);
    r->in = data;
    r->root = root;
    return submit(r, stream);
}

static enum status all_to_all_mpi(struct comm *comm, struct stream *stream, struct tensor in,
                                  const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    struct request *r = request_create(comm, "all_to_all", step_all_to_all);
    size_t n = (size_t)comm->size;
    r->in = in;
    r->out = out;
    r->counts = counts_create(2 * n);
    memcpy(r->counts, in_counts, n * sizeof *in_counts);
    memcpy(r->counts + n, out_counts, n * sizeof *out_counts);
    return submit(r, stream);
}

static enum status exchange_mpi(struct comm *comm, struct stream *stream, const struct message *messages,
                                int count)
{
    struct request *r = request_create(comm, "exchange", step_exchange);
    struct mpi_comm *c = r->c;
    r->message_count = count;
    r->messages = memory_zeroed((size_t)count, sizeof *r->messages, "messages");
    for (int i = 0; i < count; i++) {
        uint64_t *number = messages[i].send ? &c->sent[messages[i].peer] : &c->received[messages[i].peer];
        r->messages[i] =
            (struct tagged_message){messages[i], TAG_MESSAGE + (int)((*number)++ % TAG_SEQUENCES)};
    }
    return stream_submit_work(stream, &r->work);
}

static enum status barrier_mpi(struct comm *comm, struct stream *stream)
{
    return submit(request_create(comm, "barrier", step_barrier), stream);
}

/* ---- comms ---- */

static void comm_destroy_mpi(struct comm *comm)
{
    struct mpi_comm *c = mpi_of(comm);
    if (c->mpi != MPI_COMM_NULL)
        check(MPI_Comm_free(&c->mpi), "MPI_Comm_free", comm->name, -1);
    free(c->sent);
    free(c->received);
    free(c->ranks);
    buffer_free(&c->spare);
    free(c);
}

/* Open MPI can yield the core in every poll that finds nothing, and does so if there are more ranks than
 * cores. Next to busy processes each such poll costs a time slice of one of them. Ranks therefore yield only
 * inside MPI's blocking calls, and sleep between polls (sleep_until_poll()). No effect with other MPIs. */
static void yield_in_polls(bool yield)
{
    void *set = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");
    if (set != NULL)
        (*(bool (**)(bool)) & set)(yield);
}

/* Creates the communicator and exchanges an empty message with every member in both directions, so that all
 * connections exist before the first step. A group that ranks see differently hangs here, before training,
 * with its name in the trace. */
static void connect(struct mpi_comm *c, int64_t id)
{
    struct mpi_world *w = world_of(c);
    const char *name = c->comm.name;
    MPI_Group all, members;
    check(MPI_Comm_group(w->comm, &all), "MPI_Comm_group", name, -1);
    check(MPI_Group_incl(all, c->comm.size, c->ranks, &members), "MPI_Group_incl", name, -1);
    int tag = (int)((id ^ id >> 32) & 0x7fff);
    yield_in_polls(true);
    check(MPI_Comm_create_group(w->comm, members, tag, &c->mpi), "MPI_Comm_create_group", name, -1);
    yield_in_polls(false);
    check(MPI_Comm_set_errhandler(c->mpi, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", name, -1);
    check(MPI_Group_free(&members), "MPI_Group_free", name, -1);
    check(MPI_Group_free(&all), "MPI_Group_free", name, -1);

    struct request *hello = request_create(&c->comm, "hello", step_barrier);
    MUST(request_start(&hello->work));
    for (bool done = false; !done;) {
        MUST(request_poll(&hello->work, &done));
        if (!done)
            sleep_until_poll(w);
    }
}

static enum status comm_create_mpi(struct world *world, const char *name, int64_t id, const int *ranks,
                                   int count, struct comm **out)
{
    struct mpi_comm *c = memory_zeroed(1, sizeof *c, "a communicator");
    c->comm = (struct comm){.ops = &transport_mpi, .world = world, .size = count, .state = c};
    c->mpi = MPI_COMM_NULL;
    snprintf(c->comm.name, sizeof c->comm.name, "%s", name);
    size_t n = (size_t)count;
    c->sent = memory_zeroed(n, sizeof *c->sent, "a communicator");
    c->received = memory_zeroed(n, sizeof *c->received, "a communicator");
    c->ranks = memory_zeroed(n, sizeof *c->ranks, "a communicator");
    memcpy(c->ranks, ranks, n * sizeof *ranks);
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->rank)
            c->comm.rank = i;
    connect(c, id);
    *out = &c->comm;
    return OK;
}

/* ---- world ---- */

/* Waits for one of the collectives that end a world. limit_ms 0: no limit. Returns false on a timeout. */
static bool end_wait(struct mpi_world *w, MPI_Request *request, int limit_ms)
{
    int64_t begin = clock_ns();
    for (int done = 0;;) {
        check(MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Test", "the end", -1);
        if (done != 0)
            return true;
        if (limit_ms > 0 && clock_ns() - begin > limit_ms * (int64_t)1000000)
            return false;
        sleep_until_poll(w);
    }
}

/* Every process returns the error of the lowest failed rank. If the other ranks do not finish too, a failed
 * rank exits, and its launcher ends the others. */
static enum status end_together(struct mpi_world *w, struct world *world, enum status status)
{
    char text[2048] = "";
    snprintf(text, sizeof text, "%s", status == OK ? "" : fail_text());
    int *all = memory_zeroed((size_t)world->size, sizeof *all, "the statuses of ranks"), mine = (int)status;
    MPI_Request request;
    check(MPI_Iallgather(&mine, 1, MPI_INT, all, 1, MPI_INT, w->comm, &request), "MPI_Iallgather", "the end",
          -1);
    bool hurry = status != OK && status != STOPPED;
    if (!end_wait(w, &request, hurry ? GRACE_MS : 0))
        exit_of_rank(status, world->rank, text);
    int failed = world->size;
    for (int r = world->size - 1; r >= 0; r--) // ranks with PEER_LOST come last
        if (all[r] != OK && (failed == world->size || all[r] != PEER_LOST || all[failed] == PEER_LOST))
            failed = r;
    enum status result = failed < world->size ? (enum status)all[failed] : OK;
    free(all);
    if (result == OK)
        return OK;
    check(MPI_Ibcast(text, sizeof text, MPI_CHAR, failed, w->comm, &request), "MPI_Ibcast", "the end",
          failed);
    end_wait(w, &request, 0);
    return fail(result, "rank %d: %s", failed, text);
}

static enum status run_mpi(const struct world_options *options,
                           enum status (*body)(struct world *world, void *argument), void *argument)
{
    int size = options->size, provided = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return fail(NOT_SUPPORTED, "MPI initialization failed");
    struct mpi_world w = {0};
    struct world world = {.ops = &transport_mpi, .state = &w};
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "world", -1);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &w.comm), "MPI_Comm_dup", "world", -1);
    check(MPI_Comm_set_errhandler(w.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "world", -1);
    check(MPI_Comm_size(w.comm, &world.size), "MPI_Comm_size", "world", -1);
    check(MPI_Comm_rank(w.comm, &world.rank), "MPI_Comm_rank", "world", -1);
    rank_context()->rank = world.rank;
    MPI_Comm here;
    check(MPI_Comm_split_type(w.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), "MPI_Comm_split_type",
          "world", -1);
    check(MPI_Comm_size(here, &world.local_size), "MPI_Comm_size", "world", -1);
    check(MPI_Comm_rank(here, &world.local_rank), "MPI_Comm_rank", "world", -1);
    check(MPI_Comm_free(&here), "MPI_Comm_free", "world", -1);
    w.spin_ns = spin_ns(world.local_size);
    prctl(PR_SET_TIMERSLACK, 1000UL); // timer slack of this thread: makes short sleeps short

    yield_in_polls(false);

    enum status status = OK;
    if (world.size != size)
        status = fail(
            NOT_SUPPORTED,
            "the launcher started %d processes, but MPI reports %d: is this program built with another MPI?",
            size, world.size);
    if (status == OK)
        status = body(&world, argument);
    world_close(&world);
    status = end_together(&w, &world, status);
    yield_in_polls(true);
    check(MPI_Comm_free(&w.comm), "MPI_Comm_free", "world", -1);
    check(MPI_Finalize(), "MPI_Finalize", "world", -1);
    return status;
}

const struct transport_ops transport_mpi = {
    .name = "mpi",
    .summary = "one process per rank, under mpirun or srun --mpi=pmix",
    .moves_data = true,
    .run = run_mpi,
    .comm_create = comm_create_mpi,
    .comm_destroy = comm_destroy_mpi,
    .all_reduce = all_reduce_mpi,
    .reduce_scatter = reduce_scatter_mpi,
    .all_gather = all_gather_mpi,
    .broadcast = broadcast_mpi,
    .all_to_all = all_to_all_mpi,
    .exchange = exchange_mpi,
    .barrier = barrier_mpi,
};
