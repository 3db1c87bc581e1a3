// SPDX-License-Identifier: Apache-2.0
/* Messages over TCP, a kind, a length and bytes. A send or receive that is stuck for half a
 * second, or slower than 10 MB/s, fails: the other process is probably stopped, or no process of the job, so
 * the connection is closed. */
#pragma once

#include "base/status.h"

enum { WIRE_MAX_BYTES = 256 << 20 };

struct wire_message {
    unsigned kind; // its meaning is the user's
    size_t bytes;
    uint8_t *data; // owned; NULL if there are no bytes
};
void wire_free(struct wire_message *message);

/* Listens on a free port of an address of this machine, such as WIRE_LOOPBACK; on all interfaces if it is a
 * name, empty, or an address of another machine. IO_ERROR. */
#define WIRE_LOOPBACK "127.0.0.1"
MUST_USE enum status wire_listen(const char *host, int *file, int *port);
/* -1: no connection. */
int wire_accept(int listening);
/* Connects to a host; to this host through the loopback interface. -1: no answer. */
int wire_connect(const char *host, int port);

/* The same between processes of one user on one machine, under a name. The listening one adds 16 random
 * digits, so that no other user can take it first; others find it among all names (/proc/net/unix). */
MUST_USE enum status wire_listen_local(const char *name, int *file);
int wire_accept_local(int listening);
int wire_connect_local(const char *name);
/* Claims a name until *file is closed. False: another process of this user has it. If one of another user has
 * it, that does not count. */
bool wire_claim_local(const char *name, int *file);

bool wire_is_ready(int file, int wait_ms);
/* Whether a message of at least `bytes` has arrived: receiving it does not wait. */
bool wire_has_arrived(int file, size_t bytes);
bool wire_send(int file, unsigned kind, const void *data, size_t bytes);
/* False if the connection is closed or stuck, or the message is longer than `most`. */
bool wire_receive(int file, size_t most, struct wire_message *out);
