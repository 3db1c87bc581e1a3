// SPDX-License-Identifier: Apache-2.0
/* Transports: a const ops table (struct transport_ops) each, like devices. local: ranks are threads of this
 * process; mpi: one process per rank; nccl: ranks with a GPU each, threads or processes; dry: counts only. A
 * world is this rank's handle of the whole job; a comm is its handle of one group's communicator. All comms
 * are created before step 0, so that no step pays for connection setup and wiring faults appear before
 * training.
 *
 * Guarantees of every CPU transport:
 *   - sums are accumulated in rank order of the group, element by element, on every transport and for
 *     every message size: threads and mpirun give identical bits;
 *   - calls are asynchronous: they enqueue on a stream and return; buffers must not be touched until an
 *     event of that stream has completed;
 *   - messages of one comm match in the order of the *calls* on each rank, independent of streams and of
 *     the time at which those start them (for exchange: in the order between those two ranks);
 *   - progress: a blocked rank progresses all messages on all its streams (see struct work), so everything
 *     that all sides have enqueued completes, in any order in which the ranks wait;
 *   - counts are 64-bit elements.
 *
 * On GPUs the messages of one comm also *run* in call order, one after the other. Two ranks that call send
 * and receive of one comm in crossed orders therefore deadlock: use one comm per direction. */
#pragma once

#include "kernels/device.h"
#include "parallel/launcher.h"

struct comm;
struct world;

/* The calls of a comm. */
enum call {
    CALL_ALL_REDUCE,
    CALL_REDUCE_SCATTER,
    CALL_ALL_GATHER,
    CALL_BROADCAST,
    CALL_ALL_TO_ALL,
    CALL_SEND,
    CALL_RECEIVE,
    CALL_BARRIER,
    CALL_COUNT
};
const char *call_name(enum call call);

enum reduction { REDUCE_SUM, REDUCE_MAX };

/* One message of an exchange: a dense tensor to or from `peer` (a rank of the comm). */
struct message {
    struct tensor data;
    int peer;
    bool send;
};

/* Options of world_run(). */
struct world_options {
    const char *transport; // a registered name, or "auto": see world_run
    int size;              // ranks; 0: as launched
    /* Allows nondeterministic order of sums, for speed. CPU transports always add in rank order. */
    bool nondeterministic;
    int ranks_per_gpu; // ranks that may share a GPU, for tests; 0 or 1: each has its own
    /* A folder that all nodes share, in which processes without MPI find each other (nccl); NULL: none. */
    const char *rendezvous;
};

/* Functions of a transport. Call them through the API of group.h, which checks arguments. */
struct transport_ops {
    const char *name;
    const char *summary; // one sentence
    const char *device;  // the only device whose memory it transfers; NULL: all devices with host memory
    bool moves_data;     // false for dry, which is used with devices that do not compute
    /* Runs body once for each rank of this process (local: `size` threads; mpi: one), see world_run. The size
     * in options is at least 1. */
    enum status (*run)(const struct world_options *options,
                       enum status (*body)(struct world *world, void *argument), void *argument);
    /* Collective over `ranks` (world ranks, in group order; includes this rank, at least two). All ranks
     * create their comms in the same order. id: unique among the comms that share a rank. */
    enum status (*comm_create)(struct world *world, const char *name, int64_t id, const int *ranks, int count,
                               struct comm **out);
    void (*comm_destroy)(struct comm *comm);
    enum status (*all_reduce)(struct comm *comm, struct stream *stream, struct tensor data,
                              enum reduction how);
    /* large: one slice per rank, consecutive: counts[r] elements of rank r, or equal sizes if counts is NULL.
     * small: this rank's slice, which may alias its slice of large. reduce_scatter: small = slice `rank` of
     * the sum; the rest of large may be overwritten. all_gather: large = small of all ranks. */
    enum status (*reduce_scatter)(struct comm *comm, struct stream *stream, struct tensor large,
                                  const int64_t *counts, struct tensor small);
    enum status (*all_gather)(struct comm *comm, struct stream *stream, struct tensor small,
                              const int64_t *counts, struct tensor large);
    enum status (*broadcast)(struct comm *comm, struct stream *stream, struct tensor data, int root);
    /* in: in_counts[r] elements for each rank r, consecutive; out: out_counts[r] elements from each rank. */
    enum status (*all_to_all)(struct comm *comm, struct stream *stream, struct tensor in,
                              const int64_t *in_counts, struct tensor out, const int64_t *out_counts);
    /* A batch of sends and receives, posted together. */
    enum status (*exchange)(struct comm *comm, struct stream *stream, const struct message *messages,
                            int count);
    /* Completes when every rank of the comm has started its own. */
    enum status (*barrier)(struct comm *comm, struct stream *stream);
    /* NULL if registration has no benefit. Registers device memory that many messages of this comm will use,
     * until unregister_memory, which must precede freeing the memory and destroying the comm. *handle may
     * become NULL. */
    enum status (*register_memory)(struct comm *comm, void *data, size_t bytes, void **handle);
    void (*unregister_memory)(struct comm *comm, void *handle);
};

/* Internals that transports may access. */
struct world {
    const struct transport_ops *ops;
    int rank, size;
    int local_rank, local_size; // within this machine
    int device_index;           // which of this machine's equal devices this rank opens
    /* Set by tests before the first message. A send then completes only when its receiver has it (always so
     * with threads), and transfers between stages block (p2p.h): proves that a program's order of messages
     * needs no buffering. With mpi, messages longer than chunk_bytes are split into chunks of that size. */
    bool synchronous;
    size_t chunk_bytes;
    struct observed_world *observed; // NULL: no observer (observe_world.h), which replaces `ops`
    void *state;                     // private to the transport
};
struct comm {
    const struct transport_ops *ops;
    struct world *world;
    char name[32]; // "tp", "dp|cp", "pp 0>1"
    int rank, size;
    const int *ranks;       // world ranks, in group order; of the group that owns this comm, NULL without one
    int64_t observed_calls; // reported to observers
    void *state;            // private to the transport
};

/* Returns BAD_ARGUMENT naming the missing entry of a table. */
MUST_USE enum status transport_check(const struct transport_ops *ops);

/* Returns the transports of this build, for help and doctor: index 0, 1, ...; NULL after the last. */
const struct transport_ops *transport_at(size_t index);

/* Returns the names that a user may select, also of transports that this build lacks: index 0, 1, ...; NULL
 * after the last. */
const char *transport_name(size_t index);

/* Return true if this build has a transport of this name ("auto" is not one), and if it can transfer
 * memory of the named device (also if either name is unknown, which is rejected elsewhere). */
bool transport_is_built(const char *name);
bool transport_supports_device(const char *transport, const char *device);

/* Opens a world and runs `body` on each of its ranks. NOT_SUPPORTED names the transports of this build.
 * "auto": mpi under a launcher that started several processes, else local. size 0: as launched. BAD_USAGE if
 * the size contradicts the launcher. "dry" runs the ranks one after the other.
 *
 * Returns OK when all ranks have finished, or the status of the lowest failed rank (PEER_LOST, the
 * consequence of another failure, ranks last), with "rank N: text" as fail_text(), identically in every
 * process. If a rank fails and the others do not finish within half a second, they are blocked on it: the
 * process exits, naming that rank and its error. (STOPPED is not a failure, and has no time limit.) */
MUST_USE enum status world_run(const char *transport, int size,
                               enum status (*body)(struct world *world, void *argument), void *argument);
MUST_USE enum status world_run_as(const struct world_options *options,
                                  enum status (*body)(struct world *world, void *argument), void *argument);

/* Runs only `rank` of a world of `size` ranks, in this process: messages complete at once. */
MUST_USE enum status world_run_dry(int size, int rank,
                                   enum status (*body)(struct world *world, void *argument), void *argument);

/* Checked entry point to a transport's comm_create; communication goes through group.h. All messages must be
 * waited for before a comm is destroyed, and comms must be destroyed before the devices that their messages
 * use: a transport may keep scratch memory there. */
MUST_USE enum status comm_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                 int count, struct comm **out);
void comm_destroy(struct comm *comm); // accepts NULL

/* Same, with ranks that are always threads of this process: to compare a layout with a single rank. */
MUST_USE enum status world_run_threads(int size, enum status (*body)(struct world *world, void *argument),
                                       void *argument);
