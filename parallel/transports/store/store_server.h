// SPDX-License-Identifier: Apache-2.0
/* The server of a node: a thread that owns the values. Between store.c and store_server.c. */
#pragma once

#include "base/wire.h"
#include "parallel/transports/store/store.h"

enum store_kind {
    STORE_HELLO, // struct store_hello; answered with STORE_WELCOME and the second half of the secret
    STORE_WELCOME,
    STORE_SET, // a key, then the value
    STORE_GET, // a key
    STORE_VALUE,
    STORE_LOST, // text: which process has exited
    STORE_BYE
};

enum { STORE_SECRET = 32 };

struct store_hello {
    char node[64];
    int32_t ranks; // of the node
    uint8_t secret[STORE_SECRET / 2];
};

struct store_server;

struct store_server_options {
    int local;    // listening socket for the ranks of the node
    int claim;    // of the name of this server; -1: none
    int tcp;      // for other nodes, until all have connected; -1: this node has not rank 0
    int absent;   // number of ranks on other nodes
    int upstream; // connection to the node of rank 0; -1: it is this one
    uint8_t secret[STORE_SECRET];
};

/* Owns the files of the options from now on, also after a failure. */
MUST_USE enum status store_server_start(const struct store_server_options *options,
                                        struct store_server **out);
/* Waits until all connections have been closed by the other side, at most limit_s. */
void store_server_stop(struct store_server *server, double limit_s);

/* Compares half a secret without telling how much of it is right. */
bool store_secret_equal(const uint8_t *a, const uint8_t *b);
