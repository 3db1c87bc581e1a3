// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/store/comm_store.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "parallel/transports/store/store.h"
#include "parallel/transports/transports.h"

#include <stdlib.h>
#include <string.h>

static const double START_S = 660.0; // longer than the monitor waits, which knows more

/* How often a comm of this name, id and first rank has been created. */
struct created {
    char key[64];
    int count;
};

struct store_world {
    struct store *store;
    struct created *created;
    size_t count, capacity;
};

struct store_comm {
    struct comm comm;
    char key[88]; // unique
    int calls;
};

static struct store *store_of(struct comm *comm)
{
    return ((struct store_world *)comm->world->state)->store;
}

/* The state is that of the bootstrap world also after the nccl world has copied it. */
static struct store_comm *comm_of(struct comm *comm)
{
    return comm->state;
}

/* ---- comms ---- */

static int count_creation(struct store_world *w, const char *key)
{
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->created[i].key, key) == 0)
            return ++w->created[i].count;
    if (w->count == w->capacity) {
        w->capacity = w->capacity > 0 ? 2 * w->capacity : 16;
        w->created =
            memory_resized(w->created, w->capacity, sizeof *w->created, "the names of communicators");
    }
    struct created *created = &w->created[w->count++];
    *created = (struct created){.count = 0};
    snprintf(created->key, sizeof created->key, "%s", key);
    return 0;
}

static enum status comm_create_store(struct world *world, const char *name, int64_t id, const int *ranks,
                                     int count, struct comm **out)
{
    struct store_comm *c = memory_zeroed(1, sizeof *c, "a communicator");
    char key[sizeof((struct created *)0)->key];
    c->comm = (struct comm){.ops = &transport_store, .world = world, .size = count, .state = c};
    snprintf(c->comm.name, sizeof c->comm.name, "%s", name);
    for (int i = 0; i < count; i++)
        if (ranks[i] == world->rank)
            c->comm.rank = i;
    snprintf(key, sizeof key, "%.24s.%lld.%d", name, (long long)id, ranks[0]);
    snprintf(c->key, sizeof c->key, "%s.%d", key, count_creation(world->state, key));
    *out = &c->comm;
    return OK;
}

static void comm_destroy_store(struct comm *comm)
{
    free(comm_of(comm));
}

static void next_key(struct comm *comm, int rank, char out[STORE_KEY_CHARS])
{
    snprintf(out, STORE_KEY_CHARS, "%s/%d/%d", comm_of(comm)->key, comm_of(comm)->calls, rank);
}

static enum status broadcast_store(struct comm *comm, struct stream *stream, struct tensor data, int root)
{
    const size_t bytes = (size_t)tensor_count(data) * dtype_bytes(data.dtype);
    char key[STORE_KEY_CHARS];
    (void)stream;
    next_key(comm, root, key);
    comm_of(comm)->calls++;
    return comm->rank == root ? store_set(store_of(comm), key, data.data, bytes)
                              : store_get(store_of(comm), key, START_S, data.data, bytes);
}

static enum status all_gather_store(struct comm *comm, struct stream *stream, struct tensor small,
                                    const int64_t *counts, struct tensor large)
{
    const size_t bytes = (size_t)tensor_count(small) * dtype_bytes(small.dtype);
    char key[STORE_KEY_CHARS];
    (void)stream;
    if (counts != NULL)
        return fail(NOT_SUPPORTED, "all_gather of a bootstrap world: unequal slices");
    next_key(comm, comm->rank, key);
    TRY(store_set(store_of(comm), key, small.data, bytes));
    for (int r = 0; r < comm->size; r++) {
        char *slice = (char *)large.data + (size_t)r * bytes;
        next_key(comm, r, key);
        if (r != comm->rank)
            TRY(store_get(store_of(comm), key, START_S, slice, bytes));
        else if (slice != small.data)
            memcpy(slice, small.data, bytes);
    }
    comm_of(comm)->calls++;
    return OK;
}

/* ---- calls that only a transport for training has ---- */

static enum status none(const char *call)
{
    return fail(NOT_SUPPORTED, "%s: a bootstrap world only broadcasts and gathers", call);
}

static enum status all_reduce_store(struct comm *comm, struct stream *stream, struct tensor data,
                                    enum reduction how)
{
    (void)comm, (void)stream, (void)data, (void)how;
    return none("all_reduce");
}

static enum status reduce_scatter_store(struct comm *comm, struct stream *stream, struct tensor large,
                                        const int64_t *counts, struct tensor small)
{
    (void)comm, (void)stream, (void)large, (void)counts, (void)small;
    return none("reduce_scatter");
}

static enum status all_to_all_store(struct comm *comm, struct stream *stream, struct tensor in,
                                    const int64_t *in_counts, struct tensor out, const int64_t *out_counts)
{
    (void)comm, (void)stream, (void)in, (void)in_counts, (void)out, (void)out_counts;
    return none("all_to_all");
}

static enum status exchange_store(struct comm *comm, struct stream *stream, const struct message *messages,
                                  int count)
{
    (void)comm, (void)stream, (void)messages, (void)count;
    return none("exchange");
}

static enum status barrier_store(struct comm *comm, struct stream *stream)
{
    (void)comm, (void)stream;
    return none("barrier");
}

/* ---- the world ---- */

/* How a rank has ended. */
struct end {
    int32_t status;
    char text[2044];
};

static enum status get_end(struct store *store, int rank, double limit_s, struct end *out)
{
    char key[STORE_KEY_CHARS];
    snprintf(key, sizeof key, "end/%d", rank);
    return store_get(store, key, limit_s, out, sizeof *out);
}

/* Every process returns the error of the lowest failed rank, PEER_LOST last. If the other ranks do not end,
 * a failed rank exits, and the others are notified. */
static enum status end_together(struct store *store, const struct world *world, enum status status)
{
    struct end mine = {.status = (int32_t)status}, worst = {.status = OK};
    const bool hurry = status != OK && status != STOPPED;
    const double until = clock_s() + 1e-3 * GRACE_MS;
    char key[STORE_KEY_CHARS];
    int failed = -1;
    snprintf(mine.text, sizeof mine.text, "%s", status != OK ? fail_text() : "");
    snprintf(key, sizeof key, "end/%d", world->rank);
    enum status exchanged = store_set(store, key, &mine, sizeof mine);
    for (int r = 0; r < world->size && exchanged == OK; r++) {
        struct end end;
        const double left = until - clock_s();
        exchanged = get_end(store, r, hurry ? (left > 0.01 ? left : 0.01) : 0.0, &end);
        if (exchanged == OK && end.status != OK &&
            (failed < 0 || (worst.status == PEER_LOST && end.status != PEER_LOST))) {
            failed = r;
            worst = end;
        }
    }
    if (exchanged != OK && hurry) {
        store_close(store, true);
        exit_of_rank(status, world->rank, mine.text);
    }
    TRY(exchanged);
    worst.text[sizeof worst.text - 1] = 0;
    return failed < 0 ? OK : fail((enum status)worst.status, "rank %d: %s", failed, worst.text);
}

static enum status run_store(const struct world_options *options,
                             enum status (*body)(struct world *world, void *argument), void *argument)
{
    struct launcher launcher;
    struct store_world w = {.store = NULL};
    TRY(launcher_find(&launcher));
    const int local_size = launcher_local_size(getenv, launcher.size);
    struct world world = {.ops = &transport_store,
                          .rank = launcher.rank,
                          .size = launcher.size,
                          .local_rank = launcher.local_rank,
                          .local_size = local_size,
                          .state = &w};
    rank_context()->rank = world.rank;
    if (options->rendezvous == NULL)
        return fail(NOT_SUPPORTED,
                    "%s started %d processes without MPI, and this command needs it; start one "
                    "process, or use mpirun",
                    launcher.name, launcher.size);
    TRY(folder_make(options->rendezvous));
    const struct store_options store = {.launcher = &launcher,
                                        .folder = options->rendezvous,
                                        .several_hosts = local_size < launcher.size,
                                        .local_size = local_size,
                                        .start_s = START_S};
    TRY(store_open(&store, &w.store));
    enum status status = body(&world, argument);
    world_close(&world);
    status = end_together(w.store, &world, status);
    char text[1100];
    snprintf(text, sizeof text, "%s", status != OK ? fail_text() : "");
    store_close(w.store, status == PEER_LOST);
    free(w.created);
    return status != OK ? fail(status, "%s", text) : OK;
}

const struct transport_ops transport_store = {
    .name = "store",
    .summary = "bootstrap of nccl without MPI",
    .moves_data = true,
    .run = run_store,
    .comm_create = comm_create_store,
    .comm_destroy = comm_destroy_store,
    .all_reduce = all_reduce_store,
    .reduce_scatter = reduce_scatter_store,
    .all_gather = all_gather_store,
    .broadcast = broadcast_store,
    .all_to_all = all_to_all_store,
    .exchange = exchange_store,
    .barrier = barrier_store,
};
