// SPDX-License-Identifier: Apache-2.0
/* Messages over TCP, for control.c: a kind, a length and bytes. A send or receive that is stuck for half a
 * second fails: the other process is probably stopped, so the connection is closed. */
#pragma once

#include "base/status.h"

enum wire_kind {
    WIRE_HELLO,
    WIRE_WELCOME,
    WIRE_RANKS,
    WIRE_GIVE_ALL,
    WIRE_ALL,
    WIRE_END,
    WIRE_BYE,
    WIRE_KINDS
};

enum { WIRE_MAX_BYTES = 256 << 20 };

struct wire_message {
    enum wire_kind kind;
    size_t bytes;
    uint8_t *data; // owned; NULL if there are no bytes
};
void wire_free(struct wire_message *message);

/* Listens on a free port, of the loopback interface or of all interfaces. IO_ERROR. */
MUST_USE enum status wire_listen(bool all_interfaces, int *file, int *port);
/* -1: no connection. */
int wire_accept(int listening);
/* Connects to a host; to this host through the loopback interface. -1: no answer. */
int wire_connect(const char *host, int port);

bool wire_is_ready(int file, int wait_ms);
bool wire_send(int file, enum wire_kind kind, const void *data, size_t bytes);
/* False if the connection is closed or stuck, or the message is longer than `most`. */
bool wire_receive(int file, size_t most, struct wire_message *out);
