// SPDX-License-Identifier: Apache-2.0
/* Communication is one const table (struct transport_ops), as a device is: local (ranks are threads of
 * this process), mpi (one process per rank), nccl (ranks with a GPU each, threads or processes), dry
 * (counts). A world is this rank's
 * end of the whole job; a comm is its end of one group's own channel. Every comm is made before
 * step 0, so that no step pays for connecting and a wiring fault shows before training.
 *
 * Laws of every transport on a CPU:
 *   - sums add in rank order of the group, element by element, on every transport and for every
 *     message size: threads and mpirun give the same bits;
 *   - a call puts the message on a stream and returns; buffers stay untouched until an event of that
 *     stream says so;
 *   - messages of one comm match in the order in which each rank *called* for them, whatever streams they
 *     are on and whenever those let them start (an exchange: in the order between those two ranks);
 *   - whoever waits also helps: a rank that blocks moves on all messages on all its streams (see struct
 *     work), so what all sides have put on streams completes, whatever each waits for first;
 *   - counts are 64-bit elements.
 *
 * On GPUs messages of one comm also *run* in the order of the calls, one after the other, so two ranks
 * that call for a send and a receive of one comm in crossed orders wait for each other: a comm per direction.
 */
#pragma once

#include "kernels/device.h"

struct comm;
struct world;

/* What a rank has asked of one comm since it was made: how often, and the bytes of the tensors it handed
 * over (for reduce_scatter and all_gather the whole one), not what a transport makes of them on its wires.
 * Counted by the doors of group.h, so every transport counts alike. */
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

struct traffic {
    struct traffic *next; // of the world's list; comms of one name share a row
    char name[32];
    int64_t calls[CALL_COUNT], bytes[CALL_COUNT];
};

enum reduction { REDUCE_SUM, REDUCE_MAX };

/* One message of an exchange: a dense tensor to, or from, `peer` (a rank of the comm). */
struct message {
    struct tensor data;
    int peer;
    bool send;
};

/* How a world is opened. */
struct world_options {
    const char *transport; // a name of the registry, or "auto": see world_run
    int size;              // ranks; 0: the launcher's
    /* Sums may add in the order that is fastest. A transport for CPUs has one order only, that of the ranks.
     */
    bool any_order;
    int ranks_per_gpu; // so many may share a GPU, for tests; 0 or 1: each has its own
};

/* Everything a transport must provide. Use the doors in group.h, which check first. */
struct transport_ops {
    const char *name;
    const char *what;   // one sentence for help and doctor
    const char *device; // the only one whose memory it moves; NULL: all whose memory is the host's
    bool moves_data;    // false on dry, which goes with devices that do not compute
    /* Runs body once for each rank of this process (local: `size` threads; mpi: one), as world_run says.
     * The options' size is at least 1. */
    enum status (*run)(const struct world_options *options,
                       enum status (*body)(struct world *world, void *argument), void *argument);
    /* Collective over `ranks` (world ranks, in group order; this rank among them, at least two). All ranks
     * create their comms in the same order. id: unique among the comms that share a rank. */
    enum status (*comm_create)(struct world *world, const char *name, int64_t id, const int *ranks, int count,
                               struct comm **out);
    void (*comm_destroy)(struct comm *comm);
    enum status (*all_reduce)(struct comm *comm, struct stream *stream, struct tensor data,
                              enum reduction how);
    /* The large side holds one slice for each rank, one after the other: counts[r] elements of rank r, or
     * where counts is NULL as many of each. The small side is this rank's, and may be its own slice of the
     * large one. reduce_scatter: small = slice `rank` of the sum, and the rest of the large side may be lost;
     * all_gather: large = everyone's small. */
    enum status (*reduce_scatter)(struct comm *comm, struct stream *stream, struct tensor large,
                                  const int64_t *counts, struct tensor small);
    enum status (*all_gather)(struct comm *comm, struct stream *stream, struct tensor small,
                              const int64_t *counts, struct tensor large);
    enum status (*broadcast)(struct comm *comm, struct stream *stream, struct tensor data, int root);
    /* in holds in_counts[r] elements for each rank r, one after the other; out likewise from each. */
    enum status (*all_to_all)(struct comm *comm, struct stream *stream, struct tensor in,
                              const int64_t *in_counts, struct tensor out, const int64_t *out_counts);
    /* A batch of sends and receives, posted together. */
    enum status (*exchange)(struct comm *comm, struct stream *stream, const struct message *messages,
                            int count);
    /* Done when every rank of the comm has started its own. */
    enum status (*barrier)(struct comm *comm, struct stream *stream);
    /* NULL where nothing is gained by them. These bytes of the device's will be in many messages of this
     * comm, until unregister_memory, before they are freed and the comm is destroyed. *handle may become
     * NULL. */
    enum status (*register_memory)(struct comm *comm, void *data, size_t bytes, void **handle);
    void (*unregister_memory)(struct comm *comm, void *handle);
};

/* The insides that a transport may see. */
struct world {
    const struct transport_ops *ops;
    int rank, size;
    int local_rank, local_size; // among those of this machine
    int device_index;           // which of this machine's equal devices this rank is to open
    /* Set by tests before the first message. A send is then done only when its receiver has it (with threads
     * it always is), and transfers between stages block (p2p.h): so a program's order of messages needs no
     * buffering. And over mpi a message longer than piece_bytes travels in pieces of that size. */
    bool synchronous;
    size_t piece_bytes;
    struct traffic *traffic; // owned
    void *state;             // the transport's
};
struct comm {
    const struct transport_ops *ops;
    struct world *world;
    char name[32]; // "tp", "dp|cp", "pp 0>1"
    int rank, size;
    struct traffic *traffic; // its row of the world's
    void *state;             // the transport's
};

/* BAD_ARGUMENT names the entry that a table lacks. */
MUST_USE enum status transport_check(const struct transport_ops *ops);

/* The transports of this build, for help and doctor: index 0, 1, ... ; NULL past the last. */
const struct transport_ops *transport_at(size_t index);

/* Whether this build has a transport of this name ("auto" is none), and whether it can move the memory of the
 * device of that name; true where either is unknown, which others refuse. */
bool transport_is_built(const char *name);
bool transport_reaches(const char *transport, const char *device);

/* Opens a world and runs `body` on each of its ranks. NOT_SUPPORTED names the transports of this build.
 * "auto": mpi under a launcher that started several processes, else local. size 0: the launcher's. A size
 * that contradicts the launcher is BAD_USAGE. "dry" runs the ranks one after the other.
 *
 * When every rank has come to its end, returns OK or the status of the lowest rank that failed (of itself:
 * before one that has only lost another, PEER_LOST), with
 * "rank N: text" as fail_text(), in every process alike. When a rank fails and the others do not end by
 * themselves within half a second, they wait for it in vain: the process dies, naming that rank and its
 * reason. (STOPPED is not a failure: the others get all the time they need.) */
MUST_USE enum status world_run(const char *transport, int size,
                               enum status (*body)(struct world *world, void *argument), void *argument);
MUST_USE enum status world_run_as(const struct world_options *options,
                                  enum status (*body)(struct world *world, void *argument), void *argument);

/* A world of `size` ranks of which only `rank` runs, here and now: messages are counted and done. */
MUST_USE enum status world_run_dry(int size, int rank,
                                   enum status (*body)(struct world *world, void *argument), void *argument);

/* The checked door to a transport's comm_create; group.h is how one talks. Every message must be waited
 * for before a comm is destroyed, and that is before the devices that its messages were on are closed: a
 * transport may keep scratch there. */
MUST_USE enum status comm_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                 int count, struct comm **out);
void comm_destroy(struct comm *comm); // takes NULL

/* The same with ranks that are threads of this process, launcher or not: for comparing a layout with one
 * rank. */
MUST_USE enum status world_run_threads(int size, enum status (*body)(struct world *world, void *argument),
                                       void *argument);

/* Who started this process: mpirun (OMPI_COMM_WORLD_SIZE), or srun --mpi=pmix (PMIX_RANK and Slurm's task
 * count). Without one the size is 0 and the rank -1; a bare shell inside an sbatch or salloc
 * allocation has none. Before a world is open, rank 0 or -1 is who prints. */
struct launcher {
    const char *name; // "mpirun", "srun", "none"
    int size, rank;
};
/* BAD_USAGE when many processes were started that cannot find each other (srun without PMIx), or one
 * that sits alone in an allocation of several nodes. */
MUST_USE enum status launcher_find(struct launcher *out);
