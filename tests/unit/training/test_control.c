// SPDX-License-Identifier: Apache-2.0
/* Control connections whose messages arrive late, in parts, or in an unexpected order. */
#include "trainer/progress/control_view.h"
#include "trainer/progress/control_wire.h"

#include <criterion/criterion.h>
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
