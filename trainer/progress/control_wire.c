// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/control_wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { STUCK_MS = 500, MAGIC = 0x63756231 };

struct header {
    uint32_t magic, kind;
    uint64_t bytes;
};

void wire_free(struct wire_message *message)
{
    free(message->data);
    *message = (struct wire_message){0};
}

/* ---- connections ---- */

static void prepare(int file)
{
    const int one = 1;
    const struct timeval stuck = {.tv_usec = STUCK_MS * 1000};
    (void)setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &stuck, sizeof stuck);
    (void)setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &stuck, sizeof stuck);
    (void)setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

enum status wire_listen(bool all_interfaces, int *file, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(all_interfaces ? INADDR_ANY : INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int socket_file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket_file < 0 || bind(socket_file, (struct sockaddr *)&address, size) != 0 ||
        listen(socket_file, SOMAXCONN) != 0 ||
        getsockname(socket_file, (struct sockaddr *)&address, &size) != 0) {
        enum status status = fail(IO_ERROR, "the control connection cannot listen: %s", strerror(errno));
        if (socket_file >= 0)
            close(socket_file);
        return status;
    }
    *file = socket_file;
    *port = ntohs(address.sin_port);
    return OK;
}

int wire_accept(int listening)
{
    int file = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (file >= 0)
        prepare(file);
    return file;
}

/* The send timeout also bounds connect(). */
static int connect_to(const struct addrinfo *to)
{
    int file = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0)
        return -1;
    prepare(file);
    if (connect(file, to->ai_addr, to->ai_addrlen) == 0)
        return file;
    close(file);
    return -1;
}

int wire_connect(const char *host, int port)
{
    char mine[256] = "", digits[12];
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int file = -1;
    snprintf(digits, sizeof digits, "%d", port);
    bool here = gethostname(mine, sizeof mine - 1) == 0 && strcmp(mine, host) == 0;
    if (getaddrinfo(here ? "127.0.0.1" : host, digits, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *at = list; at != NULL && file < 0; at = at->ai_next)
        file = connect_to(at);
    freeaddrinfo(list);
    return file;
}

/* ---- messages ---- */

bool wire_is_ready(int file, int wait_ms)
{
    struct pollfd one = {.fd = file, .events = POLLIN};
    return poll(&one, 1, wait_ms) > 0;
}

static bool send_all(int file, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(file, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int file, void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(file, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

bool wire_send(int file, enum wire_kind kind, const void *data, size_t bytes)
{
    const struct header header = {.magic = MAGIC, .kind = (uint32_t)kind, .bytes = bytes};
    return send_all(file, &header, sizeof header) && send_all(file, data, bytes);
}

bool wire_receive(int file, size_t most, struct wire_message *out)
{
    struct header header;
    *out = (struct wire_message){0};
    if (!receive_all(file, &header, sizeof header) || header.magic != MAGIC || header.kind >= WIRE_KINDS ||
        header.bytes > most)
        return false;
    out->kind = (enum wire_kind)header.kind;
    out->bytes = (size_t)header.bytes;
    out->data = out->bytes > 0 ? malloc(out->bytes) : NULL;
    if (out->bytes > 0 && (out->data == NULL || !receive_all(file, out->data, out->bytes))) {
        wire_free(out);
        return false;
    }
    return true;
}
