// SPDX-License-Identifier: Apache-2.0
/* Registry of transports, and creation of worlds. */
#include "parallel/comm.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "parallel/observe_world.h"
#include "parallel/transports/transports.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* All transports, in the order of help; ops is NULL if this build lacks it. */
static const struct {
    const char *name;
    const struct transport_ops *ops;
    bool selectable; // false: only chosen by the program itself
} transports[] = {
    {"local", &transport_local, true},
#ifdef HAVE_MPI
    {"mpi", &transport_mpi, true},
#else
    {"mpi", NULL, true},
#endif
#ifdef HAVE_NCCL
    {"nccl", &transport_nccl, true},
#else
    {"nccl", NULL, true},
#endif
    {"dry", &transport_dry, false},
};
enum { TRANSPORT_COUNT = sizeof transports / sizeof *transports };

static const char *const call_names[] = {
    [CALL_ALL_REDUCE] = "all_reduce", [CALL_REDUCE_SCATTER] = "reduce_scatter",
    [CALL_ALL_GATHER] = "all_gather", [CALL_BROADCAST] = "broadcast",
    [CALL_ALL_TO_ALL] = "all_to_all", [CALL_SEND] = "send",
    [CALL_RECEIVE] = "receive",       [CALL_BARRIER] = "barrier",
};
_Static_assert(sizeof call_names / sizeof *call_names == CALL_COUNT, "one name for each call");

const char *call_name(enum call call)
{
    return call >= 0 && call < CALL_COUNT ? call_names[call] : "?";
}

const struct transport_ops *transport_at(size_t index)
{
    for (size_t i = 0; i < TRANSPORT_COUNT; i++)
        if (transports[i].ops != NULL && index-- == 0)
            return transports[i].ops;
    return NULL;
}

const char *transport_name(size_t index)
{
    for (size_t i = 0; i < TRANSPORT_COUNT; i++)
        if (transports[i].selectable && index-- == 0)
            return transports[i].name;
    return NULL;
}

static const struct transport_ops *find(const char *name)
{
    for (size_t i = 0; i < TRANSPORT_COUNT; i++)
        if (strcmp(transports[i].name, name) == 0)
            return transports[i].ops;
    return NULL;
}

bool transport_is_built(const char *name)
{
    return find(name) != NULL;
}

static bool supports_device(const struct transport_ops *ops, const char *device)
{
    if (!ops->moves_data || !device_traits(device)->computes)
        return ops->moves_data == device_traits(device)->computes;
    return ops->device != NULL ? strcmp(ops->device, device) == 0 : device_traits(device)->has_host_memory;
}

bool transport_supports_device(const char *transport, const char *device)
{
    const struct transport_ops *ops = find(transport);
    return ops == NULL || !device_is_built(device) || supports_device(ops, device);
}

const struct transport_ops *transport_for_cpu(bool launched)
{
    return find(launched ? "mpi" : "local");
}

/* Checked at the start: a missing entry would otherwise fail in the middle of a run, on some ranks. */
enum status transport_check(const struct transport_ops *ops)
{
    const struct {
        const char *name;
        bool there;
    } entries[] = {
        {"name", ops->name != NULL},
        {"summary", ops->summary != NULL},
        {"run", ops->run != NULL},
        {"comm_create", ops->comm_create != NULL},
        {"comm_destroy", ops->comm_destroy != NULL},
        {"all_reduce", ops->all_reduce != NULL},
        {"reduce_scatter", ops->reduce_scatter != NULL},
        {"all_gather", ops->all_gather != NULL},
        {"broadcast", ops->broadcast != NULL},
        {"all_to_all", ops->all_to_all != NULL},
        {"exchange", ops->exchange != NULL},
        {"barrier", ops->barrier != NULL},
        {"register_memory and unregister_memory, both or neither",
         (ops->register_memory != NULL) == (ops->unregister_memory != NULL)},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!entries[i].there)
            return fail(BAD_ARGUMENT, "transport \"%s\" does not provide %s",
                        ops->name != NULL ? ops->name : "?", entries[i].name);
    return OK;
}

/* ---- worlds ---- */

static enum status transport_named(const char *name, const struct transport_ops **out)
{
    *out = find(name);
    if (*out != NULL)
        return transport_check(*out);
    struct text known = {0};
    const char *names[TRANSPORT_COUNT];
    size_t count = 0;
    for (; transport_at(count) != NULL; count++) {
        names[count] = transport_at(count)->name;
        text_add(&known, "%s%s", count > 0 ? ", " : "", names[count]);
    }
    const char *nearest = nearest_name(name, names, count);
    enum status status = fail(NOT_SUPPORTED, "this build has no transport \"%s\"%s%s%s; it has %s", name,
                              nearest != NULL ? " (did you mean \"" : "", nearest != NULL ? nearest : "",
                              nearest != NULL ? "\"?)" : "", text_chars(&known));
    text_free(&known);
    return status;
}

enum status world_run_as(const struct world_options *options,
                         enum status (*body)(struct world *world, void *argument), void *argument)
{
    const char *transport = options->transport;
    int size = options->size;
    struct launcher launcher;
    TRY(launcher_find(&launcher));
    if (strcmp(transport, "auto") == 0)
        transport = launcher.size > 1 ? "mpi" : "local";
    const struct transport_ops *ops = NULL;
    TRY(transport_named(transport, &ops));

    if (ops == find("mpi") && launcher.size > 1 && !launcher.has_mpi)
        return fail(
            BAD_USAGE,
            "%s started %d processes without MPI, which cannot find each other; start them with mpirun "
            "or srun --mpi=pmix, or use cluster.transport=nccl on GPUs",
            launcher.name, launcher.size);
    bool one_process = ops == &transport_local || ops == &transport_dry;
    if (one_process && launcher.size > 1)
        return fail(
            BAD_USAGE,
            "%s started %d processes, and with transport %s each would run alone; start it without %s",
            launcher.name, launcher.size, transport, launcher.name);
    if (size < 0)
        return fail(BAD_ARGUMENT, "invalid world size %d", size);
    int launched = launcher.size > 0 ? launcher.size : 1;
    bool threads = one_process || (ops->device != NULL && launcher.size == 0); // without a launcher
    if (!threads && size > 0 && size != launched && launcher.size > 0)
        return fail(BAD_USAGE, "the layout needs %d ranks, but %s started %d processes; use %s -n %d", size,
                    launcher.name, launched, launcher.name, size);
    if (!threads && size > launched)
        return fail(BAD_USAGE, "transport %s needs a launcher for the layout's %d ranks: use mpirun -n %d",
                    transport, size, size);
    struct world_options sized = *options;
    sized.transport = transport;
    sized.size = size > 0 ? size : launched;
    return ops->run(&sized, body, argument);
}

enum status world_run(const char *transport, int size,
                      enum status (*body)(struct world *world, void *argument), void *argument)
{
    return world_run_as(&(struct world_options){.transport = transport, .size = size}, body, argument);
}

int64_t spin_ns(int ranks)
{
    return ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? 50000 : 3000;
}

_Noreturn void exit_of_rank(enum status status, int rank, const char *why)
{
    const struct rank_context *me = rank_context();
    if (me->step > 0 && me->rank == rank)
        die_of(status, "%s (the other ranks wait for it)", why);
    die_of_rank(status, rank, "%s (the other ranks wait for it)", why);
}

void world_close(struct world *world)
{
    world_stop_observing(world);
}

/* ---- comms ---- */

/* seen: [world->size], initially false. */
static enum status check_ranks(const struct world *world, const char *name, const int *ranks, int count,
                               bool *seen)
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->size)
            return fail(BAD_ARGUMENT, "comm %s: there is no rank %d in a world of %d", name, ranks[i],
                        world->size);
        if (seen[ranks[i]])
            return fail(BAD_ARGUMENT, "comm %s: rank %d is listed twice", name, ranks[i]);
        seen[ranks[i]] = true;
    }
    return seen[world->rank] ? OK : fail(BAD_ARGUMENT, "comm %s: rank %d is not a member", name, world->rank);
}

enum status comm_create(struct world *world, const char *name, int64_t id, const int *ranks, int count,
                        struct comm **out)
{
    if (count < 2)
        return fail(BAD_ARGUMENT, "comm %s: %d ranks; a comm needs at least 2", name, count);
    bool *seen = memory_zeroed((size_t)world->size, sizeof *seen, "a communicator");
    enum status status = check_ranks(world, name, ranks, count, seen);
    free(seen);
    TRY(status);
    return world->ops->comm_create(world, name, id, ranks, count, out);
}

void comm_destroy(struct comm *comm)
{
    if (comm != NULL)
        comm->ops->comm_destroy(comm);
}

enum status world_run_threads(int size, enum status (*body)(struct world *world, void *argument),
                              void *argument)
{
    return world_run("local", size, body, argument);
}
