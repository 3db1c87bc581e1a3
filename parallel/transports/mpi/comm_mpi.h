// SPDX-License-Identifier: Apache-2.0
/* A message of the mpi transport: a list of pending sends and receives, and a step function that says
 * what comes when they are done. comm_mpi.c moves the bytes; the steps, in comm_mpi_steps.c, know only what
 * is here. */
#pragma once

#include "parallel/comm.h"

struct mpi_comm;
struct pending;

struct request {
    struct work work; // first
    struct mpi_comm *c;
    char name[56];
    int size, rank; // of the comm
    int tag;
    /* Posts what comes next and returns false, or returns true: nothing comes any more. A step that posts
     * nothing and returns false is called again at once. */
    bool (*step)(struct request *request);
    int stage; // the step's own

    struct pending *pending;
    int count, capacity, left;

    struct tensor in, out; // all_reduce, broadcast: in
    enum reduction how;
    int root;
    int64_t at;      // elements finished by earlier segments
    int64_t *counts; // all_to_all: in, then out; reduce_scatter, all_gather: of each rank's slice
    struct tagged_message *messages; // exchange
    int message_count;
    struct device *device; // whose stream it is on
    struct buffer scratch;
};

struct tagged_message {
    struct message message;
    int tag;
};

/* Between two ranks and for one tag, sends and receives match in the order of posting. A message of no bytes
 * is one too. */
void post_send(struct request *request, const void *data, size_t bytes, int peer);
void post_recv(struct request *request, void *data, size_t bytes, int peer);
/* Scratch of at least `bytes`, the same until the request is done while that is enough; counted as
 * communication on the ledger of the device. */
char *request_scratch(struct request *request, size_t bytes);

bool step_all_reduce(struct request *request);
bool step_reduce_scatter(struct request *request);
bool step_all_gather(struct request *request);
bool step_broadcast(struct request *request);
bool step_all_to_all(struct request *request);
bool step_exchange(struct request *request);
bool step_barrier(struct request *request);
