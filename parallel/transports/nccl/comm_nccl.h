// SPDX-License-Identifier: Apache-2.0
/* What the files of the nccl transport share: the library's functions, the world of a rank, its comms. */
#pragma once

#include "kernels/cuda/runtime/message.h"
#include "parallel/comm.h"

#include <nccl.h>
#include <stdatomic.h>

/* The library's functions that are used here. */
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

/* Opens NCCL for this process, and for good: it cannot be closed while one of its threads runs. NOT_SUPPORTED
 * names the library that is not there, or is too old. */
MUST_USE enum status nccl_library_open(struct nccl_library *out);

/* What the ranks of a process share. */
struct nccl_job {
    struct nccl_library nccl;
    const struct world_options *options;
    enum status (*body)(struct world *world, void *argument);
    void *argument;
    atomic_int failed; // 1 + the first rank that did, and has said why; -1: it is about to
    char why[1024];
};

struct nccl_comm {
    struct comm comm; // first: the handle that callers hold
    struct nccl_comm *next;
    struct nccl_world *world;
    ncclComm_t nccl; // NULL: aborted
    char names[CALL_COUNT][56];
};

/* A rank's. NCCL's comms are made and thrown away by its thread alone. */
struct nccl_world {
    struct cuda_guard guard; // first: of all messages
    struct nccl_job *job;
    struct world *carrier; // the same ranks on a transport for hosts, which hands round the unique ids
    struct device *host;   // for what goes over it
    struct stream *stream;
    cudaStream_t greeting; // for the first message of each comm,
    void *room;            // which goes through this: a number of each rank, and one more
    struct nccl_comm *comms;
};

/* OK, or "CALL NAME: what NCCL says"; NO_DEVICE_MEMORY also how much is free. comm NULL: none yet. */
MUST_USE enum status nccl_check(const struct nccl_library *nccl, const struct nccl_comm *comm,
                                ncclResult_t result, const char *call, const char *name);

MUST_USE enum status nccl_run(const struct world_options *options,
                              enum status (*body)(struct world *world, void *argument), void *argument);
MUST_USE enum status nccl_comm_create(struct world *world, const char *name, int64_t id, const int *ranks,
                                      int count, struct comm **out);
void nccl_comm_destroy(struct comm *comm);
/* Ends every message of this rank, come what may; its comms are good for nothing but to be destroyed. */
void nccl_abort(struct nccl_world *world);
