// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/store/store_server.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLL_MS = 20, MAX_NEW = 64 }; // a hello is not waited for, but looked for
static const double HELLO_S = 5.0;   // for the hello of a new connection

struct entry {
    char key[STORE_KEY_CHARS];
    bool known, asked; // asked: of the node of rank 0
    size_t bytes;
    uint8_t *data;
};

struct client {
    int file;
    bool welcome;   // it has the secret, or is a process of this node
    bool bye;       // it closes its connection regularly
    double since_s; // when it was accepted
    char node[64];  // of a node's server; "": a rank of this node
    size_t *waits;  // indices of the entries that it waits for
    size_t count, capacity;
};

struct store_server {
    struct store_server_options options;
    pthread_t thread;
    atomic_bool closing; // ends when no client is left
    struct entry *entries;
    size_t entry_count, entry_capacity;
    struct client *clients;
    size_t client_count, client_capacity;
    char lost[160]; // which process has exited; ""
};

bool store_secret_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;
    for (int i = 0; i < STORE_SECRET / 2; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

static void *grow(void *list, size_t *capacity, size_t each)
{
    *capacity = *capacity > 0 ? 2 * *capacity : 16;
    return memory_resized(list, *capacity, each, "the entries of a store");
}

/* ---- values ---- */

static size_t find_entry(struct store_server *s, const char *key)
{
    for (size_t i = 0; i < s->entry_count; i++)
        if (strcmp(s->entries[i].key, key) == 0)
            return i;
    if (s->entry_count == s->entry_capacity)
        s->entries = grow(s->entries, &s->entry_capacity, sizeof *s->entries);
    struct entry *entry = &s->entries[s->entry_count];
    *entry = (struct entry){.known = false};
    snprintf(entry->key, sizeof entry->key, "%s", key);
    return s->entry_count++;
}

/* A key and a value in one message. */
static bool send_pair(int file, enum store_kind kind, const struct entry *entry)
{
    uint8_t message[STORE_KEY_CHARS + STORE_MAX_BYTES] = {0};
    memcpy(message, entry->key, sizeof entry->key);
    if (entry->bytes > 0)
        memcpy(message + STORE_KEY_CHARS, entry->data, entry->bytes);
    return wire_send(file, kind, message, STORE_KEY_CHARS + entry->bytes);
}

static void disconnect(struct client *client)
{
    if (client->file >= 0)
        close(client->file);
    client->file = -1;
}

/* Tells everyone that a process has exited. */
static void set_lost(struct store_server *s, const char *text)
{
    if (s->lost[0] != 0)
        return;
    snprintf(s->lost, sizeof s->lost, "%s", text);
    for (size_t i = 0; i < s->client_count; i++)
        if (s->clients[i].welcome && s->clients[i].file >= 0)
            (void)wire_send(s->clients[i].file, STORE_LOST, s->lost, sizeof s->lost);
    if (s->options.upstream >= 0)
        (void)wire_send(s->options.upstream, STORE_LOST, s->lost, sizeof s->lost);
}

static void lose_client(struct store_server *s, struct client *client)
{
    char text[160];
    snprintf(text, sizeof text, "a process of %s%s has exited", client->node[0] != 0 ? "node " : "the node",
             client->node);
    disconnect(client);
    if (client->welcome && !client->bye)
        set_lost(s, text);
}

static void answer_waiting(struct store_server *s, size_t index)
{
    for (size_t i = 0; i < s->client_count; i++) {
        struct client *client = &s->clients[i];
        size_t kept = 0;
        for (size_t w = 0; w < client->count; w++)
            if (client->waits[w] != index)
                client->waits[kept++] = client->waits[w];
            else if (client->file >= 0 && !send_pair(client->file, STORE_VALUE, &s->entries[index]))
                lose_client(s, client);
        client->count = kept;
    }
}

/* A value from a client, or from the node of rank 0. The first one is kept. */
static bool take_value(struct store_server *s, const struct wire_message *m)
{
    char key[STORE_KEY_CHARS];
    if (m->bytes < STORE_KEY_CHARS)
        return false;
    memcpy(key, m->data, sizeof key);
    key[sizeof key - 1] = 0;
    const size_t index = find_entry(s, key), bytes = m->bytes - STORE_KEY_CHARS;
    struct entry *entry = &s->entries[index];
    if (entry->known)
        return true;
    entry->data = memory_resized(NULL, bytes + 1, 1, "a value of a store");
    memcpy(entry->data, m->data + STORE_KEY_CHARS, bytes);
    entry->bytes = bytes;
    entry->known = true;
    if (m->kind == STORE_SET && s->options.upstream >= 0)
        (void)send_pair(s->options.upstream, STORE_SET, entry);
    answer_waiting(s, index);
    return true;
}

static bool take_get(struct store_server *s, struct client *client, const struct wire_message *m)
{
    char key[STORE_KEY_CHARS];
    if (m->bytes != sizeof key)
        return false;
    memcpy(key, m->data, sizeof key);
    key[sizeof key - 1] = 0;
    const size_t index = find_entry(s, key);
    struct entry *entry = &s->entries[index];
    if (entry->known)
        return send_pair(client->file, STORE_VALUE, entry);
    if (client->count == client->capacity)
        client->waits = grow(client->waits, &client->capacity, sizeof *client->waits);
    client->waits[client->count++] = index;
    if (s->options.upstream >= 0 && !entry->asked)
        (void)wire_send(s->options.upstream, STORE_GET, entry->key, sizeof entry->key);
    entry->asked = true;
    return true;
}

/* ---- connections ---- */

/* No other node will connect: one that is lost ends the job. */
static void stop_accepting(struct store_server *s)
{
    if (s->options.tcp >= 0)
        close(s->options.tcp);
    s->options.tcp = -1;
    for (size_t i = 0; i < s->client_count; i++)
        if (!s->clients[i].welcome)
            disconnect(&s->clients[i]);
}

static bool take_hello(struct store_server *s, struct client *client, const struct wire_message *m)
{
    struct store_hello hello;
    if (m->kind != STORE_HELLO || m->bytes != sizeof hello)
        return false;
    memcpy(&hello, m->data, sizeof hello);
    hello.node[sizeof hello.node - 1] = 0;
    if (!store_secret_equal(hello.secret, s->options.secret) ||
        !wire_send(client->file, STORE_WELCOME, s->options.secret + STORE_SECRET / 2, STORE_SECRET / 2))
        return false;
    snprintf(client->node, sizeof client->node, "%s", hello.node[0] != 0 ? hello.node : "?");
    client->welcome = true;
    s->options.absent -= hello.ranks;
    if (s->options.absent <= 0)
        stop_accepting(s);
    return s->lost[0] == 0 || wire_send(client->file, STORE_LOST, s->lost, sizeof s->lost);
}

static bool take_message(struct store_server *s, struct client *client, const struct wire_message *m)
{
    char text[sizeof s->lost];
    switch ((enum store_kind)m->kind) {
    case STORE_SET:
        return m->bytes <= STORE_KEY_CHARS + STORE_MAX_BYTES && take_value(s, m);
    case STORE_GET:
        return take_get(s, client, m);
    case STORE_BYE:
        client->bye = true;
        return false; // closes the connection
    case STORE_LOST:
        if (m->bytes != sizeof text)
            return false;
        memcpy(text, m->data, sizeof text);
        text[sizeof text - 1] = 0;
        client->bye = true; // it has reported why
        set_lost(s, text);
        return true;
    case STORE_HELLO:
    case STORE_WELCOME:
    case STORE_VALUE:
        break;
    }
    return false;
}

static void serve_client(struct store_server *s, size_t index, bool readable)
{
    struct client *client = &s->clients[index];
    struct wire_message m = {0};
    if (!client->welcome) { // without waiting for a process that may belong to no one
        if (wire_has_arrived(client->file, sizeof(struct store_hello))) {
            if (!wire_receive(client->file, sizeof(struct store_hello), &m) || !take_hello(s, client, &m))
                disconnect(client);
            wire_free(&m);
        } else if (clock_s() - client->since_s > HELLO_S)
            disconnect(client);
        return;
    }
    if (!readable)
        return;
    const bool good =
        wire_receive(client->file, STORE_KEY_CHARS + STORE_MAX_BYTES, &m) && take_message(s, client, &m);
    wire_free(&m);
    if (!good)
        lose_client(s, &s->clients[index]);
}

static void serve_upstream(struct store_server *s)
{
    struct wire_message m = {0};
    bool good = wire_receive(s->options.upstream, STORE_KEY_CHARS + STORE_MAX_BYTES, &m);
    if (good && m.kind == STORE_VALUE)
        good = take_value(s, &m);
    else if (good && m.kind == STORE_LOST && m.bytes == sizeof s->lost) {
        m.data[m.bytes - 1] = 0;
        set_lost(s, (const char *)m.data);
    } else
        good = false;
    wire_free(&m);
    if (good)
        return;
    close(s->options.upstream);
    s->options.upstream = -1;
    set_lost(s, "rank 0 has exited");
}

/* Closes the oldest connection without the secret if there are too many: they must not take all files of the
 * process. */
static void limit_newcomers(struct store_server *s)
{
    struct client *oldest = NULL;
    int count = 0;
    for (size_t i = 0; i < s->client_count; i++) {
        struct client *client = &s->clients[i];
        if (client->file < 0 || client->welcome)
            continue;
        count++;
        if (oldest == NULL || client->since_s < oldest->since_s)
            oldest = client;
    }
    if (count > MAX_NEW)
        disconnect(oldest);
}

static bool accept_client(struct store_server *s, int listening, bool local)
{
    const int file = local ? wire_accept_local(listening) : wire_accept(listening);
    if (file < 0)
        return false;
    size_t index = 0;
    while (index < s->client_count && s->clients[index].file >= 0)
        index++;
    if (index == s->client_capacity)
        s->clients = grow(s->clients, &s->client_capacity, sizeof *s->clients);
    struct client *client = &s->clients[index];
    if (index == s->client_count)
        s->client_count++;
    else
        free(client->waits);
    *client = (struct client){.file = file, .welcome = local, .since_s = clock_s()};
    if (local && s->lost[0] != 0)
        (void)wire_send(file, STORE_LOST, s->lost, sizeof s->lost);
    limit_newcomers(s);
    return true;
}

static size_t connected(const struct store_server *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->client_count; i++)
        count += s->clients[i].file >= 0 && s->clients[i].welcome;
    return count;
}

/* One round: waits for files, and serves those that are ready. */
static void serve(struct store_server *s, struct pollfd *files)
{
    const size_t clients = s->client_count;
    const int fixed[] = {s->options.local, s->options.tcp, s->options.upstream};
    enum { FIXED = sizeof fixed / sizeof *fixed };
    for (size_t i = 0; i < FIXED; i++)
        files[i] = (struct pollfd){.fd = fixed[i], .events = POLLIN};
    for (size_t i = 0; i < clients; i++)
        files[FIXED + i] =
            (struct pollfd){.fd = s->clients[i].file, .events = s->clients[i].welcome ? POLLIN : 0};
    if (poll(files, (nfds_t)(FIXED + clients), POLL_MS) < 0)
        return;
    if (files[2].revents != 0)
        serve_upstream(s);
    for (size_t i = 0; i < clients; i++)
        if (s->clients[i].file >= 0)
            serve_client(s, i, files[FIXED + i].revents != 0);
    for (int i = 0; i < MAX_NEW && files[0].revents != 0 && accept_client(s, s->options.local, true); i++)
        ;
    for (int i = 0; i < MAX_NEW && files[1].revents != 0 && s->options.tcp >= 0; i++)
        if (!accept_client(s, s->options.tcp, false))
            break;
}

static void *run(void *argument)
{
    struct store_server *s = argument;
    while (!atomic_load(&s->closing) || connected(s) > 0) {
        struct pollfd *files =
            memory_zeroed(s->client_count + 3, sizeof *files, "the connections of a store");
        serve(s, files);
        free(files);
    }
    return NULL;
}

static void free_server(struct store_server *s)
{
    const int files[] = {s->options.local, s->options.claim, s->options.tcp, s->options.upstream};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0)
            close(files[i]);
    for (size_t i = 0; i < s->client_count; i++) {
        disconnect(&s->clients[i]);
        free(s->clients[i].waits);
    }
    for (size_t i = 0; i < s->entry_count; i++)
        free(s->entries[i].data);
    free(s->clients);
    free(s->entries);
    free(s);
}

enum status store_server_start(const struct store_server_options *options, struct store_server **out)
{
    struct store_server *s = memory_zeroed(1, sizeof *s, "a store");
    s->options = *options;
    if (pthread_create(&s->thread, NULL, run, s) != 0) {
        free_server(s);
        return fail(NO_MEMORY, "cannot start the thread of the rendezvous");
    }
    *out = s;
    return OK;
}

/* Says that this node ends, and reads what still arrives until the other end has read that and closes: a
 * connection that is closed with unread messages is reset, and the other end would read no more. */
static void leave_upstream(int upstream)
{
    enum { CLOSE_MS = 2000 };
    struct wire_message m = {0};
    bool open = wire_send(upstream, STORE_BYE, NULL, 0);
    while (open && wire_is_ready(upstream, CLOSE_MS)) {
        open = wire_receive(upstream, STORE_KEY_CHARS + STORE_MAX_BYTES, &m);
        wire_free(&m);
    }
}

void store_server_stop(struct store_server *server, double limit_s)
{
    struct timespec until;
    if (server == NULL)
        return;
    atomic_store(&server->closing, true);
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    const int64_t end_ns = until.tv_nsec + (int64_t)(1e9 * limit_s);
    until.tv_sec += end_ns / 1000000000;
    until.tv_nsec = end_ns % 1000000000;
    // The process is about to end: a thread that is still needed by others ends with it.
    if (pthread_timedjoin_np(server->thread, NULL, &until) != 0)
        return;
    if (server->options.upstream >= 0)
        leave_upstream(server->options.upstream);
    free_server(server);
}
