// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/memory.h"
#include "base/process.h"
#include "tools/cli/restart/restart.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_LINE = 4096, POLL_MS = 200 };
static const double STOP_S = 10.0;                  // from SIGTERM to SIGKILL
static const double REPORTED_S = 10.0;              // from a hang report, which ends all ranks, to SIGTERM
static const double REMAINS_S = 3.0, LEAVE_S = 2.0; // what the child leaves is killed, then left
static const double SAVING_S = 600.0;               // for ranks that are left by a launcher that was signaled

struct reader {
    struct text line;     // incomplete
    struct text last;     // the last non-empty line
    struct text launcher; // the first error of the launcher: "srun: error: n2: task 3: Killed"
    struct text mark;     // of this line, incomplete until in_mark is false
    bool in_mark;
    double reported; // when an error was reported after which all ranks exit; 0: not
    struct attempt *attempt;
    const struct attempt_options *options;
};

static bool begins(const char *line, const char *head)
{
    return strncmp(line, head, strlen(head)) == 0;
}

/* Reads the mark of a line (base/status.h). The first marked line is the cause of the failure. */
static void take_mark(struct reader *reader, const char *line)
{
    struct attempt *attempt = reader->attempt;
    int ends_all = 0, rank = -1, node = 0;
    if (sscanf(text_chars(&reader->mark), "%d %d %n", &ends_all, &rank, &node) < 2)
        return;
    if (ends_all != 0 && reader->reported == 0.0)
        reader->reported = clock_s();
    if (attempt->why.length > 0)
        return;
    text_add(&attempt->why, "%s", line);
    if (rank >= 0)
        text_add(&attempt->who, "rank %d", rank);
    if (reader->mark.chars[node] != 0)
        text_add(&attempt->who, "%snode %s", rank >= 0 ? ", " : "", reader->mark.chars + node);
}

static void end_line(struct reader *reader)
{
    const char *line = text_chars(&reader->line);
    if (reader->options->on_line != NULL)
        reader->options->on_line(reader->options->context, line);
    take_mark(reader, line);
    if (reader->launcher.length == 0 && begins(line, "srun: error: "))
        text_add(&reader->launcher, "%s", line);
    if (*line != 0) {
        text_free(&reader->last);
        reader->last = reader->line;
        reader->line = (struct text){0};
    }
    text_free(&reader->line);
    text_free(&reader->mark);
    reader->in_mark = false;
}

/* Appends the bytes without marks to `shown`. */
static void read_lines(struct reader *reader, const char *bytes, size_t count, struct text *shown)
{
    for (size_t i = 0; i < count; i++) {
        struct text *part = reader->in_mark ? &reader->mark : &reader->line;
        if (bytes[i] == FAILURE_MARK[0] || bytes[i] == FAILURE_MARK_END[0]) {
            reader->in_mark = bytes[i] == FAILURE_MARK[0];
            continue;
        }
        if (!reader->in_mark || bytes[i] == '\n')
            text_add_bytes(shown, bytes + i, 1);
        if (bytes[i] == '\n')
            end_line(reader);
        else if (part->length < MAX_LINE)
            text_add_bytes(part, bytes + i, 1);
    }
}

/* Reads the available output; false at its end. */
static bool read_errors(int errors, struct reader *reader)
{
    char bytes[4096];
    const ssize_t count = read(errors, bytes, sizeof bytes);
    if (count <= 0)
        return count < 0 && errno == EINTR;
    AUTO(text) shown = {0};
    read_lines(reader, bytes, (size_t)count, &shown);
    if (!reader->options->quiet && shown.length > 0)
        (void)!write(STDERR_FILENO, shown.chars, shown.length);
    return true;
}

/* srun answers SIGTERM with SIGKILL to its tasks: inside a Slurm job, scancel signals them. */
static bool signal_tasks(const struct attempt_options *options)
{
    char program[] = "scancel";
    AUTO(text) signal = {0};
    AUTO(text) job = {0};
    AUTO(text) out = {0};
    AUTO(text) errors = {0};
    int exit = 1;
    text_add(&signal, "--signal=%s", options->stop_signal);
    text_add(&job, "%s", options->slurm_job);
    return process_capture((char *[]){program, signal.chars, job.chars, NULL}, NULL, &out, &errors, &exit) ==
               OK &&
           exit == 0;
}

static void pass_on(const struct attempt_options *options, int signals, pid_t child, struct attempt *out)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    out->stopped = true;
    if (options->slurm_job == NULL || !signal_tasks(options))
        kill(-child, (int)info.ssi_signo);
}

static bool has_ended(pid_t child)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

/* Ends a launcher that exceeds its time limit, or does not end with its ranks: mpirun may hang if they exit
 * while it connects them. */
static void end_late(const struct attempt_options *options, pid_t child, double begun,
                     const struct reader *reader, struct attempt *out)
{
    const double now = clock_s();
    double limit = options->limit_s > 0.0 ? begun + options->limit_s : INFINITY;
    out->late = out->late || now > limit;
    if (reader->reported > 0.0)
        limit = fmin(limit, reader->reported + REPORTED_S);
    if (now > limit)
        kill(-child, now > limit + STOP_S ? SIGKILL : SIGTERM);
}

/* Reads output and forwards signals until the child, and every process that writes to its standard error,
 * has ended: a rank that is left would still use the run's folder. What does not end by itself is killed. */
static void follow(const struct attempt_options *options, pid_t child, int errors, int signals,
                   struct reader *reader, struct attempt *out)
{
    const double begun = clock_s();
    double ended = 0.0, remains_s = REMAINS_S;
    for (;;) {
        struct pollfd files[] = {{.fd = errors, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        if (poll(files, 2, POLL_MS) < 0 && errno != EINTR)
            return;
        if (files[1].revents != 0) {
            remains_s = out->stopped ? REMAINS_S : SAVING_S; // a second signal ends the ranks at once
            pass_on(options, signals, child, out);
        }
        if (files[0].revents != 0 && !read_errors(errors, reader))
            return;
        const double now = clock_s();
        if (ended == 0.0 && has_ended(child))
            ended = now;
        end_late(options, child, begun, reader, out);
        if (ended > 0.0 && now - ended > remains_s)
            kill(-child, SIGKILL);
        if (ended > 0.0 && now - ended > remains_s + LEAVE_S)
            return; // in another process group: mpirun's daemons, for example
    }
}

static enum status run(const struct attempt_options *options, int signals, struct attempt *out)
{
    char shell[] = "/bin/sh", option[] = "-c";
    struct text words = {0};
    struct reader reader = {.attempt = out, .options = options};
    pid_t child;
    int errors, wait_status = 0;
    const double begun = clock_s();
    text_add(&words, "exec %s", options->command);
    enum status status = process_start((char *[]){shell, option, words.chars, NULL}, &child, &errors);
    text_free(&words);
    TRY(status);
    follow(options, child, errors, signals, &reader, out);
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    close(errors);
    out->exit = process_exit(wait_status);
    out->seconds = clock_s() - begun;
    if (reader.line.length > 0)
        end_line(&reader);
    if (out->why.length == 0)
        text_add(&out->why, "%s", text_chars(&reader.launcher));
    if (out->why.length == 0 && out->exit > 128)
        text_add(&out->why, "killed by signal %d (%s)", out->exit - 128, strsignal(out->exit - 128));
    else if (out->why.length == 0)
        text_add(&out->why, "%s", text_chars(&reader.last));
    if (out->why.length == 0)
        text_add(&out->why, "exit status %d, without a message", out->exit);
    text_free(&reader.line);
    text_free(&reader.last);
    text_free(&reader.launcher);
    return OK;
}

void attempt_free(struct attempt *attempt)
{
    text_free(&attempt->why);
    text_free(&attempt->who);
}

enum status attempt_run(const struct attempt_options *options, struct attempt *out)
{
    sigset_t mask, before;
    *out = (struct attempt){0};
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, &before);
    const int signals = signalfd(-1, &mask, SFD_CLOEXEC);
    enum status status = signals >= 0 ? run(options, signals, out)
                                      : fail(NO_MEMORY, "no file for signals: %s", strerror(errno));
    if (signals >= 0)
        close(signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
