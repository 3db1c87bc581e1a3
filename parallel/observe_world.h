// SPDX-License-Identifier: Apache-2.0
/* Observers of messages: like those of a device (kernels/observe.h), for the ops table of a transport. Comms
 * created after world_observe() report each of their calls, on every transport alike.
 *
 *     rank 1 of tp, size 4:   all_reduce of f32[1000]     4,000 bytes to and from each peer
 *                             all_gather of f32[1000]     1,000 bytes to each peer, 1,000 from each
 *
 * Bytes are those of the tensors, not of the transport's algorithm: what rank a reports to peer b, b reports
 * from peer a. */
#pragma once

#include "kernels/observe.h"
#include "parallel/comm.h"

struct observed_message {
    const struct comm *comm; // its name, ranks, and this rank's own
    enum call call;
    int64_t sequence;   // of this comm's calls, from 1: a collective has the same number on all ranks of the
                        // comm. All messages of an exchange have the number of the exchange
    struct tensor data; // all_to_all: what this rank sends; reduce_scatter and all_gather: the large tensor
    const int64_t *counts, *out_counts; // of struct transport_ops; NULL: equal shares, or not divided
    int peer;                           // of send and receive; the root of a broadcast; else -1
};

/* Bytes of the whole tensor: for all_to_all, of what this rank sends. */
int64_t message_bytes(const struct observed_message *message);

/* Bytes that reach another rank of the comm from this one, and the reverse. `peer` is a rank of the comm. */
int64_t message_bytes_to(const struct observed_message *message, int peer);
int64_t message_bytes_from(const struct observed_message *message, int peer);

/* Attaches an observer to the comms that this world creates from now on. world_stop_observing() detaches all
 * observers once those comms are destroyed; closing the world does so too. */
MUST_USE enum status world_observe(struct world *world, struct observer observer);
void world_stop_observing(struct world *world); // without observers, does nothing
