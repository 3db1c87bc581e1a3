// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/control/control.h"

#include "base/clock.h"
#include "base/memory.h"
#include "trainer/progress/control/control_wire.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t patience_ns = 2000000000; // then another process of the first node is tried
static const int64_t hello_ns = 2000000000;    // for the hello of a new connection
enum { ANSWER_MS = 1000, WELCOME_MS = 1000, MAX_NEW = 64 };

/* A connection that has not shown the secret. */
struct newcomer {
    int file;
    int64_t waited_ns;
};

struct control {
    int listening, port;
    bool started, remote;
    struct control_address address;
    char node[HANG_NODE_CHARS];
    struct control_node first; // on other nodes: state of the first one
    int next_port;             // the port to try next
    int count, capacity;
    struct control_node *nodes; // on the first node: states of the others
    struct newcomer newcomers[MAX_NEW];
    int newcomer_count;
    int64_t since_end_ns; // since a rank has ended, on any node
};

/* Sent with a hello: both ends must agree on the layout of what follows. */
struct hello {
    char name[HANG_NODE_CHARS];
    uint8_t secret[CONTROL_SECRET / 2];
    uint64_t bytes_of_rank, bytes_of_all;
};

/* ---- opening ---- */

enum status control_open(bool several_hosts, struct control **out)
{
    struct control *c = memory_zeroed(1, sizeof *c, "the control connection");
    c->first.file = -1;
    c->listening = -1;
    c->since_end_ns = INT64_MAX / 2; // none has
    enum status status = wire_listen(several_hosts ? "" : WIRE_LOOPBACK, &c->listening, &c->port);
    if (status == OK)
        *out = c;
    else
        control_close(c);
    return status;
}

static void disconnect(struct control_node *node)
{
    if (node->file >= 0)
        close(node->file);
    node->file = -1;
}

static void free_node(struct control_node *node)
{
    disconnect(node);
    free(node->ranks);
    free(node->all);
}

void control_close(struct control *control)
{
    if (control == NULL)
        return;
    if (control->first.file >= 0)
        (void)wire_send(control->first.file, WIRE_BYE, NULL, 0);
    free_node(&control->first);
    for (int i = 0; i < control->count; i++) {
        if (control->nodes[i].file >= 0)
            (void)wire_send(control->nodes[i].file, WIRE_BYE, NULL, 0);
        free_node(&control->nodes[i]);
    }
    free(control->nodes);
    for (int i = 0; i < control->newcomer_count; i++)
        close(control->newcomers[i].file);
    if (control->listening >= 0)
        close(control->listening);
    free(control);
}

int control_port(const struct control *control)
{
    return control->port;
}

void control_start(struct control *control, const struct control_address *address, const char *node)
{
    control->address = *address;
    snprintf(control->node, sizeof control->node, "%s", node);
    control->remote = strcmp(control->node, address->node) != 0;
    snprintf(control->first.name, sizeof control->first.name, "%s", address->node);
    control->started = true;
}

bool control_is_started(const struct control *control)
{
    return control != NULL && control->started;
}

bool control_is_remote(const struct control *control)
{
    return control_is_started(control) && control->remote;
}

/* ---- progress of a node ---- */

static int count_in(int32_t state, const struct control_rank *ranks, int count)
{
    int found = 0;
    for (int r = 0; r < count; r++)
        found += ranks[r].head.state == state;
    return found;
}

/* Replaces the ranks of a node. */
static bool take_ranks(struct control_node *node, const struct wire_message *m)
{
    size_t count = m->bytes / sizeof *node->ranks;
    if (count * sizeof *node->ranks != m->bytes)
        return false;
    struct control_rank *ranks = memory_zeroed(1, m->bytes + 1, "the ranks of a node");
    if (m->bytes > 0)
        memcpy(ranks, m->data, m->bytes);
    node->ended = node->ended || count_in(PROGRESS_ENDED, ranks, (int)count) >
                                     count_in(PROGRESS_ENDED, node->ranks, node->count);
    if ((int)count != node->count) { // an answer with as many ranks as before
        free(node->all);
        node->all = NULL;
    }
    free(node->ranks);
    node->ranks = ranks;
    node->count = (int)count;
    node->silent_ns = 0;
    return true;
}

static bool take_all(struct control_node *node, const struct wire_message *m)
{
    if (m->bytes != (size_t)node->count * sizeof *node->all)
        return false;
    free(node->all);
    node->all = memory_zeroed(1, m->bytes + 1, "the messages of a node");
    memcpy(node->all, m->data, m->bytes);
    int ended = 0;
    for (int r = 0; r < node->count; r++)
        ended += node->all[r].progress.head.state == PROGRESS_ENDED;
    node->ended = node->ended || ended > count_in(PROGRESS_ENDED, node->ranks, node->count);
    return true;
}

/* The process at the other end has ended; if its node has others, one of them will connect. */
static void take_bye(struct control_node *node)
{
    node->ended = node->ended || count_in(PROGRESS_ACTIVE, node->ranks, node->count) > 0;
    node->count = 0;
}

/* ---- the first node ---- */

static bool same_secret(const uint8_t *a, const uint8_t *b)
{
    unsigned difference = 0;
    for (int i = 0; i < CONTROL_SECRET / 2; i++)
        difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

static struct control_node *add_node(struct control *c, const char *name)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->nodes[i].name, name) == 0)
            return &c->nodes[i];
    if (c->count == c->capacity) {
        c->capacity = c->capacity > 0 ? 2 * c->capacity : 16;
        c->nodes = memory_resized(c->nodes, (size_t)c->capacity, sizeof *c->nodes, "the nodes of a job");
    }
    struct control_node *node = &c->nodes[c->count++];
    *node = (struct control_node){.file = -1};
    snprintf(node->name, sizeof node->name, "%s", name);
    return node;
}

/* Takes the hello of a new connection. Without the secret it is closed without an answer. */
static void greet(struct control *c, int file)
{
    struct wire_message m = {0};
    struct hello hello;
    bool good = wire_receive(file, sizeof hello, &m) && m.kind == WIRE_HELLO && m.bytes == sizeof hello;
    if (good) {
        memcpy(&hello, m.data, sizeof hello);
        hello.name[sizeof hello.name - 1] = 0;
        good = same_secret(hello.secret, c->address.secret) &&
               hello.bytes_of_rank == sizeof(struct control_rank) &&
               hello.bytes_of_all == sizeof(struct hang_rank);
    }
    struct control_node *node = good ? add_node(c, hello.name) : NULL;
    wire_free(&m);
    if (node == NULL ||
        !wire_send(file, WIRE_WELCOME, c->address.secret + CONTROL_SECRET / 2, CONTROL_SECRET / 2)) {
        close(file);
        return;
    }
    disconnect(node);
    node->file = file;
    node->silent_ns = 0;
}

/* Accepts connections without waiting for any of them: one that sends nothing delays no other. */
static void accept_nodes(struct control *c, int64_t passed_ns)
{
    int kept = 0;
    for (int i = 0; i < c->newcomer_count; i++)
        c->newcomers[i].waited_ns += passed_ns;
    while (c->newcomer_count < MAX_NEW && wire_is_ready(c->listening, 0)) {
        int file = wire_accept(c->listening);
        if (file < 0)
            break;
        c->newcomers[c->newcomer_count++] = (struct newcomer){.file = file};
    }
    for (int i = 0; i < c->newcomer_count; i++) {
        struct newcomer *newcomer = &c->newcomers[i];
        if (wire_has_arrived(newcomer->file, sizeof(struct hello)))
            greet(c, newcomer->file);
        else if (newcomer->waited_ns > hello_ns)
            close(newcomer->file);
        else
            c->newcomers[kept++] = *newcomer;
    }
    c->newcomer_count = kept;
}

/* Reads one message of a node. */
static void read_node(struct control_node *node)
{
    struct wire_message m = {0};
    bool good = wire_receive(node->file, WIRE_MAX_BYTES, &m);
    if (good && m.kind == WIRE_RANKS)
        good = take_ranks(node, &m);
    else if (good && m.kind == WIRE_ALL)
        good = take_all(node, &m);
    else if (good && m.kind == WIRE_BYE)
        take_bye(node);
    wire_free(&m);
    if (!good)
        disconnect(node);
}

/* Disconnects after a failed send, when the last messages have been read: the other end may have sent its end
 * and closed the connection. */
static void leave_node(struct control_node *node)
{
    while (node->file >= 0 && wire_is_ready(node->file, 0))
        read_node(node);
    disconnect(node);
}

static void read_nodes(struct control *c)
{
    for (int i = 0; i < c->count; i++)
        while (c->nodes[i].file >= 0 && wire_is_ready(c->nodes[i].file, 0))
            read_node(&c->nodes[i]);
}

void control_serve(struct control *control, const struct control_rank *mine, int count, int64_t passed_ns)
{
    accept_nodes(control, passed_ns);
    control->since_end_ns += passed_ns;
    for (int i = 0; i < control->count; i++)
        control->nodes[i].silent_ns += passed_ns;
    read_nodes(control);
    for (int i = 0; i < control->count; i++)
        if (control->nodes[i].file >= 0 && control->nodes[i].silent_ns == 0 &&
            !wire_send(control->nodes[i].file, WIRE_RANKS, mine, (size_t)count * sizeof *mine))
            leave_node(&control->nodes[i]);
}

int control_nodes(const struct control *control)
{
    return control->count;
}

const struct control_node *control_node(const struct control *control, int index)
{
    return &control->nodes[index];
}

void control_collect(struct control *control)
{
    int64_t end_ns = clock_ns() + ANSWER_MS * INT64_C(1000000);
    for (int i = 0; i < control->count; i++) {
        free(control->nodes[i].all);
        control->nodes[i].all = NULL;
        if (control->nodes[i].file >= 0 && !wire_send(control->nodes[i].file, WIRE_GIVE_ALL, NULL, 0))
            leave_node(&control->nodes[i]);
    }
    for (bool complete = false; !complete && clock_ns() < end_ns;) {
        complete = true;
        read_nodes(control);
        for (int i = 0; i < control->count; i++)
            complete = complete && (control->nodes[i].all != NULL || control->nodes[i].file < 0 ||
                                    control->nodes[i].count == 0);
        if (!complete)
            poll(NULL, 0, 10);
    }
}

void control_end(struct control *control)
{
    for (int i = 0; i < control->count; i++)
        if (control->nodes[i].file >= 0)
            (void)wire_send(control->nodes[i].file, WIRE_END, NULL, 0);
}

/* ---- another node ---- */

static bool send_hello(struct control *c, int file)
{
    struct hello hello = {.bytes_of_rank = sizeof(struct control_rank),
                          .bytes_of_all = sizeof(struct hang_rank)};
    struct wire_message m = {0};
    snprintf(hello.name, sizeof hello.name, "%s", c->node);
    memcpy(hello.secret, c->address.secret, sizeof hello.secret);
    bool good = wire_send(file, WIRE_HELLO, &hello, sizeof hello) && wire_is_ready(file, WELCOME_MS) &&
                wire_receive(file, CONTROL_SECRET / 2, &m) && m.kind == WIRE_WELCOME &&
                m.bytes == CONTROL_SECRET / 2 && same_secret(m.data, c->address.secret + CONTROL_SECRET / 2);
    wire_free(&m);
    return good;
}

/* Tries one process of the first node. */
static void connect_first(struct control *c)
{
    int port = c->address.ports[c->next_port];
    if (port == 0)
        c->next_port = 0;
    port = c->address.ports[c->next_port];
    c->next_port = (c->next_port + 1) % CONTROL_PORTS;
    if (port == 0)
        return;
    int file = wire_connect(c->address.host, port);
    if (file >= 0 && !send_hello(c, file)) {
        close(file);
        file = -1;
    }
    c->first.file = file;
    if (file >= 0)
        c->first.silent_ns = 0;
}

/* Reads the messages of the first node that have arrived. */
static enum control_request read_first(struct control_node *first)
{
    enum control_request request = CONTROL_NOTHING;
    while (first->file >= 0 && wire_is_ready(first->file, 0)) {
        struct wire_message m = {0};
        bool good = wire_receive(first->file, WIRE_MAX_BYTES, &m);
        if (good && m.kind == WIRE_RANKS)
            good = take_ranks(first, &m);
        else if (good && m.kind == WIRE_GIVE_ALL && request == CONTROL_NOTHING)
            request = CONTROL_EVERYTHING;
        else if (good && m.kind == WIRE_END)
            request = CONTROL_END;
        else if (good && m.kind == WIRE_BYE)
            take_bye(first);
        wire_free(&m);
        if (!good)
            disconnect(first);
    }
    return request;
}

enum control_request control_report(struct control *control, const struct control_rank *mine, int count,
                                    int64_t passed_ns)
{
    struct control_node *first = &control->first;
    first->silent_ns += passed_ns;
    control->since_end_ns += passed_ns;
    if (first->file >= 0 && first->silent_ns > patience_ns)
        disconnect(first);
    if (first->file < 0)
        connect_first(control);
    const bool sent =
        first->file >= 0 && wire_send(first->file, WIRE_RANKS, mine, (size_t)count * sizeof *mine);
    const enum control_request request = read_first(first); // also if the first node has closed it
    if (!sent)
        disconnect(first);
    return request;
}

void control_send_all(struct control *control, const struct hang *hang)
{
    if (control->first.file >= 0 &&
        !wire_send(control->first.file, WIRE_ALL, hang->ranks, (size_t)hang->count * sizeof *hang->ranks))
        disconnect(&control->first);
}

const struct control_node *control_first(const struct control *control)
{
    return &control->first;
}

/* ---- ends ---- */

void control_restart(struct control *control)
{
    if (control != NULL)
        control->since_end_ns = 0;
}

bool control_take_ended(struct control *control)
{
    bool ended = false;
    if (control == NULL)
        return false;
    for (int i = -1; i < control->count; i++) {
        struct control_node *node = i < 0 ? &control->first : &control->nodes[i];
        ended = ended || node->ended;
        node->ended = false;
    }
    if (ended)
        control_restart(control);
    return ended;
}

int64_t control_since_end_ns(const struct control *control)
{
    return control->since_end_ns;
}
