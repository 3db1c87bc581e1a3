// SPDX-License-Identifier: Apache-2.0
#include "base/wire.h"

#include "base/clock.h"
#include "base/file.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { STUCK_MS = 500, NS_OF_BYTE = 100, MAGIC = 0x63756231, LOCAL_CHARS = 100 };

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

static bool bind_to(int file, const char *host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    if (inet_pton(AF_INET, host, &address.sin_addr) == 1 &&
        bind(file, (struct sockaddr *)&address, sizeof address) == 0)
        return true;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    return strcmp(host, WIRE_LOOPBACK) != 0 && bind(file, (struct sockaddr *)&address, sizeof address) == 0;
}

enum status wire_listen(const char *host, int *file, int *port)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int socket_file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket_file < 0 || !bind_to(socket_file, host) || listen(socket_file, SOMAXCONN) != 0 ||
        getsockname(socket_file, (struct sockaddr *)&address, &size) != 0) {
        enum status status =
            fail(IO_ERROR, "a connection between processes cannot listen: %s", strerror(errno));
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
    if (getaddrinfo(here ? WIRE_LOOPBACK : host, digits, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *at = list; at != NULL && file < 0; at = at->ai_next)
        file = connect_to(at);
    freeaddrinfo(list);
    return file;
}

/* ---- on one machine ---- */

/* An abstract name: no file, and it disappears with its socket. */
static socklen_t local_address(const char *name, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(out->sun_path + 1));
}

/* Whether the process at the other end has the same user. */
static bool is_own(int file)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

/* Returns false with errno. */
static bool listen_as(const char *name, int *file)
{
    struct sockaddr_un address;
    const socklen_t size = local_address(name, &address);
    *file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*file >= 0 && bind(*file, (struct sockaddr *)&address, size) == 0 && listen(*file, SOMAXCONN) == 0)
        return true;
    const int why = errno;
    if (*file >= 0)
        close(*file);
    *file = -1;
    errno = why;
    return false;
}

enum status wire_listen_local(const char *name, int *file)
{
    char full[LOCAL_CHARS];
    uint64_t token;
    TRY(random_token(&token));
    snprintf(full, sizeof full, "%s-%016" PRIx64, name, token);
    return listen_as(full, file)
               ? OK
               : fail(IO_ERROR, "a connection between processes cannot listen: %s", strerror(errno));
}

int wire_accept_local(int listening)
{
    int file = wire_accept(listening);
    if (file < 0 || is_own(file))
        return file;
    close(file);
    return -1;
}

/* Does not wait for a process of another user that does not accept. */
static int connect_as(const char *name)
{
    struct sockaddr_un address;
    const socklen_t size = local_address(name, &address);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0)
        return -1;
    if (connect(file, (struct sockaddr *)&address, size) == 0 && is_own(file) &&
        fcntl(file, F_SETFL, 0) == 0) {
        prepare(file);
        return file;
    }
    close(file);
    return -1;
}

int wire_connect_local(const char *name)
{
    char line[512], full[LOCAL_CHARS], digits[17];
    int found = -1;
    FILE *list = fopen("/proc/self/net/unix", "re");
    while (list != NULL && found < 0 && fgets(line, sizeof line, list) != NULL) {
        const char *at = strchr(line, '@');
        const size_t length = strlen(name);
        if (at == NULL || strncmp(at + 1, name, length) != 0 ||
            sscanf(at + 1 + length, "-%16[0-9a-f]\n", digits) != 1)
            continue;
        snprintf(full, sizeof full, "%s-%s", name, digits);
        found = connect_as(full);
    }
    if (list != NULL)
        fclose(list);
    return found;
}

bool wire_claim_local(const char *name, int *file)
{
    enum { TRIES = 3, BETWEEN_MS = 10 };
    for (int i = 0; i < TRIES; i++) {
        if (listen_as(name, file))
            return true;
        const int other = connect_as(name);
        if (other >= 0) {
            close(other);
            return false;
        }
        poll(NULL, 0, BETWEEN_MS); // it may have the name, and not listen yet
    }
    return true;
}

/* ---- messages ---- */

bool wire_is_ready(int file, int wait_ms)
{
    struct pollfd one = {.fd = file, .events = POLLIN};
    return poll(&one, 1, wait_ms) > 0;
}

bool wire_has_arrived(int file, size_t bytes)
{
    int arrived = 0;
    return ioctl(file, FIONREAD, &arrived) == 0 && (size_t)arrived >= sizeof(struct header) + bytes;
}

/* The timeout of the socket is one without any byte; a message has a limit, too. */
static int64_t limit_ns(size_t bytes)
{
    return clock_ns() + STUCK_MS * INT64_C(1000000) + (int64_t)bytes * NS_OF_BYTE;
}

static bool send_all(int file, const void *data, size_t bytes)
{
    const char *at = data;
    const int64_t end_ns = limit_ns(bytes);
    while (bytes > 0) {
        ssize_t sent = clock_ns() < end_ns ? send(file, at, bytes, MSG_NOSIGNAL) : 0;
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
    const int64_t end_ns = limit_ns(bytes);
    while (bytes > 0) {
        ssize_t got = clock_ns() < end_ns ? recv(file, at, bytes, 0) : 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

bool wire_send(int file, unsigned kind, const void *data, size_t bytes)
{
    const struct header header = {.magic = MAGIC, .kind = kind, .bytes = bytes};
    return send_all(file, &header, sizeof header) && send_all(file, data, bytes);
}

bool wire_receive(int file, size_t most, struct wire_message *out)
{
    struct header header;
    *out = (struct wire_message){0};
    if (!receive_all(file, &header, sizeof header) || header.magic != MAGIC || header.bytes > most)
        return false;
    out->kind = header.kind;
    out->bytes = (size_t)header.bytes;
    out->data = out->bytes > 0 ? malloc(out->bytes) : NULL;
    if (out->bytes > 0 && (out->data == NULL || !receive_all(file, out->data, out->bytes))) {
        wire_free(out);
        return false;
    }
    return true;
}
