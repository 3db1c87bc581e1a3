// SPDX-License-Identifier: Apache-2.0
/* Declarations shared by the files of the nccl transport: library functions, a rank's world, its comms. */
#pragma once

#include "kernels/cuda/runtime/message.h"
#include "parallel/comm.h"

#include <nccl.h>
#include <stdatomic.h>

enum { NCCL_BFLOAT16 = 9 }; // ncclBfloat16, which older headers define for C++ only

/* The library functions in use. */
#define NCCL_FUNCTIONS(X)    \
    X(ncclGetVersion)        \
    X(ncclGetErrorString)    \
    X(ncclGetLastError)      \
    X(ncclGetUniqueId)       \
    X(ncclCommInitRank)      \
    X(ncclCommDestroy)       \
    X(ncclCommAbort)         \
    X(ncclCommGetAsyncError) \
    X(ncclCommRegister)      \
    X(ncclCommDeregister)    \
    X(ncclAllReduce)         \
    X(ncclReduceScatter)     \
    X(ncclAllGather)         \
    X(ncclBroadcast)         \
    X(ncclSend)              \
    X(ncclRecv)              \
    X(ncclGroupStart)        \
    X(ncclGroupEnd)

struct nccl_library {
    void *module;
#define DECLARE(name) __typeof__(&name) name;
    NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
};

/* Loads NCCL for the life of this process: it cannot be unloaded while one of its threads runs. NOT_SUPPORTED
 * names the missing library, or the version that is too old. */
MUST_USE enum status nccl_library_open(struct nccl_library *out);

/* State shared by the ranks of a process. */
struct nccl_job {
    struct nccl_library nccl;
    bool chained; // NCCL does not order the messages of different comms: the transport does
    const struct world_options *options;
    enum status (*body)(struct world *world, void *argument);
    void *argument;
    atomic_int failed; // 1 + the first failed rank, whose error is in `why`; -1: `why` is being written
    char why[1024];
};

struct nccl_comm {
    struct comm comm; // first: callers hold a pointer to it
    struct nccl_comm *next;
    struct nccl_world *world;
    ncclComm_t nccl; // NULL: aborted
    char names[CALL_COUNT][56];
};

/* State of one rank. NCCL comms are created and destroyed only by its thread. */
struct nccl_world {
    struct cuda_guard guard; // first: guard of all messages
    struct nccl_job *job;
    struct world *bootstrap; // the same ranks on a CPU transport, which distributes the unique ids
    struct device *host;     // for messages of the bootstrap world
    struct stream *stream;
    cudaStream_t warm_up; // for the first message of each comm
    cudaEvent_t last;     // chained: recorded after each message, awaited by the next
    void *warm_up_buffer; // for these messages: one element per rank, and one more
    struct nccl_comm *comms;
};

/* Returns OK, or an error "CALL NAME: NCCL's text"; NO_DEVICE_MEMORY also gives the free memory. comm NULL:
 * none yet. */
MUST_USE enum status nccl_check(const struct nccl_library *nccl, const struct nccl_comm *comm,
                                ncclResult_t result, const char *call, const char *name);

MUST_USE enum status nccl_run(const struct world_options *options,
                              enum status (*body)(struct world *world, void *argument), void *argument);
MUST_USE enum status nccl_comm_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                      int count, struct comm **out);
void nccl_comm_destroy(struct comm *comm);
/* Chained: the stream waits for this rank's previous message. */
MUST_USE enum status nccl_wait_for_turn(const struct nccl_world *w, cudaStream_t stream);
/* Chained: the rank's next message waits for the work on the stream. */
MUST_USE enum status nccl_pass_turn(const struct nccl_world *w, cudaStream_t stream);
/* Aborts every message of this rank; afterwards its comms can only be destroyed. */
void nccl_abort(struct nccl_world *world);
