// SPDX-License-Identifier: Apache-2.0
/* A request of the mpi transport: a list of pending sends and receives, and a step function that posts the
 * next ones when they have completed. comm_mpi.c calls MPI; comm_mpi_steps.c implements the steps and uses
 * this header only. */
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
    /* Posts the next messages and returns false, or returns true if the request is complete. A step that
     * returns false without posting is called again immediately. */
    bool (*step)(struct request *request);
    int phase; // private to the step

    struct pending *pending;
    int count, capacity, left;

    struct tensor in, out; // all_reduce, broadcast: in
    enum reduction how;
    int root;
    int64_t at;      // elements completed by earlier segments
    int64_t *counts; // all_to_all: in, then out; reduce_scatter, all_gather: of each rank's slice
    struct tagged_message *messages; // exchange
    int message_count;
    struct device *device; // the device of its stream
    struct buffer scratch;
};

struct tagged_message {
    struct message message;
    int tag;
};

/* Between two ranks and for one tag, sends and receives match in the order of posting, empty ones too. */
void post_send(struct request *request, const void *data, size_t bytes, int peer);
void post_recv(struct request *request, void *data, size_t bytes, int peer);
/* Returns scratch memory of at least `bytes`, stable until the request is done unless it must grow; accounted
 * as communication memory of the device. */
char *request_scratch(struct request *request, size_t bytes);

bool step_all_reduce(struct request *request);
bool step_reduce_scatter(struct request *request);
bool step_all_gather(struct request *request);
bool step_broadcast(struct request *request);
bool step_all_to_all(struct request *request);
bool step_exchange(struct request *request);
bool step_barrier(struct request *request);
