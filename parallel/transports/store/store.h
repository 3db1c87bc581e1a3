// SPDX-License-Identifier: Apache-2.0
/* A key-value store for the start of a job whose processes share nothing but a folder.
 *
 *     rank 0   server ◄── TCP, one connection per node ── server of node b ◄── ranks of node b
 *                ▲                                        (its local rank 0)    (local sockets)
 *                └── ranks of node a (local sockets)
 *
 * A value is set once and never changes, so the server of each node keeps what it has passed on. Rank 0
 * writes its address and a random secret into a file of the folder, which only this user can read; a stale
 * file leads nowhere. A connection without the secret is closed without an answer, and at most 64 of them are
 * open at a time; when all nodes are connected, none is accepted any more. Local sockets check the user. If a
 * rank exits early, all calls of the others fail.
 *
 * Caution: a store is for the few small messages of a start and an end, not for training. */
#pragma once

#include "parallel/launcher.h"

#include <stddef.h>

enum { STORE_KEY_CHARS = 128, STORE_MAX_BYTES = 1 << 16 };

struct store;

struct store_options {
    const struct launcher *launcher;
    const char *folder; // on a file system of all nodes; exists
    bool several_hosts; // else only the loopback interface is used
    int local_size;     // ranks of this node; if that is all of them, rank 0 opens no port and writes no file
    double start_s;     // time limit for the other processes to start
};

/* Connects to the store of the job. PEER_LOST if rank 0 cannot be reached within the limit. */
MUST_USE enum status store_open(const struct store_options *options, struct store **out);
/* Waits until the processes that depend on this one have closed theirs, too. failed: this process exits
 * early, and all others are notified. Accepts NULL. */
void store_close(struct store *store, bool failed);

MUST_USE enum status store_set(struct store *store, const char *key, const void *data, size_t bytes);
/* Waits for the key. limit_s 0: no limit. PEER_LOST if a process has exited, or after the limit; BAD_ARGUMENT
 * if the value has another size. */
MUST_USE enum status store_get(struct store *store, const char *key, double limit_s, void *data,
                               size_t bytes);
