// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include "base/progress.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char last_text[2048];
static _Thread_local struct rank_context me = {.rank = -1, .layer = NO_LAYER};

static const char *const names[] = {
    [OK] = "ok",
    [BAD_ARGUMENT] = "bad argument",
    [BAD_USAGE] = "bad usage",
    [BAD_RECIPE] = "bad recipe",
    [BAD_SCHEDULE] = "bad schedule",
    [BAD_DATA] = "bad data",
    [BAD_CHECKPOINT] = "bad checkpoint",
    [WRONG_CHECKPOINT] = "wrong checkpoint",
    [NO_MEMORY] = "out of memory",
    [NO_DEVICE_MEMORY] = "out of device memory",
    [IO_ERROR] = "input/output error",
    [NOT_SUPPORTED] = "not supported",
    [NOT_FINITE] = "not finite",
    [PEER_LOST] = "peer lost",
    [STOPPED] = "stopped",
    [INTERRUPTED] = "interrupted",
    [OUT_OF_BOUND] = "out of bound",
};
_Static_assert(sizeof names / sizeof *names == STATUS_COUNT, "one name for each status");

const char *status_name(enum status status)
{
    return status >= 0 && status < STATUS_COUNT ? names[status] : "unknown";
}

int status_exit(enum status status)
{
    if (status == OK)
        return 0;
    if (status == STOPPED)
        return 75;
    bool given = status == BAD_USAGE || status == BAD_RECIPE || status == BAD_SCHEDULE ||
                 status == BAD_DATA || status == BAD_CHECKPOINT || status == WRONG_CHECKPOINT;
    return given ? 2 : 1;
}

enum status status_of_input(enum status status)
{
    return status_exit(status) == 1 && status != NO_MEMORY ? BAD_DATA : status;
}

/* Replaces the middle of a message that is too long for `raw`: the reason and what to do are at its end. */
static void shorten(const char *format, va_list args, size_t length, char raw[sizeof last_text])
{
    static const char gap[] = " ... ";
    const size_t half = (sizeof last_text - sizeof gap) / 2;
    char *whole = malloc(length + 1);
    if (whole == NULL)
        return; // the message remains without its end
    vsnprintf(whole, length + 1, format, args);
    memcpy(raw + half, gap, sizeof gap - 1);
    memcpy(raw + half + sizeof gap - 1, whole + length - half, half + 1);
    free(whole);
}

enum status fail(enum status status, const char *format, ...)
{
    char raw[sizeof last_text]; // contains names and values from files and command lines
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(raw, sizeof raw, format, args);
    if (length >= (int)sizeof raw)
        shorten(format, again, (size_t)length, raw);
    va_end(again);
    va_end(args);
    text_printable(raw, last_text, sizeof last_text);
    return status;
}

const char *fail_text(void)
{
    return last_text;
}

struct rank_context *rank_context(void)
{
    return &me;
}

const char *rank_context_text(const struct rank_context *who, char out[RANK_CONTEXT_CHARS])
{
    snprintf(out, RANK_CONTEXT_CHARS, "r%d (pp %d dp %d tp %d) step %d%s%s", who->rank, who->pp, who->dp,
             who->tp, who->step, who->action[0] != 0 ? " " : "", who->action);
    return out;
}

void rank_context_set_action(const char *action)
{
    rank_context_set_scheduled(action, (struct scheduled_action){.exists = false});
}

void rank_context_set_scheduled(const char *action, struct scheduled_action scheduled)
{
    // Called for every action of a dry run: memcpy() is faster than snprintf().
    const size_t length = strnlen(action, sizeof me.action - 1);
    memcpy(me.action, action, length);
    me.action[length] = 0;
    me.scheduled = scheduled;
    me.waiting_for[0] = 0;
    progress_set_context(&me, (struct progress_range){0}, true);
}

void rank_context_set_wait_for(const char *message, struct progress_range recorded)
{
    if (strncmp(me.waiting_for, message, sizeof me.waiting_for - 1) == 0)
        return; // unchanged
    snprintf(me.waiting_for, sizeof me.waiting_for, "%s", message);
    progress_set_context(&me, recorded, false);
}

void rank_context_set_wait(const char *message)
{
    rank_context_set_wait_for(message, (struct progress_range){0});
}

const char *failure_mark_text(const struct failure_mark *mark, char out[FAILURE_MARK_CHARS])
{
    out[0] = 0;
    if (getenv(SUPERVISED_VARIABLE) != NULL)
        snprintf(out, FAILURE_MARK_CHARS, FAILURE_MARK "%d %d %.64s" FAILURE_MARK_END, mark->ends_all,
                 mark->rank, mark->node);
    return out;
}

enum { WHY_CHARS = 2048, WHERE_CHARS = 2000 };

/* `where` follows the reason. */
static _Noreturn void end_process(int exit, const char *prefix, int rank, const char *why, const char *where)
{
    char shown[WHY_CHARS], mark[FAILURE_MARK_CHARS];
    progress_end();
    text_printable(why, shown, sizeof shown);
    failure_mark_text(&(struct failure_mark){.rank = rank, .node = ""}, mark);
    // A single write, so that lines of several failing ranks do not interleave. No exit handlers: the other
    // ranks of this process are still running and would use destroyed objects.
    char line_text[WHY_CHARS + 2400];
    int length = snprintf(line_text, sizeof line_text, "%s%s: %s%s\n", mark, prefix, shown, where);
    if (length > 0) {
        ssize_t ignored = write(STDERR_FILENO, line_text, (size_t)length);
        (void)ignored;
    }
    _exit(exit);
}

static _Noreturn void end_here(int exit, const char *why, const char *where)
{
    char prefix[RANK_CONTEXT_CHARS] = "cuboid";
    if (me.rank >= 0)
        rank_context_text(&me, prefix);
    end_process(exit, prefix, me.rank, why, where);
}

_Noreturn void die(const char *file, int line, const char *what, const char *format, ...)
{
    char why[WHY_CHARS], where[WHERE_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    snprintf(where, sizeof where, " [%s at %s:%d]", what, file, line);
    end_here(1, why, where);
}

_Noreturn void die_of(enum status status, const char *format, ...)
{
    char why[WHY_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    end_here(status_exit(status), why, "");
}

_Noreturn void die_of_rank(enum status status, int rank, const char *format, ...)
{
    char why[WHY_CHARS], prefix[32];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    snprintf(prefix, sizeof prefix, "cuboid: rank %d", rank);
    end_process(status_exit(status), prefix, rank, why, "");
}

_Noreturn void exit_silently(enum status status)
{
    progress_end();
    _exit(status_exit(status));
}
