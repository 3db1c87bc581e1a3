// SPDX-License-Identifier: Apache-2.0
/* Control connections whose messages arrive late, in parts, or in an unexpected order. */
#include "trainer/progress/control/control_view.h"
#include "trainer/progress/control/control_wire.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct hello {
    char name[HANG_NODE_CHARS];
    uint8_t secret[CONTROL_SECRET / 2];
    uint64_t bytes_of_rank, bytes_of_all;
};

static const struct hello hello = {.name = "b",
                                   .secret = {1, 2, 3},
                                   .bytes_of_rank = sizeof(struct control_rank),
                                   .bytes_of_all = sizeof(struct hang_rank)};

static struct control *open_first(int *file)
{
    struct control *first = NULL;
    const struct control_address address = {.node = "a", .host = "127.0.0.1", .secret = {1, 2, 3}};
    cr_assert_eq(control_open(false, &first), OK);
    control_start(first, &address, "a");
    *file = wire_connect("127.0.0.1", control_port(first));
    cr_assert_geq(*file, 0);
    return first;
}

/* The bytes of a hello, as they are sent. */
static size_t hello_bytes(char *out, size_t capacity)
{
    int ends[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    cr_assert(wire_send(ends[0], WIRE_HELLO, &hello, sizeof hello));
    const ssize_t count = recv(ends[1], out, capacity, 0);
    close(ends[0]);
    close(ends[1]);
    cr_assert_gt(count, (ssize_t)sizeof hello);
    return (size_t)count;
}

/* The thread of the monitor waits for no connection: a hello may arrive in parts. */
Test(control, hello_in_parts)
{
    char bytes[1024];
    int file;
    struct control *first = open_first(&file);
    const size_t count = hello_bytes(bytes, sizeof bytes), half = count / 2;
    cr_assert_eq(send(file, bytes, half, 0), (ssize_t)half);
    control_serve(first, NULL, 0, 1000);
    cr_assert_eq(control_nodes(first), 0);
    cr_assert_eq(send(file, bytes + half, count - half, 0), (ssize_t)(count - half));
    control_serve(first, NULL, 0, 1000);
    cr_assert_eq(control_nodes(first), 1);
    close(file);
    control_close(first);
}

/* A connection that sends nothing is closed after two seconds of the monitor's time. */
Test(control, silent_connection_is_closed)
{
    char byte;
    int file;
    struct control *first = open_first(&file);
    control_serve(first, NULL, 0, 1000);
    cr_assert_lt(recv(file, &byte, 1, MSG_DONTWAIT), 0, "still open");
    control_serve(first, NULL, 0, INT64_C(3000000000));
    cr_assert_eq(recv(file, &byte, 1, 0), 0, "closed");
    close(file);
    control_close(first);
}

/* A node whose ranks have just begun reports more of them than in its earlier answer. */
Test(control, answer_of_fewer_ranks)
{
    const struct control_rank ranks[2] = {{.head = {.who = {.rank = 4}, .state = PROGRESS_ACTIVE}},
                                          {.head = {.who = {.rank = 5}, .state = PROGRESS_ACTIVE}}};
    struct hang_rank *answer = calloc(1, sizeof *answer), *out = calloc(2, sizeof *out);
    int file;
    struct control *first = open_first(&file);
    cr_assert(answer != NULL && out != NULL);
    answer->progress.head.who.rank = 4;
    cr_assert(wire_send(file, WIRE_HELLO, &hello, sizeof hello));
    control_serve(first, NULL, 0, 1000);
    cr_assert(wire_send(file, WIRE_RANKS, ranks, sizeof ranks[0]));
    control_serve(first, NULL, 0, 1000);
    cr_assert(wire_send(file, WIRE_ALL, answer, sizeof *answer));
    control_collect(first);
    cr_assert_not_null(control_node(first, 0)->all);
    cr_assert(wire_send(file, WIRE_RANKS, ranks, sizeof ranks));
    control_serve(first, NULL, 0, 1000);
    cr_assert_eq(control_ranks(first), 2);
    cr_assert_null(control_node(first, 0)->all, "its answer has one rank");
    control_fill(first, out);
    cr_assert_eq(out[1].progress.head.who.rank, 5);
    free(answer);
    free(out);
    close(file);
    control_close(first);
}

/* ---- a connection that is closed while the other end sends ---- */

enum { MANY = 200000 }; // ranks: more bytes than the buffers of a connection hold

/* Its last message, after which it closes the connection without having read anything. */
struct farewell {
    int file;
    unsigned kind;
    pthread_t thread;
};

static void *say_farewell(void *argument)
{
    const struct farewell *farewell = argument;
    enum { DELAY_MS = 100 };
    poll(NULL, 0, DELAY_MS); // until the other end sends
    cr_assert(wire_send(farewell->file, farewell->kind, NULL, 0));
    close(farewell->file);
    return NULL;
}

static void begin_farewell(struct farewell *farewell)
{
    cr_assert_eq(pthread_create(&farewell->thread, NULL, say_farewell, farewell), 0);
}

/* A node ends while the first one sends it the progress of its ranks: the notice of its end is read. */
Test(control, end_that_crosses_a_message)
{
    const struct control_rank rank = {.head = {.who = {.rank = 4}, .state = PROGRESS_ACTIVE}};
    struct control_rank *mine = calloc(MANY, sizeof *mine);
    struct farewell farewell = {.kind = WIRE_BYE};
    struct control *first = open_first(&farewell.file);
    cr_assert_not_null(mine);
    cr_assert(wire_send(farewell.file, WIRE_HELLO, &hello, sizeof hello));
    control_serve(first, NULL, 0, 1000);
    cr_assert(wire_send(farewell.file, WIRE_RANKS, &rank, sizeof rank));
    begin_farewell(&farewell);
    control_serve(first, mine, MANY, 1000);
    pthread_join(farewell.thread, NULL);
    cr_expect_eq(control_ranks(first), 0, "its rank has ended");
    control_serve(first, NULL, 0, INT64_C(6000000000));
    cr_expect(!control_summarize(first).lost, "and is not lost");
    free(mine);
    control_close(first);
}

/* Answers the hello of another node, and says farewell. */
static void *be_first(void *argument)
{
    struct farewell *farewell = argument;
    struct wire_message message;
    const int listening = farewell->file;
    cr_assert(wire_is_ready(listening, 10000));
    farewell->file = wire_accept(listening);
    cr_assert(wire_receive(farewell->file, sizeof hello, &message));
    wire_free(&message);
    const uint8_t rest[CONTROL_SECRET / 2] = {0};
    cr_assert(wire_send(farewell->file, WIRE_WELCOME, rest, sizeof rest));
    return say_farewell(farewell);
}

/* The first node ends the job while another one sends its progress. */
Test(control, end_of_the_job_that_crosses_a_message)
{
    struct control_address address = {.node = "a", .host = "127.0.0.1"};
    struct control_rank *mine = calloc(MANY, sizeof *mine);
    struct farewell farewell = {.kind = WIRE_END};
    struct control *other = NULL;
    int listening;
    cr_assert_not_null(mine);
    cr_assert_eq(wire_listen(WIRE_LOOPBACK, &listening, &address.ports[0]), OK);
    farewell.file = listening;
    cr_assert_eq(control_open(false, &other), OK);
    control_start(other, &address, "b");
    cr_assert_eq(pthread_create(&farewell.thread, NULL, be_first, &farewell), 0);
    cr_expect_eq(control_report(other, mine, MANY, 1000), CONTROL_END);
    pthread_join(farewell.thread, NULL);
    close(listening);
    free(mine);
    control_close(other);
}

/* The first node's ranks end before those of another node. */
Test(control, end_of_the_first_node)
{
    const struct control_rank rank = {.head = {.who = {.rank = 0}, .state = PROGRESS_ACTIVE}};
    struct wire_message message;
    int file;
    struct control *first = open_first(&file);
    cr_assert(wire_send(file, WIRE_HELLO, &hello, sizeof hello));
    control_serve(first, NULL, 0, 1000);
    cr_assert(wire_send(file, WIRE_RANKS, &rank, sizeof rank));
    control_serve(first, &rank, 1, 1000);
    control_close(first);
    static const unsigned kinds[] = {WIRE_WELCOME, WIRE_RANKS, WIRE_BYE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        cr_assert(wire_receive(file, WIRE_MAX_BYTES, &message), "message %zu", i);
        cr_expect_eq(message.kind, kinds[i]);
        wire_free(&message);
    }
    close(file);
}

/* A rank of another node ends: what it sent last may not have arrived yet, so the ranks that waited for it
 * have the whole timeout again. */
Test(control, a_rank_that_ends_restarts_the_time_of_the_others)
{
    struct control_rank ranks[2] = {
        {.head = {.who = {.rank = 4}, .state = PROGRESS_ACTIVE}, .stalled_ns = INT64_C(70000000000)},
        {.head = {.who = {.rank = 5}, .state = PROGRESS_ACTIVE}, .stalled_ns = INT64_C(70000000000)}};
    struct hang_rank *out = calloc(2, sizeof *out);
    const int64_t second = INT64_C(1000000000);
    int file;
    struct control *first = open_first(&file);
    cr_assert_not_null(out);
    cr_assert(wire_send(file, WIRE_HELLO, &hello, sizeof hello));
    control_serve(first, NULL, 0, second);
    for (int round = 0; round < 3; round++) { // in the second one it has ended
        ranks[0].head.state = round == 0 ? PROGRESS_ACTIVE : PROGRESS_ENDED;
        cr_assert(wire_send(file, WIRE_RANKS, ranks, sizeof ranks));
        control_serve(first, NULL, 0, second);
        cr_expect_eq(control_take_ended(first), round == 1);
        control_fill(first, out);
        const int64_t expected = round == 0 ? 70 : round - 1;
        cr_expect_eq(control_summarize(first).max_stalled_ns, expected * second, "round %d", round);
        cr_expect_float_eq(out[1].stalled_s, (double)expected, 1e-9, "round %d", round);
    }
    control_restart(first); // one of the first node has ended
    cr_expect_eq(control_summarize(first).max_stalled_ns, 0);
    free(out);
    close(file);
    control_close(first);
}
