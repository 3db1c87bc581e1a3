// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/process.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name, *text;
} states[] = {
    [PROCESS_UNKNOWN] = {"unknown", "the state of its process is unknown"},
    [PROCESS_RUNS] = {"running", "its thread is running (R)"},
    [PROCESS_SLEEPS] = {"sleeping", "its thread sleeps in a system call (S)"},
    [PROCESS_WAITS_DISK] = {"disk", "its thread waits for a disk (D)"},
    [PROCESS_IS_STOPPED] = {"stopped", "its process is stopped (T)"},
    [PROCESS_IS_GONE] = {"gone", "its process is gone"},
    [PROCESS_NODE_SILENT] = {"silent", "its node is silent"},
};
_Static_assert(sizeof states / sizeof *states == PROCESS_STATES, "a name and a text for each state");

const char *process_state_text(enum process_state state)
{
    return states[state].text;
}

const char *process_state_name(enum process_state state)
{
    return states[state].name;
}

enum process_state process_state_named(const char *name)
{
    for (int state = 0; state < PROCESS_STATES; state++)
        if (strcmp(states[state].name, name) == 0)
            return (enum process_state)state;
    return PROCESS_UNKNOWN;
}

/* The command, in parentheses, may contain any character: the state follows the last parenthesis. */
enum process_state process_parse(const char *stat, uint64_t *started)
{
    enum { FIELDS_TO_START = 19 }; // from the state (field 3) to the start time (field 22)
    const char *at = strrchr(stat, ')');
    *started = 0;
    if (at == NULL || at[1] != ' ')
        return PROCESS_UNKNOWN;
    at += 2;
    const char *field = at;
    for (int i = 0; i < FIELDS_TO_START && field != NULL; i++) {
        field = strchr(field, ' ');
        field = field != NULL ? field + 1 : NULL;
    }
    *started = field != NULL ? strtoull(field, NULL, 10) : 0;
    switch (*at) {
    case 'R':
        return PROCESS_RUNS;
    case 'S':
    case 'I':
        return PROCESS_SLEEPS;
    case 'D':
        return PROCESS_WAITS_DISK;
    case 'T':
    case 't':
        return PROCESS_IS_STOPPED;
    case 'Z':
    case 'X':
        return PROCESS_IS_GONE;
    default:
        return PROCESS_UNKNOWN;
    }
}

static enum process_state read_stat(const char *path, uint64_t *started)
{
    char stat[1024];
    *started = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT || errno == ESRCH ? PROCESS_IS_GONE : PROCESS_UNKNOWN;
    ssize_t length = read(file, stat, sizeof stat - 1);
    int why = errno;
    close(file);
    if (length <= 0)
        return why == ESRCH ? PROCESS_IS_GONE : PROCESS_UNKNOWN;
    stat[length] = 0;
    return process_parse(stat, started);
}

enum process_state process_read_state(int process, int thread)
{
    char path[80];
    uint64_t started;
    if (thread > 0)
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
    else
        snprintf(path, sizeof path, "/proc/%d/stat", process);
    return read_stat(path, &started);
}

int64_t process_ran_ns(int process, int thread)
{
    char path[80];
    long long ran = -1;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", process, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%lld", &ran) != 1)
        ran = -1;
    if (file != NULL)
        fclose(file);
    return ran;
}

uint64_t process_started(int process)
{
    char path[80];
    uint64_t started;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    return read_stat(path, &started) == PROCESS_IS_GONE ? 0 : started;
}

bool process_is_gone(int process, uint64_t started)
{
    char path[80];
    uint64_t now;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    return read_stat(path, &now) == PROCESS_IS_GONE || (now != 0 && started != 0 && now != started);
}

bool process_is_own(int process)
{
    char line[160];
    unsigned user;
    bool is_own = false;
    snprintf(line, sizeof line, "/proc/%d/status", process);
    FILE *file = fopen(line, "re");
    while (file != NULL && !is_own && fgets(line, sizeof line, file) != NULL)
        is_own = sscanf(line, "Uid: %u", &user) == 1 && user == (unsigned)getuid();
    if (file != NULL)
        fclose(file);
    return is_own;
}

/* The descriptor, opened before the checks, keeps the signal from a later process with the same id; old
 * kernels and some containers have none. */
void process_signal(int process, uint64_t started, int number)
{
    const int file = (int)syscall(SYS_pidfd_open, process, 0);
    if (started != 0 && process_started(process) == started && process_is_own(process) &&
        (file < 0 || (syscall(SYS_pidfd_send_signal, file, number, NULL, 0) != 0 && errno != ESRCH)))
        (void)kill(process, number);
    if (file >= 0)
        close(file);
}
