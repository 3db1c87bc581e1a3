// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STREAMS = 3 };

static void close_all(int files[STREAMS])
{
    for (int i = 0; i < STREAMS; i++)
        if (files[i] >= 0)
            close(files[i]);
}

/* Files in memory need no thread that reads one pipe while the other is full. */
static enum status open_all(const char *input, int files[STREAMS])
{
    for (int i = 0; i < STREAMS; i++)
        files[i] = -1;
    for (int i = 0; i < STREAMS; i++)
        if ((files[i] = memfd_create("cuboid", MFD_CLOEXEC)) < 0)
            return fail(NO_MEMORY, "no memory for the output of a process: %s", strerror(errno));
    const size_t length = input != NULL ? strlen(input) : 0;
    if (write(files[0], length > 0 ? input : "", length) != (ssize_t)length ||
        lseek(files[0], 0, SEEK_SET) != 0)
        return fail(IO_ERROR, "the input of a process cannot be written: %s", strerror(errno));
    return OK;
}

static enum status read_all(int file, struct text *out)
{
    char bytes[4096];
    ssize_t count;
    if (lseek(file, 0, SEEK_SET) != 0)
        return fail(IO_ERROR, "the output of a process cannot be read: %s", strerror(errno));
    while ((count = read(file, bytes, sizeof bytes)) > 0)
        text_add_bytes(out, bytes, (size_t)count);
    return OK;
}

static _Noreturn void start(char *const *argv, const int files[STREAMS])
{
    for (int i = 0; i < STREAMS; i++)
        dup2(files[i], i);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "%s cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
}

int process_exit(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static enum status run(char *const *argv, const int files[STREAMS], int *exit)
{
    int wait_status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        return fail(NO_MEMORY, "%s cannot be started: %s", argv[0], strerror(errno));
    if (child == 0)
        start(argv, files);
    while (waitpid(child, &wait_status, 0) < 0)
        if (errno != EINTR)
            return fail(IO_ERROR, "%s cannot be waited for: %s", argv[0], strerror(errno));
    *exit = process_exit(wait_status);
    return OK;
}

static _Noreturn void start_in_group(char *const *argv, int errors, pid_t parent)
{
    sigset_t none;
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) // it ended before the previous line
        _exit(1);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    start(argv, (int[STREAMS]){nothing, STDOUT_FILENO, errors});
}

enum status process_start(char *const *argv, pid_t *child, int *errors)
{
    int ends[2];
    const pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return fail(IO_ERROR, "no pipe for the errors of %s: %s", argv[0], strerror(errno));
    fflush(NULL);
    *child = fork();
    if (*child == 0)
        start_in_group(argv, ends[1], parent);
    close(ends[1]);
    *errors = ends[0];
    if (*child > 0)
        return OK;
    close(ends[0]);
    return fail(NO_MEMORY, "%s cannot be started: %s", argv[0], strerror(errno));
}

enum status process_capture(char *const *argv, const char *input, struct text *out, struct text *errors,
                            int *exit)
{
    int files[STREAMS];
    enum status status = open_all(input, files);
    if (status == OK)
        status = run(argv, files, exit);
    if (status == OK)
        status = read_all(files[1], out);
    if (status == OK)
        status = read_all(files[2], errors);
    close_all(files);
    return status;
}

enum status process_program(struct text *out)
{
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return fail(IO_ERROR, "/proc/self/exe cannot be read: %s", strerror(errno));
    text_add_bytes(out, path, (size_t)length);
    return OK;
}

void text_add_shell_word(struct text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    if (*word != 0 && strspn(word, plain) == strlen(word)) {
        text_add(out, "%s", word);
        return;
    }
    text_add(out, "'");
    for (; *word != 0; word++)
        if (*word == '\'')
            text_add(out, "'\\''");
        else
            text_add(out, "%c", *word);
    text_add(out, "'");
}
