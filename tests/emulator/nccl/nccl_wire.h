// SPDX-License-Identifier: Apache-2.0
/* Shared declarations of the emulated NCCL (documented in nccl.c): the file of a comm, and a message. */
#pragma once

#include "tests/emulator/include/nccl.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum { SLOT_BYTES = 64 << 10, MAX_TRANSFERS = 64, GPU_CHARS = 96 };

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, POINT_TO_POINT };

/* Arguments that must agree on all ranks; for point-to-point, on two. */
struct call_args {
    int32_t kind, type, how, root;
    uint64_t count, call;
    int32_t registered, unused; // 1: input in registered memory; 2: output in it. For point-to-point 1
};

/* Registered memory. */
struct registered {
    struct registered *next;
    const char *data;
    size_t bytes;
};

struct slot {
    atomic_uint_fast64_t posted, consumed; // chunks
    struct call_args args;
    int64_t bytes; // of a point-to-point chunk
    char data[SLOT_BYTES];
};

/* The file. Slots [n] of ranks, whose `consumed` is the number of chunks that rank has read from all; then
 * [n][n] of pairs. */
struct shared {
    atomic_int joined, left;
    char gpu[64][GPU_CHARS];
    pid_t process[64];
    struct slot slot[];
};

struct ncclComm {
    int rank, ranks;
    int references; // of owner and queued messages
    uint64_t calls, finished;
    uint64_t collectives, chunks; // of them
    bool aborted, in_progress;    // in_progress: a message has started and is incomplete
    struct registered *registered;
    uint64_t contacted[2]; // a bit per rank sent to, and received from
    struct shared *shared;
    size_t bytes;
};

struct transfer {
    bool send, posted, registered;
    int peer;
    char *data;
    size_t count, bytes, at;
    ncclDataType_t type;
    bool done;
};

struct message {
    struct emulator_message base; // first
    struct ncclComm *comm;
    struct call_args args;
    const char *in;
    char *out;
    uint64_t at;             // elements done
    uint64_t number, ticket; // index in the comm; on this GPU
    bool started, posted;
    int transfer_count;
    struct transfer transfers[];
};

size_t nccl_bytes_of(int type);
const char *nccl_kind_name(int kind);

struct slot *nccl_slot(const struct ncclComm *comm, int rank);

/* Makes progress on a message, and returns whether it is complete. */
bool nccl_move_collective(struct message *message, bool *moved);
bool nccl_move_transfers(struct message *message, bool *moved);
