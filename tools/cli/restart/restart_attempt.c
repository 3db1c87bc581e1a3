// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/process.h"
#include "tools/cli/restart/restart.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_LINE = 4096 };

struct reader {
    struct text line; // incomplete
    struct text last; // the last non-empty line
    struct text *why; // the first line that names a cause
};

static bool begins(const char *line, const char *head)
{
    return strncmp(line, head, strlen(head)) == 0;
}

/* Whether a line is a hang report ("step 3: rank 1 ..."), the error of a rank ("r1 (pp ..."), or an error of
 * the program. */
static bool is_cause(const char *line)
{
    return (begins(line, "step ") && strstr(line, ": rank ") != NULL) ||
           (line[0] == 'r' && strstr(line, " (pp ") != NULL) || begins(line, "cuboid: ");
}

static void end_line(struct reader *reader)
{
    const char *line = text_chars(&reader->line);
    if (reader->why->length == 0 && is_cause(line))
        text_add(reader->why, "%s", line);
    if (*line != 0) {
        text_free(&reader->last);
        reader->last = reader->line;
        reader->line = (struct text){0};
    }
    text_free(&reader->line);
}

static void read_lines(struct reader *reader, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] == '\n')
            end_line(reader);
        else if (reader->line.length < MAX_LINE)
            text_add_bytes(&reader->line, bytes + i, 1);
}

/* Copies the available output; false at its end. */
static bool copy_errors(int errors, struct reader *reader)
{
    char bytes[4096];
    const ssize_t count = read(errors, bytes, sizeof bytes);
    if (count <= 0)
        return count < 0 && errno == EINTR;
    (void)!write(STDERR_FILENO, bytes, (size_t)count);
    read_lines(reader, bytes, (size_t)count);
    return true;
}

static void pass_on(int signals, pid_t child, bool *stopped)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    *stopped = true;
    kill(-child, (int)info.ssi_signo);
}

/* Copies output and forwards signals until the child, and every process that writes to its standard error,
 * has ended. */
static void follow(pid_t child, int errors, int signals, struct reader *reader, bool *stopped)
{
    for (;;) {
        struct pollfd files[] = {{.fd = errors, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        if (poll(files, 2, -1) < 0 && errno != EINTR)
            return;
        if (files[1].revents != 0)
            pass_on(signals, child, stopped);
        if (files[0].revents != 0 && !copy_errors(errors, reader))
            return;
    }
}

static enum status run(const char *command, int signals, struct attempt *out)
{
    char shell[] = "/bin/sh", option[] = "-c";
    struct text words = {0};
    struct reader reader = {.why = &out->why};
    pid_t child;
    int errors, wait_status = 0;
    const double begun = clock_s();
    text_add(&words, "exec %s", command);
    enum status status = process_start((char *[]){shell, option, words.chars, NULL}, &child, &errors);
    text_free(&words);
    TRY(status);
    follow(child, errors, signals, &reader, &out->stopped);
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    close(errors);
    out->exit = process_exit(wait_status);
    out->seconds = clock_s() - begun;
    if (out->why.length == 0 && out->exit > 128)
        text_add(&out->why, "killed by signal %d (%s)", out->exit - 128, strsignal(out->exit - 128));
    else if (out->why.length == 0)
        text_add(&out->why, "%s", text_chars(&reader.last));
    text_free(&reader.line);
    text_free(&reader.last);
    return OK;
}

enum status attempt_run(const char *command, struct attempt *out)
{
    sigset_t mask, before;
    *out = (struct attempt){0};
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, &before);
    const int signals = signalfd(-1, &mask, SFD_CLOEXEC);
    enum status status = signals >= 0 ? run(command, signals, out)
                                      : fail(NO_MEMORY, "no file for signals: %s", strerror(errno));
    if (signals >= 0)
        close(signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
