// SPDX-License-Identifier: Apache-2.0
/* Failure handling of worlds. This program starts itself, alone or under mpirun, makes a rank fail, vanish
 * or stop in one of several ways while the others wait for it, and checks how soon all have ended, with which
 * messages and which exit status.
 *     test_failure [MPIRUN]                    runs everything
 *     test_failure TRANSPORT SIZE CASE         is one of the worlds
 * Compiled ON_THE_EMULATOR its worlds use nccl, between the GPUs of tests/emulator.
 *
 * The limit is five seconds, or the time in which ten worlds without a failure have started and ended after
 * those: load on the machine slows them down as much as the failing one. */
#include "tests/ranks/parallel/ranks.h"
#include "tests/support/tiny.h"
#include "trainer/engine/stop.h"
#include "trainer/progress/monitor.h"
#include "trainer/progress/recorder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = 4,
    LIMIT_MS = 5000,
    REFERENCE_WORLDS = 10,
    EXIT_STATUS = 40
}; // a world that returns exits with EXIT_STATUS + its status

static const char failing_now[] = "now: "; // printed just before the failure; time is measured from here

static void announce_failure(const char *what)
{
    printf("%s%s\n", failing_now, what);
    fflush(stdout);
}

static void announce(const struct world *world, int rank, const char *what)
{
    if (world->rank == rank)
        announce_failure(what);
}

/* ---- the worlds ---- */

/* Of a process. */
struct failure_run {
    const struct failure_case *failure_case;
    struct monitor *monitor;
    atomic_int failed; // ranks
};

static enum status reduce(struct rank_test *test, int64_t count)
{
    struct buffer x = {0};
    TRY(buffer_alloc(test->device, PART_DATA, 4096, &x));
    enum status status = group_all_reduce(test->all, test->stream, tensor_1d(x.data, I32, count), REDUCE_SUM);
    if (status == OK)
        status = stream_sync(test->stream);
    buffer_free(&x);
    return status;
}

static _Noreturn void sleep_forever(void)
{
    for (;;)
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

static enum status all_end(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    return reduce(test, 10);
}

static enum status one_fails(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 fails");
    return test->world->rank == 1 ? fail(NOT_FINITE, "the loss is not finite") : reduce(test, 10);
}

static enum status all_fail(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 0, "all fail");
    return fail(BAD_DATA, "no tokens for rank %d", test->world->rank);
}

/* Rank 0 is ready to stop; the others take longer to save than the limit after a failure. */
static enum status all_stop(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 0, "all stop");
    if (test->world->rank > 0)
        nanosleep(&(struct timespec){.tv_nsec = 900 * 1000000}, NULL);
    return fail(STOPPED, "a complete checkpoint was written");
}

static enum status one_exits(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 exits");
    if (test->world->rank == 1)
        CHECK(test->world->size == 0);
    return reduce(test, 10);
}

static enum status one_is_killed(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 is killed");
    if (test->world->rank == 1)
        raise(SIGKILL);
    return reduce(test, 10);
}

static enum status one_is_stopped(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 is stopped");
    if (test->world->rank == 1) {
        rank_context_set_action("2W1");
        raise(SIGSTOP);
    }
    return reduce(test, 10);
}

static enum status one_lost_step(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 calls with another count");
    return reduce(test, test->world->rank == 1 ? 11 : 10);
}

/* It arrives after another rank has already failed. */
static enum status one_is_lost(struct rank_test *test, struct failure_run *job)
{
    while (test->world->rank == 1 && atomic_load(&job->failed) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return reduce(test, 10);
}

static enum status one_hangs(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 hangs");
    if (test->world->rank != 1)
        return reduce(test, 10);
    rank_context_set_action("3F7");
    sleep_forever();
}

static enum status one_loops(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 loops");
    if (test->world->rank != 1)
        return reduce(test, 10);
    rank_context_set_action("3F8");
    for (volatile int i = 0;; i = i + 1)
        ;
}

static enum status all_hang(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 0, "all hang");
    sleep_forever();
}

/* The others wait for twice the timeout, but each of its actions is shorter. */
static enum status one_is_slow(struct rank_test *test, struct failure_run *job)
{
    enum { ACTIONS = 20, EACH_MS = 200 };
    (void)job;
    announce(test->world, 1, "rank 1 is slow");
    if (test->world->rank != 1)
        return reduce(test, 10);
    for (int i = 0; i < ACTIONS; i++) {
        rank_context_set_action("slow");
        nanosleep(&(struct timespec){.tv_nsec = EACH_MS * 1000000L}, NULL);
    }
    printf("rank 1 is late\n");
    return reduce(test, 10);
}

/* It starts for twice the timeout, without a sign of progress. */
static enum status one_starts(struct rank_test *test, struct failure_run *job)
{
    (void)job;
    announce(test->world, 1, "rank 1 starts");
    if (test->world->rank == 1) {
        rank_context_set_action("start");
        nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
        printf("rank 1 is late\n");
    }
    return reduce(test, 10);
}

static const struct failure_case {
    const char *name;
    enum status (*body)(struct rank_test *test, struct failure_run *job);
    double timeout_s; // of the monitor
    bool stops;       // by SIGTERM
} cases[] = {
    {.name = "all_end", .body = all_end}, // a world used as the time reference
    {.name = "one_fails", .body = one_fails},
    {.name = "all_fail", .body = all_fail},
    {.name = "all_stop", .body = all_stop},
    {.name = "one_exits", .body = one_exits},
    {.name = "one_is_killed", .body = one_is_killed},
    {.name = "one_lost_step", .body = one_lost_step},
    {.name = "one_is_lost", .body = one_is_lost}, // NCCL reports the error (EMULATOR_FAIL)
    {.name = "one_hangs", .body = one_hangs, .timeout_s = 2.0},
    {.name = "one_loops", .body = one_loops, .timeout_s = 2.0},
    {.name = "one_is_stopped", .body = one_is_stopped, .timeout_s = 2.0},
    {.name = "all_hang", .body = all_hang, .timeout_s = 0.5},
    {.name = "one_is_slow", .body = one_is_slow, .timeout_s = 2.0},
    {.name = "one_starts", .body = one_starts, .timeout_s = 2.0},
    {.name = "one_is_missing", .body = one_is_killed, .stops = true},
};
enum { CASES = sizeof cases / sizeof *cases };

static enum status body(struct world *world, void *argument)
{
    struct failure_run *job = argument;
    struct rank_test test;
    struct message_recorder recorder;
    const char *device = world->ops->device != NULL ? world->ops->device : "cpu";
    monitor_enter(job->monitor);
    TRY(message_recorder_attach(&recorder, world));
    TRY(rank_test_open(&test, world, &(struct run){.device = device}));
    TRY(reduce(&test, 1)); // past launch
    enum status status = job->failure_case->body(&test, job);
    if (status != OK)
        atomic_fetch_add(&job->failed, 1);
    char text[256];
    snprintf(text, sizeof text, "%s", fail_text());
    TRY(rank_test_close(&test));
    monitor_leave(job->monitor);
    return status == OK ? OK : fail(status, "%s", text);
}

/* Handles SIGTERM as a trainer does. */
static struct stop *receive_sigterm(void)
{
    struct stop *stop = NULL;
    MUST(stop_create(&(struct recipe_names){.list = (char *[]){(char[]){"SIGTERM"}}, .count = 1}, NULL, false,
                     &stop));
    stop_training(stop);
    return stop;
}

static int run_as_world(char **argv)
{
    int size = argv[2][0] - '0'; // 0: the launcher's
    if (strcmp(argv[3], "one_is_lost") == 0) {
        setenv("EMULATOR_FAIL", "ncclCommGetAsyncError", 1);
        announce_failure("NCCL will report a lost peer");
    }
    struct failure_run job = {.failure_case = NULL};
    for (int c = 0; c < CASES; c++)
        if (strcmp(cases[c].name, argv[3]) == 0)
            job.failure_case = &cases[c];
    CHECK(job.failure_case != NULL);
    struct launcher launcher;
    MUST(launcher_find(&launcher));
    struct stop *stop = job.failure_case->stops ? receive_sigterm() : NULL;
    const struct monitor_config config = {
        .page = {.job = launcher.size > 0 ? launcher.job : NULL,
                 .node = launcher.node,
                 .processes = launcher.size > 0 ? launcher.size : 1,
                 .slots = RANKS},
        .timeout_s = job.failure_case->timeout_s,
    };
    MUST(monitor_start(&config, &job.monitor));
    enum status status = world_run(argv[1], size, body, &job);
    monitor_stop(job.monitor);
    stop_destroy(stop);
    // As cuboid does: every process reports it, as mpirun ends the others at the first failure.
    if (status != OK)
        fprintf(stderr, "%s\n", fail_text());
    return EXIT_STATUS + (int)status;
}

/* ---- the driver ---- */

static long long milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

struct outcome {
    char text[16384];
    bool announced, ended; // ended: all processes that held our pipe have ended
    long long ms;          // from "now: ", or the start, to the end
    int exit_status;       // -1: it had to be killed
};

/* Arguments that start this program as a world. */
struct launch_method {
    const char *program, *mpirun, *transport; // mpirun NULL: alone
    int kill_delay_s; // from mpirun's SIGTERM to its SIGKILL; 0: mpirun's default of one second
};

struct launched {
    char folder[TINY_FOLDER_CHARS]; // of its own: for Open MPI's files
    pid_t child;
};

static void start_world(const struct launch_method *method, const char *name, int out, struct launched *world)
{
    char kill_delay[12];
    const char *root = getenv("TMPDIR");
    snprintf(world->folder, sizeof world->folder, "%s/failure-XXXXXX", root != NULL ? root : "/tmp");
    CHECK(mkdtemp(world->folder) != NULL);
    const char *size = method->mpirun != NULL ? "0" : "4"; // 0: the launcher's
    const char *words[] = {method->mpirun, "-n", "4", method->program, method->transport, size, name, NULL};
    const char *const *first = method->mpirun != NULL ? words : words + 3;
    world->child = fork();
    CHECK(world->child >= 0);
    if (world->child != 0)
        return;
    setpgid(0, 0);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    setenv("OMPI_MCA_orte_tmpdir_base", world->folder, 1);
    setenv("CUBOID_NODE", "x", 1);
    if (method->kill_delay_s > 0) {
        snprintf(kill_delay, sizeof kill_delay, "%d", method->kill_delay_s);
        setenv("OMPI_MCA_odls_base_sigkill_timeout", kill_delay, 1);
    }
    execvp(first[0], (char *const *)(uintptr_t)first);
    _exit(127);
}

/* Returns the status as from waitpid. Kills the remaining processes. */
static int end_world(struct launched *world)
{
    int status = 0;
    kill(-world->child, SIGKILL);
    waitpid(world->child, &status, 0);
    remove_tree(world->folder);
    return status;
}
/* The time reference: how long worlds without a failure take on this machine now. */
struct time_reference {
    struct launched world;
    bool runs;
    int ended;
};

/* Starts the next world without a failure if there is none, or the last has ended. */
static void measure(struct time_reference *y, const struct launch_method *method)
{
    siginfo_t info = {.si_pid = 0};
    if (y->runs && waitid(P_PID, (id_t)y->world.child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0) {
        end_world(&y->world);
        y->ended++;
        y->runs = false;
    }
    if (!y->runs && y->ended < REFERENCE_WORLDS) {
        int nowhere = open("/dev/null", O_WRONLY);
        CHECK(nowhere >= 0);
        start_world(method, "all_end", nowhere, &y->world);
        close(nowhere);
        y->runs = true;
    }
}

/* Reads until all ranks have ended, which closes the other end of the pipe, or until the limit. */
static void listen_until_end(int from, const struct launch_method *method, struct outcome *out)
{
    struct time_reference reference = {.runs = false};
    size_t length = 0;
    long long begin = milliseconds();
    while (!out->ended && reference.ended < REFERENCE_WORLDS) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        if (milliseconds() - begin > LIMIT_MS + 1000 * method->kill_delay_s)
            measure(&reference, method);
        if (poll(&p, 1, 100) <= 0)
            continue;
        ssize_t got = read(from, out->text + length, sizeof out->text - 1 - length);
        out->ended = got <= 0;
        length += got > 0 ? (size_t)got : 0;
        out->text[length] = 0;
        if (!out->announced && strstr(out->text, failing_now) != NULL) {
            out->announced = true;
            begin = milliseconds();
        }
    }
    if (reference.runs)
        end_world(&reference.world);
    out->ms = milliseconds() - begin;
}

static void run_world(const struct launch_method *method, const char *name, struct outcome *out)
{
    struct launched world;
    int ends[2];
    *out = (struct outcome){.exit_status = -1};
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    start_world(method, name, ends[1], &world);
    close(ends[1]);
    listen_until_end(ends[0], method, out);
    close(ends[0]);
    int status = end_world(&world);
    out->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define HANGS    "rank 1 (pp 0 dp 0 tp 0, node x) stalled in 3F7 for "
#define WAIT_FOR "; ranks 0, 2, 3 wait for it in all_reduce all"
#define WAIT     WAIT_FOR "\n"
#define SLOW     WAIT_FOR "; if 3F"

/* Where all fail, they agree on the lowest rank, or a rank that timed out waiting for the others reports
 * itself. */
static const struct expectation {
    const char *transport, *name, *words; // '#': a rank's number, the same at every position
    int exit_status;                      // 0: any but 0
    const char *also;                     // also printed; NULL: nothing
} expectations[] = {
#ifdef ON_THE_EMULATOR
    // The others abort their comms and exit by themselves.
    {"nccl", "one_fails", "rank 1: the loss is not finite", EXIT_STATUS + NOT_FINITE, NULL},
    {"nccl", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"nccl", "one_exits", "r1 (pp 0 dp 0 tp 0) step 0: is false [test->world->size == 0", 1, NULL},
    {"nccl", "one_lost_step", "all_reduce of 10 of type 2", 1, NULL}, // the emulator's message
    {"nccl", "one_is_lost", "remote process exited or there was a network error", EXIT_STATUS + PEER_LOST,
     "nccl: comm all: "},
    {"nccl", "one_hangs", HANGS, 1, SLOW},
    {"nccl", "one_is_slow", "rank 1 is late", EXIT_STATUS + OK, NULL},
    {"nccl mpi", "one_hangs", HANGS, 1, SLOW},
    {"nccl mpi", "one_is_stopped", "stalled in 2W1 for ", 1, "its process is stopped (T)" WAIT},
    {"nccl mpi", "one_fails", "rank 1: the loss is not finite", 0, NULL},
    {"nccl mpi", "one_is_missing", "process rank 1", 0,
     "rank 1 (pp 0 dp 0 tp 0, node x) was in start: its process is gone"},
#else
    // The user may have caused it, so the message has no source location.
    {"local", "one_fails", "rank 1: the loss is not finite", 1, "(the other ranks wait for it)\n"},
    {"local", "all_fail", "rank #: no tokens for rank #", 0, NULL},
    {"local", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"local", "one_exits", "r1 (pp 0 dp 0 tp 0) step 0: is false [test->world->size == 0", 1, NULL},
    {"local", "one_lost_step", "out of sync", 1, NULL},
    {"local", "all_hang", "rank # (pp 0 dp 0 tp 0, node x) stalled in start for ", 1,
     ": its thread sleeps in a system call (S); if start is only slow, set "
     "resilience.heartbeat_timeout_seconds above"},
    {"local", "one_hangs", HANGS, 1, SLOW},
    {"local", "one_loops", "stalled in 3F8 for ", 1, ": its thread is running (R)" SLOW},
    {"local", "one_is_slow", "rank 1 is late", EXIT_STATUS + OK, NULL},
    {"local", "one_starts", "rank 1 is late", EXIT_STATUS + OK, NULL},
    {"mpi", "one_fails", "rank 1: the loss is not finite", 0, NULL},
    {"mpi", "all_fail", "rank #: no tokens for rank #", 0, NULL},
    {"mpi", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"mpi", "one_exits", "r1 (pp 0 dp 0 tp 0) step 0: is false [test->world->size == 0", 0, NULL},
    {"mpi", "one_is_killed", "process rank 1", 0, NULL}, // mpirun's message
    {"mpi", "one_lost_step", "rank 1", 0, NULL},
    {"mpi", "one_hangs", HANGS, 1, SLOW},
    {"mpi", "one_loops", "stalled in 3F8 for ", 1, ": its thread is running (R)" SLOW},
    {"mpi", "one_is_stopped", "stalled in 2W1 for ", 1, ": its process is stopped (T)" WAIT},
    {"mpi", "one_is_slow", "rank 1 is late", 0, NULL},
    {"mpi", "one_is_missing", "process rank 1", 0,
     "rank 1 (pp 0 dp 0 tp 0, node x) was in start: its process is gone" WAIT},
#endif
};

static bool contains(const char *text, const char *words)
{
    for (int rank = 0; rank < 4; rank++) {
        char expected[100];
        snprintf(expected, sizeof expected, "%s", words);
        for (char *c = expected; *c != 0; c++)
            *c = *c == '#' ? (char)('0' + rank) : *c;
        if (strstr(text, expected) != NULL)
            return true;
    }
    return false;
}

static bool is_as_expected(const struct outcome *out, const struct expectation *e)
{
    bool status = e->exit_status == 0 ? out->exit_status > 0 : out->exit_status == e->exit_status;
    return status && out->ended && out->announced && contains(out->text, e->words) &&
           (e->also == NULL || contains(out->text, e->also));
}

static bool ends_as_expected(const struct launch_method *method, const struct expectation *e)
{
    struct outcome out = {0};
    run_world(method, e->name, &out);
    bool good = is_as_expected(&out, e);
    printf("%s %s: %lld ms, exit status %d\n", e->transport, e->name, out.ms, out.exit_status);
    if (!out.ended)
        printf("FAILED: still running after %d worlds without a failure have started and ended\n",
               REFERENCE_WORLDS);
    if (!good)
        printf("FAILED: expected \"%s\"%s%s in:\n%s\n", e->words, e->also != NULL ? " and " : "",
               e->also != NULL ? e->also : "", out.text);
    fflush(stdout);
    return good;
}

/* Output between mpirun's SIGTERM and its SIGKILL may need longer than a second on a busy machine. */
static bool ends_as_expected_in_time(struct launch_method *method, const struct expectation *e)
{
    bool good = ends_as_expected(method, e);
    if (good || strcmp(e->name, "one_is_missing") != 0)
        return good;
    method->kill_delay_s = 30;
    return ends_as_expected(method, e);
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return run_as_world(argv);
    int failures = 0;
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expectation *e = &expectations[i];
        bool mpi = strstr(e->transport, "mpi") != NULL; // "nccl mpi": a transport that does not need it
        struct launch_method method = {.program = argv[0],
                                       .mpirun = mpi ? argv[1] : NULL,
                                       .transport =
                                           strcmp(e->transport, "nccl mpi") == 0 ? "nccl" : e->transport};
        if (!mpi || argc > 1)
            failures += !ends_as_expected_in_time(&method, e);
    }
    return failures != 0;
}
