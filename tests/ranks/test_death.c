// SPDX-License-Identifier: Apache-2.0
/* How worlds end. This program starts itself, alone or under mpirun, lets a rank fail, vanish or stop in one
 * of several ways while the others wait for it, and checks that all are gone within five seconds, with which
 * words and which exit status.
 *     test_death [MPIRUN]              runs everything
 *     test_death TRANSPORT SIZE CASE   is one of the worlds
 * Compiled ON_THE_EMULATOR its worlds are of nccl, between the GPUs of tests/emulator. */
#include "tests/ranks/ranks.h"
#include "trainer/watchdog.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_MS = 5000, EXIT_STATUS = 40 }; // a world that returns ends with EXIT_STATUS + its status

static const char dying[] = "now: "; // printed just before it happens; from here the clock runs

static void now(const char *what)
{
    printf("%s%s\n", dying, what);
    fflush(stdout);
}

static void say_now(const struct world *world, int rank, const char *what)
{
    if (world->rank == rank)
        now(what);
}

/* ---- the worlds ---- */

static enum status reduce(struct env *env, int64_t count)
{
    struct buffer x = {0};
    TRY(buffer_alloc(env->device, PART_DATA, 4096, &x));
    enum status status = group_all_reduce(env->all, env->stream, tensor_1d(x.data, I32, count), REDUCE_SUM);
    if (status == OK)
        status = stream_sync(env->stream);
    buffer_free(&x);
    return status;
}

static enum status one_fails(struct env *env)
{
    say_now(env->world, 1, "rank 1 fails");
    return env->world->rank == 1 ? fail(NOT_FINITE, "the loss is not finite") : reduce(env, 10);
}

static enum status all_fail(struct env *env)
{
    say_now(env->world, 0, "all fail");
    return fail(BAD_DATA, "no tokens for rank %d", env->world->rank);
}

/* Rank 0 is ready to stop; the others take longer to save than a failure would be given. */
static enum status all_stop(struct env *env)
{
    say_now(env->world, 0, "all stop");
    if (env->world->rank > 0)
        nanosleep(&(struct timespec){.tv_nsec = 900 * 1000000}, NULL);
    return fail(STOPPED, "a complete checkpoint was written");
}

static enum status one_dies(struct env *env)
{
    say_now(env->world, 1, "rank 1 dies");
    if (env->world->rank == 1)
        CHECK(env->world->size == 0);
    return reduce(env, 10);
}

static enum status one_is_killed(struct env *env)
{
    say_now(env->world, 1, "rank 1 is killed");
    if (env->world->rank == 1)
        raise(SIGKILL);
    return reduce(env, 10);
}

static enum status one_lost_step(struct env *env)
{
    say_now(env->world, 1, "rank 1 brings another count");
    return reduce(env, env->world->rank == 1 ? 11 : 10);
}

static enum status one_hangs(struct env *env)
{
    who_does("3F7");
    say_now(env->world, 1, "rank 1 hangs");
    while (env->world->rank == 1)
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    return reduce(env, 10);
}

/* For much longer than the watchdog's limit, but with a word now and then. */
static enum status one_is_slow(struct env *env)
{
    for (int i = 0; i < 8 && env->world->rank == 1; i++) {
        who_does("slow");
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000000}, NULL);
    }
    say_now(env->world, 1, "rank 1 comes late");
    return reduce(env, 10);
}

static const struct death {
    const char *name;
    enum status (*body)(struct env *env);
    struct watchdog_config watchdog;
} cases[] = {
    {.name = "one_fails", .body = one_fails},
    {.name = "all_fail", .body = all_fail},
    {.name = "all_stop", .body = all_stop},
    {.name = "one_dies", .body = one_dies},
    {.name = "one_is_killed", .body = one_is_killed},
    {.name = "one_lost_step", .body = one_lost_step},
    {.name = "one_is_lost", .body = one_is_slow}, // NCCL says so (EMULATOR_FAIL)
    {"one_hangs", one_hangs, {.limit_s = 0.8}},
    {"one_is_slow", one_is_slow, {.limit_s = 0.8}},
    {"one_is_missed", one_is_killed, {.exit_signal = SIGTERM}},
};
enum { CASES = sizeof cases / sizeof *cases };

struct job {
    const struct death *death;
    struct watchdog *watchdog;
};

static enum status body(struct world *world, void *argument)
{
    const struct job *job = argument;
    struct env env;
    struct pulse pulse;
    const char *device = world->ops->device != NULL ? world->ops->device : "cpu";
    TRY(env_open(&env, world, &(struct run){.device = device}));
    TRY(reduce(&env, 1)); // past launch
    watchdog_enter(job->watchdog, &pulse);
    enum status status = job->death->body(&env);
    watchdog_leave(job->watchdog, &pulse);
    char text[256];
    snprintf(text, sizeof text, "%s", fail_text());
    TRY(env_close(&env));
    return status == OK ? OK : fail(status, "%s", text);
}

/* As a trainer does. */
static void block(int signal_number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int be_a_world(char **argv)
{
    int size = argv[2][0] - '0'; // 0: the launcher's
    if (strcmp(argv[3], "one_is_lost") == 0) {
        setenv("EMULATOR_FAIL", "ncclCommGetAsyncError", 1);
        now("NCCL will say that a partner is gone");
    }
    struct job job = {.death = NULL};
    for (int c = 0; c < CASES; c++)
        if (strcmp(cases[c].name, argv[3]) == 0)
            job.death = &cases[c];
    CHECK(job.death != NULL);
    if (job.death->watchdog.exit_signal != 0)
        block(job.death->watchdog.exit_signal);
    MUST(watchdog_start(&job.death->watchdog, &job.watchdog));
    enum status status = world_run(argv[1], size, body, &job);
    watchdog_stop(job.watchdog);
    // As cuboid does: every process says it, as mpirun ends the others at the first that ends with a failure.
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
    long long ms;    // from "now: " to the end of the last process that held our pipe
    int exit_status; // -1: it had to be ended
};

/* Reads until nobody holds the other end of the pipe: then all ranks are gone. */
static void listen_until_end(int from, struct outcome *out)
{
    size_t length = 0;
    long long begin = 0, give_up = milliseconds() + 60000;
    while (milliseconds() < give_up) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        if (poll(&p, 1, 500) <= 0)
            continue;
        ssize_t got = read(from, out->text + length, sizeof out->text - 1 - length);
        if (got <= 0)
            break;
        length += (size_t)got;
        out->text[length] = 0;
        if (begin == 0 && strstr(out->text, dying) != NULL)
            begin = milliseconds();
    }
    out->ms = begin == 0 ? -1 : milliseconds() - begin;
}

static void run_world(char **argv, struct outcome *out)
{
    int ends[2];
    *out = (struct outcome){.exit_status = -1};
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setpgid(0, 0);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    listen_until_end(ends[0], out);
    close(ends[0]);
    kill(-child, SIGKILL); // what is left of it, if anything
    int status = 0;
    waitpid(child, &status, 0);
    out->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Where all fail, they agree on the lowest, or one that has waited in vain for the others speaks for itself.
 */
static const struct expectation {
    const char *transport, *name, *words; // '#': a rank's number, the same at every place
    int exit_status;                      // 0: any but 0
    const char *also;                     // said too; NULL: nothing
} expectations[] = {
#ifdef ON_THE_EMULATOR
    // The others give up their comms and end by themselves.
    {"nccl", "one_fails", "rank 1: the loss is not finite", EXIT_STATUS + NOT_FINITE, NULL},
    {"nccl", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"nccl", "one_dies", "r1 (pp 0 dp 0 tp 0) step 0: is false [env->world->size == 0", 1, NULL},
    {"nccl", "one_lost_step", "all_reduce of 10 of type 2", 1, NULL}, // in the emulator's words
    {"nccl", "one_is_lost", "remote process exited or there was a network error", EXIT_STATUS + PEER_LOST,
     "nccl: comm all: "},
    {"nccl", "one_hangs", "r1 (pp 0 dp 0 tp 0) step 0 3F7: no progress for", 1, "waits for all_reduce all\n"},
    {"nccl mpi", "one_fails", "rank 1: the loss is not finite", 0, NULL},
    {"nccl mpi", "one_is_missed", "process rank 1", 0,
     "waits for all_reduce all, and the job is being ended\n"},
#else
    // Whoever ran it may have caused it, so no place in the source is named behind it.
    {"local", "one_fails", "rank 1: the loss is not finite", 1, "(the other ranks wait for it)\n"},
    {"local", "all_fail", "rank #: no tokens for rank #", 0, NULL},
    {"local", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"local", "one_dies", "r1 (pp 0 dp 0 tp 0) step 0: is false [env->world->size == 0", 1, NULL},
    {"local", "one_lost_step", "lost step", 1, NULL},
    {"local", "one_hangs", "r1 (pp 0 dp 0 tp 0) step 0 3F7: no progress for", 1,
     "waits for all_reduce all\n"},
    {"local", "one_is_slow", "comes late", EXIT_STATUS + OK, NULL},
    {"mpi", "one_fails", "rank 1: the loss is not finite", 0, NULL},
    {"mpi", "all_fail", "rank #: no tokens for rank #", 0, NULL},
    {"mpi", "all_stop", "rank 0: a complete checkpoint", EXIT_STATUS + STOPPED, NULL},
    {"mpi", "one_dies", "r1 (pp 0 dp 0 tp 0) step 0: is false [env->world->size == 0", 0, NULL},
    {"mpi", "one_is_killed", "process rank 1", 0, NULL}, // in mpirun's words
    {"mpi", "one_lost_step", "rank 1", 0, NULL},
    {"mpi", "one_hangs", "r1 (pp 0 dp 0 tp 0) step 0 3F7: no progress for", 0, "waits for all_reduce all\n"},
    {"mpi", "one_is_slow", "waits for all_reduce all\n", 0, NULL}, // alone in a process, others hear no word
    {"mpi", "one_is_missed", "process rank 1", 0, "waits for all_reduce all, and the job is being ended\n"},
#endif
};

static bool says(const char *text, const char *words)
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
    return status && out->ms >= 0 && says(out->text, e->words) &&
           (e->also == NULL || says(out->text, e->also));
}

/* On a machine with much else to do a world can be late, and a slow rank so late with its word that the
 * watchdog is right to end it; they are asked again then. */
static bool ends_well(char **argv, const struct expectation *e)
{
    struct outcome out = {0};
    const bool slow = strcmp(e->name, "one_is_slow") == 0;
    bool good = false, again = true;
    for (int attempt = 0; attempt < 3 && again; attempt++) {
        run_world(argv, &out);
        good = is_as_expected(&out, e);
        again = good ? out.ms >= LIMIT_MS : slow;
        printf("%s %s: %lld ms, exit status %d\n", e->transport, e->name, out.ms, out.exit_status);
    }
    if (!good)
        printf("FAILED: expected \"%s\"%s%s in:\n%s\n", e->words, e->also != NULL ? " and " : "",
               e->also != NULL ? e->also : "", out.text);
    else if (out.ms >= LIMIT_MS)
        printf("FAILED: three times not gone within %d ms\n", LIMIT_MS);
    fflush(stdout);
    return good && out.ms < LIMIT_MS;
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return be_a_world(argv);
    int failures = 0;
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const struct expectation *e = &expectations[i];
        char *name = (char *)(uintptr_t)e->name, *mpirun = argc > 1 ? argv[1] : NULL;
        bool mpi = strstr(e->transport, "mpi") != NULL; // "nccl mpi": a transport that could do without
        char *transport = strcmp(e->transport, "nccl mpi") == 0 ? "nccl" : (char *)(uintptr_t)e->transport;
        char *alone[] = {argv[0], transport, "4", name, NULL};
        char *under[] = {mpirun, "-n", "4", argv[0], transport, "0", name, NULL};
        if (!mpi || mpirun != NULL)
            failures += !ends_well(mpi ? under : alone, e);
    }
    return failures != 0;
}
