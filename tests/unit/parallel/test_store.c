// SPDX-License-Identifier: Apache-2.0
/* The store of a start without MPI: processes of two nodes, as threads. */
#include "base/text.h"
#include "base/wire.h"
#include "parallel/transports/store/store.h"
#include "parallel/transports/store/store_server.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, NODE_RANKS = 2 };

struct process {
    int rank;
    const char *folder;
    int left; // the rank that exits before it sets its value; -1: none
    enum status status;
    char why[200];
};

/* Sets a value of this rank and reads those of all. */
static enum status exchange(struct store *store, const struct process *p, const char *name)
{
    char key[STORE_KEY_CHARS];
    const int32_t value = 100 * p->rank;
    snprintf(key, sizeof key, "%s/%d", name, p->rank);
    TRY(store_set(store, key, &value, sizeof value));
    for (int r = 0; r < RANKS; r++) {
        int32_t got = -1;
        snprintf(key, sizeof key, "%s/%d", name, r);
        TRY(store_get(store, key, 0.0, &got, sizeof got));
        if (got != 100 * r)
            return fail(OUT_OF_BOUND, "rank %d read %d of rank %d", p->rank, got, r);
    }
    return OK;
}

/* Rank `left` exits when all have connected. */
static enum status use(struct store *store, const struct process *p)
{
    int64_t other;
    TRY(exchange(store, p, "here"));
    if (p->rank == p->left)
        return OK;
    TRY(exchange(store, p, "value"));
    return store_get(store, "value/0", 0.0, &other, sizeof other) == BAD_ARGUMENT
               ? OK
               : fail(OUT_OF_BOUND, "a value of another size");
}

static void *run_process(void *argument)
{
    struct process *p = argument;
    struct launcher launcher = {
        .name = "srun", .size = RANKS, .rank = p->rank, .local_rank = p->rank % NODE_RANKS};
    struct store *store = NULL;
    snprintf(launcher.job, sizeof launcher.job, "job %s", p->folder);
    snprintf(launcher.node, sizeof launcher.node, "n%d", p->rank / NODE_RANKS);
    const struct store_options options = {
        .launcher = &launcher, .folder = p->folder, .local_size = NODE_RANKS, .start_s = 20.0};
    p->status = store_open(&options, &store);
    if (p->status == OK)
        p->status = use(store, p);
    snprintf(p->why, sizeof p->why, "%s", p->status == OK ? "" : fail_text());
    store_close(store, p->status != OK || p->rank == p->left);
    return NULL;
}

static void run_all(struct process processes[RANKS], const char *folder, int left)
{
    pthread_t threads[RANKS];
    for (int r = RANKS - 1; r >= 0; r--) { // the server last
        processes[r] = (struct process){.rank = r, .folder = folder, .left = left};
        cr_assert_eq(pthread_create(&threads[r], NULL, run_process, &processes[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
}

static void make_folder(char *folder)
{
    cr_assert_not_null(mkdtemp(folder));
}

Test(store, values_of_all_ranks)
{
    char folder[] = "/tmp/cuboid-store-XXXXXX";
    struct process processes[RANKS];
    make_folder(folder);
    run_all(processes, folder, -1);
    for (int r = 0; r < RANKS; r++)
        cr_expect_eq(processes[r].status, OK, "rank %d: %s", r, processes[r].why);
    cr_expect_eq(rmdir(folder), 0, "the file of rank 0 is removed");
}

/* A rank that exits, on the node of rank 0 and on the other one, whose first process has the server. */
Test(store, a_rank_that_exits_fails_all)
{
    for (int left = 1; left < RANKS; left++) {
        char folder[] = "/tmp/cuboid-store-XXXXXX";
        struct process processes[RANKS];
        make_folder(folder);
        run_all(processes, folder, left);
        for (int r = 0; r < RANKS; r++)
            if (r != left)
                cr_expect_eq(processes[r].status, PEER_LOST, "rank %d of %d: %s", r, left, processes[r].why);
        cr_expect_eq(rmdir(folder), 0);
    }
}

Test(store, one_node_opens_no_port)
{
    char folder[] = "/tmp/cuboid-store-XXXXXX";
    struct launcher launcher = {.name = "srun", .size = 1};
    struct store *store = NULL;
    int32_t value = 5, got = 0;
    make_folder(folder);
    snprintf(launcher.job, sizeof launcher.job, "job %s", folder);
    const struct store_options options = {
        .launcher = &launcher, .folder = folder, .local_size = 1, .start_s = 20.0};
    cr_assert_eq(store_open(&options, &store), OK, "%s", fail_text());
    cr_expect_eq(rmdir(folder), 0, "there is no address");
    cr_assert_eq(store_set(store, "key", &value, sizeof value), OK);
    cr_assert_eq(store_get(store, "key", 5.0, &got, sizeof got), OK);
    cr_expect_eq(got, value);
    store_close(store, false);
}

/* host: of rank 0, as given by the launcher; "": its host name. */
static enum status open_at(const char *host, int rank, const char *folder, double start_s, struct store **out)
{
    struct launcher launcher = {.name = "srun", .size = RANKS, .rank = rank, .node = "n0"};
    const struct store_options options = {
        .launcher = &launcher, .folder = folder, .local_size = NODE_RANKS, .start_s = start_s};
    launcher.local_rank = rank % NODE_RANKS;
    snprintf(launcher.job, sizeof launcher.job, "job %s", folder);
    snprintf(launcher.node, sizeof launcher.node, "n%d", rank / NODE_RANKS);
    snprintf(launcher.host, sizeof launcher.host, "%s", host);
    return store_open(&options, out);
}

static enum status open_as(int rank, const char *folder, double start_s, struct store **out)
{
    return open_at("", rank, folder, start_s, out);
}

/* A rank asks for a value of its node, for which its server then asks that of rank 0. The node ends as soon
 * as it has the value, so that this answer arrives last. */
static void *end_early(void *argument)
{
    struct process *p = argument;
    struct store *store = NULL;
    int32_t got;
    p->status = open_as(p->rank, p->folder, 20.0, &store);
    if (p->status == OK)
        p->status = exchange(store, p, "here");
    if (p->status == OK && p->rank == RANKS - 1)
        p->status = store_get(store, "own/value", 0.0, &got, sizeof got);
    if (p->status == OK && p->rank == NODE_RANKS) {
        usleep(5000);
        p->status = store_set(store, "own/value", &p->rank, sizeof p->rank);
    }
    if (p->status == OK && p->rank < NODE_RANKS) {
        usleep(20000);
        p->status = store_get(store, "here/1", 0.0, &got, sizeof got);
    }
    snprintf(p->why, sizeof p->why, "%s", p->status == OK ? "" : fail_text());
    store_close(store, p->status != OK);
    return NULL;
}

Test(store, a_node_that_ends_with_an_answer_on_its_way)
{
    enum { TIMES = 40 };
    for (int i = 0; i < TIMES; i++) {
        char folder[] = "/tmp/cuboid-store-XXXXXX";
        struct process processes[RANKS];
        pthread_t threads[RANKS];
        make_folder(folder);
        for (int r = RANKS - 1; r >= 0; r--) {
            processes[r] = (struct process){.rank = r, .folder = folder, .left = -1};
            cr_assert_eq(pthread_create(&threads[r], NULL, end_early, &processes[r]), 0);
        }
        for (int r = 0; r < RANKS; r++)
            pthread_join(threads[r], NULL);
        for (int r = 0; r < RANKS; r++)
            cr_expect_eq(processes[r].status, OK, "time %d, rank %d: %s", i, r, processes[r].why);
        cr_expect_eq(rmdir(folder), 0);
    }
}

/* ---- an earlier start ---- */

/* Rank 0 of an earlier start was killed: its file leads nowhere until the new rank 0 replaces it. */
Test(store, stale_file)
{
    char folder[] = "/tmp/cuboid-store-XXXXXX";
    struct process processes[RANKS];
    struct store *store = NULL;
    int ends[2];
    char byte = 0;
    make_folder(folder);
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        byte = open_as(0, folder, 5.0, &store) == OK;
        (void)!write(ends[1], &byte, 1);
        pause();
        _exit(0);
    }
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_expect_eq(open_as(2, folder, 0.2, &store), PEER_LOST);
    cr_expect_not_null(strstr(fail_text(), "rank 0 has not been reached within 0 s: no answer from "), "%s",
                       fail_text());
    cr_expect_not_null(strstr(fail_text(), "rank 0's node by its host name"), "%s", fail_text());
    cr_expect_eq(open_as(1, folder, 0.2, &store), PEER_LOST);
    cr_expect_not_null(strstr(fail_text(), "the first process of this node"), "%s", fail_text());
    run_all(processes, folder, -1);
    for (int r = 0; r < RANKS; r++)
        cr_expect_eq(processes[r].status, OK, "rank %d: %s", r, processes[r].why);
    cr_expect_eq(rmdir(folder), 0);
}

/* ---- a rank 0 that is not reached ---- */

static bool stderr_has(const char *words)
{
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, cr_get_redirected_stderr()) != NULL)
        found |= strstr(line, words) != NULL;
    return found;
}

/* The wait is reported before it ends: a folder that the nodes do not share, and an address that is none of
 * IPv4 (so that no packet leaves this machine). */
Test(store, not_reached, .init = cr_redirect_stderr)
{
    char folder[] = "/tmp/cuboid-store-XXXXXX";
    struct store *store = NULL, *first = NULL;
    make_folder(folder);
    cr_expect_eq(open_as(2, folder, 0.2, &store), PEER_LOST);
    cr_expect_not_null(
        strstr(fail_text(), " is not there: all processes must use the folder /tmp/cuboid-store-"), "%s",
        fail_text());
    cr_assert_eq(open_at("::1", 0, folder, 5.0, &first), OK);
    cr_expect_eq(open_at("::1", 2, folder, 0.2, &store), PEER_LOST);
    cr_expect_not_null(strstr(fail_text(), "no answer from ::1 port "), "%s", fail_text());
    cr_expect_not_null(strstr(fail_text(), "MASTER_ADDR"), "%s", fail_text());
    fflush(stderr);
    cr_expect(stderr_has("node n1 waits for rank 0: no answer from ::1 port "));
    store_close(first, true);
    cr_expect_eq(rmdir(folder), 0);
}

/* ---- connections of others ---- */

static struct store_server *start(int absent, int *port, uint8_t *secret)
{
    struct store_server_options options = {.claim = -1, .tcp = -1, .absent = absent, .upstream = -1};
    struct store_server *server = NULL;
    char name[80];
    snprintf(name, sizeof name, "cuboid-test-%d", (int)getpid());
    for (int i = 0; i < STORE_SECRET; i++)
        options.secret[i] = secret[i] = (uint8_t)(i + 1);
    cr_assert_eq(wire_listen_local(name, &options.local), OK);
    cr_assert_eq(wire_listen(WIRE_LOOPBACK, &options.tcp, port), OK);
    cr_assert_eq(store_server_start(&options, &server), OK);
    return server;
}

/* Connects and says hello; false if there is no welcome. */
static bool is_welcome(int port, const uint8_t *secret)
{
    struct store_hello hello = {.node = "b", .ranks = NODE_RANKS};
    struct wire_message m = {0};
    int file = wire_connect("127.0.0.1", port);
    memcpy(hello.secret, secret, sizeof hello.secret);
    cr_assert_geq(file, 0);
    bool good = wire_send(file, STORE_HELLO, &hello, sizeof hello) && wire_is_ready(file, 5000) &&
                wire_receive(file, STORE_SECRET / 2, &m) && m.kind == STORE_WELCOME &&
                store_secret_equal(m.data, secret + STORE_SECRET / 2);
    wire_free(&m);
    close(file);
    return good;
}

Test(store, needs_the_secret)
{
    uint8_t secret[STORE_SECRET], wrong[STORE_SECRET];
    int port;
    struct store_server *server = start(2 * NODE_RANKS, &port, secret);
    memcpy(wrong, secret, sizeof wrong);
    wrong[0] ^= 1;
    int silent = wire_connect("127.0.0.1", port); // must not delay the others
    cr_expect(!is_welcome(port, wrong));
    cr_expect(is_welcome(port, secret));
    int rude = wire_connect("127.0.0.1", port);
    cr_assert(silent >= 0 && rude >= 0);
    cr_expect(wire_send(rude, STORE_GET, "value", 6), "before a hello");
    struct wire_message m = {0};
    cr_expect(!wire_receive(rude, 1000, &m));
    close(silent);
    close(rude);
    store_server_stop(server, 5.0);
}

enum { FILES = 200 };

/* With a numeric MASTER_ADDR, rank 0 listens on that address only. */
Test(store, listens_where_it_is_told)
{
    const struct {
        const char *host;
        bool others; // whether other addresses of this machine are listened on, too
    } cases[] = {
        {"127.0.0.2", false}, {WIRE_LOOPBACK, false}, {"", true}, {"a-name", true}, {"203.0.113.1", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int listening, port;
        cr_assert_eq(wire_listen(cases[i].host, &listening, &port), OK, "%s: %s", cases[i].host, fail_text());
        const int file = wire_connect("127.0.0.3", port);
        cr_expect_eq(file >= 0, cases[i].others, "%s", cases[i].host);
        if (!cases[i].others)
            cr_expect_geq(wire_connect(cases[i].host, port), 0);
        if (file >= 0)
            close(file);
        close(listening);
    }
}

/* Another process opens more connections than this one may have files, and sends nothing. */
static pid_t flood(int port, int count)
{
    int ends[2];
    char byte = 0;
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct rlimit files = {.rlim_cur = (rlim_t)count + 64, .rlim_max = (rlim_t)count + 64};
        for (int file = 3; file < FILES; file++) // above all the listening one
            if (file != ends[1])
                close(file);
        byte = setrlimit(RLIMIT_NOFILE, &files) == 0;
        for (int i = 0; i < count && byte != 0; i++)
            byte = wire_connect("127.0.0.1", port) >= 0;
        (void)!write(ends[1], &byte, 1);
        pause();
        _exit(0);
    }
    cr_assert(read(ends[0], &byte, 1) == 1 && byte == 1, "%d connections", count);
    return child;
}

/* Whether the port is closed, soon. */
static bool is_closed(int port)
{
    enum { TRIES = 500, BETWEEN_MS = 10 };
    int file = 0;
    for (int i = 0; i < TRIES && file >= 0; i++) {
        file = wire_connect("127.0.0.1", port);
        if (file >= 0)
            close(file);
        poll(NULL, 0, BETWEEN_MS);
    }
    return file < 0;
}

Test(store, idle_connections_do_not_keep_a_node_out)
{
    enum { CONNECTIONS = 800 };
    uint8_t secret[STORE_SECRET];
    struct rlimit files;
    int port;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    const struct rlimit few = {.rlim_cur = FILES, .rlim_max = files.rlim_max};
    struct store_server *server = start(NODE_RANKS, &port, secret);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    const pid_t child = flood(port, CONNECTIONS);
    cr_expect(is_welcome(port, secret));
    cr_expect(is_closed(port), "all nodes are connected: none is expected");
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    store_server_stop(server, 5.0);
}

/* ---- names on this machine ---- */

/* As another user: listens under the name, and under others that begin with it. Nothing is accepted. */
static pid_t take_names(const char *name)
{
    enum { OTHER_USER = 65534, NAMES = 20 };
    int ends[2];
    char byte = 0;
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        byte = setuid(OTHER_USER) == 0;
        for (int i = 0; i < NAMES && byte != 0; i++) {
            struct sockaddr_un address = {.sun_family = AF_UNIX};
            const int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                        i == 0 ? "%s" : "%s-%016d", name, i);
            const int file = socket(AF_UNIX, SOCK_STREAM, 0);
            byte = bind(file, (struct sockaddr *)&address,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0 &&
                   listen(file, 0) == 0;
        }
        (void)!write(ends[1], &byte, 1);
        pause();
        _exit(0);
    }
    cr_assert(read(ends[0], &byte, 1) == 1 && byte == 1);
    return child;
}

Test(store, a_name_is_taken_once)
{
    char name[64];
    int claim = -1, again = -1;
    snprintf(name, sizeof name, "cuboid-test-once-%d", (int)getpid());
    cr_expect_eq(wire_connect_local(name), -1);
    cr_assert(wire_claim_local(name, &claim));
    cr_expect(!wire_claim_local(name, &again));
    close(claim);
}

Test(store, another_user_cannot_take_a_name)
{
    char name[64];
    int claim = -1, listening = -1;
    if (getuid() != 0)
        cr_skip("needs root, to be two users");
    snprintf(name, sizeof name, "cuboid-test-name-%d", (int)getpid());
    const pid_t child = take_names(name);
    cr_expect(wire_claim_local(name, &claim), "another user has it, which does not count");
    cr_assert_eq(wire_listen_local(name, &listening), OK);
    const int file = wire_connect_local(name);
    cr_expect_geq(file, 0, "that of this user is found among those of another one");
    close(file);
    close(listening);
    cr_expect_eq(wire_connect_local(name), -1, "others are left");
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}
