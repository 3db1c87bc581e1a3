// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "tools/cli/measure/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double GRACE_S = 5.0, RELEASE_S = 60.0;
/* A run with a longer log is killed, and the log is truncated. */
enum { MAX_LOG = 64 << 20, KEPT_LOG = 1 << 20 };

/* Runs in the child. A launcher gets SIGTERM if the parent exits, since it has to end its ranks. */
static _Noreturn void start(char *const *argv, int log, bool is_launcher, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, is_launcher ? SIGTERM : SIGKILL);
    if (getppid() != parent) // the parent ended before prctl()
        exit_silently(IO_ERROR);
    dup2(nothing, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "cuboid: %s cannot be started: %s\n", argv[0], strerror(errno));
    exit_silently(IO_ERROR);
}

static bool is_too_long(int log)
{
    struct stat about;
    return fstat(log, &about) == 0 && about.st_size > MAX_LOG;
}

/* Waits for the child until time `until`, or until the log is too long; false: it is still running. log -1:
 * of any length. */
static bool wait_until(pid_t child, int log, double until, int *status)
{
    for (;;) {
        const pid_t ended = waitpid(child, status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            return true;
        if (clock_s() >= until || (log >= 0 && is_too_long(log)))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Whether the log contains an out-of-memory message. */
static bool reports_out_of_memory(const char *log)
{
    static const char *const words[] = {"out of memory", "no memory", "does not fit",
                                        "cannot allocate memory", "out of GPU memory"};
    struct text text = {0};
    bool found = false;
    if (file_read(log, &text) != OK)
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        found = found || strcasestr(text_chars(&text), words[i]) != NULL;
    text_free(&text);
    return found;
}

enum run_state measure_state(int exit, const char *log)
{
    if (exit == 0)
        return RUN_DONE;
    return exit == 128 + SIGKILL || reports_out_of_memory(log) ? RUN_OOM : RUN_FAILED;
}

/* Opens and empties the log. It stays locked while a process writes to it: a run whose parent was killed may
 * need some time to end. */
static enum status open_log(const char *log, int *out)
{
    const double until = clock_s() + RELEASE_S;
    *out = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (*out < 0)
        return fail(IO_ERROR, "%s: cannot be opened: %s", log, strerror(errno));
    while (file_lock(*out) == FILE_IN_USE) {
        if (clock_s() >= until) {
            close(*out);
            return fail(IO_ERROR, "%s: in use by an earlier run that has not ended", log);
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (ftruncate(*out, 0) == 0)
        return OK;
    close(*out);
    return fail(IO_ERROR, "%s: cannot be written: %s", log, strerror(errno));
}

/* Truncates a log that is too long, and appends the reason. */
static void shorten(int log)
{
    char why[120];
    const int length =
        snprintf(why, sizeof why, "\ncuboid: killed, because its output exceeds %d MiB\n", MAX_LOG >> 20);
    if (ftruncate(log, KEPT_LOG) == 0)
        (void)!pwrite(log, why, (size_t)length, KEPT_LOG);
}

/* Kills a run with all its processes. */
static void end(pid_t child, int *status)
{
    kill(-child, SIGTERM);
    if (!wait_until(child, -1, clock_s() + GRACE_S, status)) {
        kill(-child, SIGKILL);
        wait_until(child, -1, INFINITY, status);
    }
}

enum status measure_process(char *const *argv, const char *log, double timeout_s, bool is_launcher,
                            enum run_state *out)
{
    const pid_t parent = getpid();
    int status = 0, file;
    TRY(open_log(log, &file));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        start(argv, file, is_launcher, parent);
    if (child < 0) {
        close(file);
        return fail(NO_MEMORY, "no process can be started: %s", strerror(errno));
    }
    setpgid(child, child);
    const bool ended = wait_until(child, file, clock_s() + timeout_s, &status);
    if (!ended)
        end(child, &status);
    kill(-child, SIGKILL); // remaining processes of a launcher
    const bool too_long = is_too_long(file);
    if (too_long)
        shorten(file);
    close(file);
    if (too_long)
        *out = RUN_FAILED;
    else if (!ended)
        *out = RUN_TIMEOUT;
    else
        *out = measure_state(process_exit(status), log);
    return OK;
}
