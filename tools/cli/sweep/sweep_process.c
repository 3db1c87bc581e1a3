// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "tools/cli/sweep/sweep_run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double GRACE_S = 5.0, RELEASE_S = 60.0;

/* In the child. A launcher is asked to end, since it has to end its ranks. */
static _Noreturn void start(char *const *argv, int log, bool is_launcher, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, is_launcher ? SIGTERM : SIGKILL);
    if (getppid() != parent) // it ended before the previous line
        exit_silently(IO_ERROR);
    dup2(nothing, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "cuboid: %s cannot be started: %s\n", argv[0], strerror(errno));
    exit_silently(IO_ERROR);
}

/* Waits until `until`; false: it still runs. */
static bool wait_until(pid_t child, double until, int *status)
{
    for (;;) {
        const pid_t ended = waitpid(child, status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            return true;
        if (clock_s() >= until)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Whether the output says that memory was not sufficient. */
static bool tells_of_memory(const char *log)
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

/* The log, empty. It stays locked while a process writes to it: a run that a killed sweep has started may
 * need some time to end. */
static enum status open_log(const char *log, int *out)
{
    const double until = clock_s() + RELEASE_S;
    *out = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (*out < 0)
        return fail(IO_ERROR, "%s: cannot be opened: %s", log, strerror(errno));
    while (flock(*out, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_s() >= until) {
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

enum status sweep_process(char *const *argv, const char *log, double timeout_s, bool is_launcher,
                          enum run_state *out)
{
    const pid_t parent = getpid();
    int status = 0, file;
    TRY(open_log(log, &file));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        start(argv, file, is_launcher, parent);
    close(file);
    if (child < 0)
        return fail(NO_MEMORY, "no process can be started: %s", strerror(errno));
    setpgid(child, child);
    const bool ended = wait_until(child, clock_s() + timeout_s, &status);
    if (!ended) {
        kill(-child, SIGTERM);
        if (!wait_until(child, clock_s() + GRACE_S, &status)) {
            kill(-child, SIGKILL);
            wait_until(child, INFINITY, &status);
        }
    }
    kill(-child, SIGKILL); // what a launcher has left
    if (!ended)
        *out = RUN_TIMEOUT;
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        *out = RUN_DONE;
    else if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) || tells_of_memory(log))
        *out = RUN_OOM;
    else
        *out = RUN_FAILED;
    return OK;
}
