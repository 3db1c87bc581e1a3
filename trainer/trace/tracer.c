// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/tracer.h"

#include "base/memory.h"
#include "base/text.h"
#include "parallel/observe_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- CUBOID_TRACE ---- */

static const char *const words_of[] = {
    [TRACE_COMM] = "comm", [TRACE_ACTION] = "action", [TRACE_MEMORY] = "memory", [TRACE_KINDS] = "all"};
enum { WORDS = TRACE_KINDS + 1 };
_Static_assert(sizeof words_of / sizeof *words_of == WORDS, "one word for each kind, and all");

static enum status select_word(const char *word, size_t length, struct tracing *tracing)
{
    enum { SHOWN = 40 };
    for (int kind = 0; kind < WORDS; kind++) {
        if (strlen(words_of[kind]) != length || memcmp(words_of[kind], word, length) != 0)
            continue;
        for (int k = 0; k < TRACE_KINDS; k++)
            tracing->of[k] = tracing->of[k] || k == kind || kind == TRACE_KINDS;
        return OK;
    }
    char name[SHOWN + 1];
    snprintf(name, sizeof name, "%.*s", (int)(length < SHOWN ? length : SHOWN), word);
    const char *nearest = nearest_name(name, words_of, WORDS);
    return fail(BAD_USAGE,
                "CUBOID_TRACE: \"%s\" cannot be traced%s%s%s; use comm, action, memory, joined by commas, or "
                "all",
                name, nearest != NULL ? " (did you mean \"" : "", nearest != NULL ? nearest : "",
                nearest != NULL ? "\"?)" : "");
}

enum status tracing_parse(const char *words, const char *file, struct tracing *out)
{
    struct tracing tracing = {.file = file != NULL && file[0] != 0 ? file : NULL};
    for (const char *at = words != NULL ? words : ""; *at != 0;) {
        size_t length = strcspn(at, ",");
        TRY(select_word(at, length, &tracing));
        tracing.any = true;
        at += length + (at[length] == ',');
    }
    *out = tracing;
    return OK;
}

/* ---- a line ---- */

enum { NAME_CHARS = 48, GROUP_CHARS = 120, PEER_CHARS = 16, NUMBER_OF_CALL_CHARS = 24 };

/* Columns contain no spaces and no control characters. */
static void column(const char *name, char *out, size_t capacity)
{
    text_printable(name, out, capacity);
    for (char *at = out; *at != 0; at++)
        if (*at == ' ')
            *at = '_';
    if (out[0] == 0)
        snprintf(out, capacity, "-");
}

/* "[0,2]", "[0-3]", "[0-6/2]", "[0,1,4,5]". */
static void ranks_text(const int *ranks, int count, char *out, size_t capacity)
{
    int step = count > 1 ? ranks[1] - ranks[0] : 0;
    bool even = count > 2;
    for (int i = 2; i < count; i++)
        even = even && ranks[i] - ranks[i - 1] == step;
    if (even && step == 1) {
        snprintf(out, capacity, "[%d-%d]", ranks[0], ranks[count - 1]);
        return;
    }
    if (even) {
        snprintf(out, capacity, "[%d-%d/%d]", ranks[0], ranks[count - 1], step);
        return;
    }
    const size_t last = sizeof "2147483647,...]"; // room for the end of a list that is too long
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        bool cut = length + last >= capacity;
        length += (size_t)snprintf(out + length, capacity - length, cut ? "%s..." : "%s%d", i > 0 ? "," : "[",
                                   ranks[i]);
        if (cut)
            break;
    }
    snprintf(out + length, capacity - length, "]");
}

static void group_text(const struct comm *comm, char out[GROUP_CHARS])
{
    column(comm->name, out, GROUP_CHARS);
    size_t length = strlen(out);
    if (comm->ranks != NULL)
        ranks_text(comm->ranks, comm->size, out + length, GROUP_CHARS - length);
}

/* The columns after the action. */
struct columns {
    const char *what;
    int64_t bytes;
    char peer[PEER_CHARS], group[GROUP_CHARS], number[NUMBER_OF_CALL_CHARS];
};

static void message_columns(const struct observed_message *m, struct columns *out)
{
    out->what = call_name(m->call);
    out->bytes = message_bytes(m);
    group_text(m->comm, out->group);
    snprintf(out->number, sizeof out->number, "#%06lld", (long long)m->sequence);
    if (m->peer >= 0)
        snprintf(out->peer, sizeof out->peer, "r%05d",
                 m->comm->ranks != NULL ? m->comm->ranks[m->peer] : m->peer);
}

static bool fill(const struct tracing *tracing, const struct observation *seen, struct columns *out)
{
    *out = (struct columns){.peer = "-", .group = "-", .number = "-"};
    switch (seen->what) { // no default: a new kind is a compile error here
    case OBSERVED_MESSAGE:
        message_columns(seen->message, out);
        return tracing->of[TRACE_COMM];
    case OBSERVED_RANGE:
        out->what = "action";
        return tracing->of[TRACE_ACTION] && seen->range != NULL;
    case OBSERVED_ALLOC:
    case OBSERVED_FREE:
        out->what = seen->what == OBSERVED_ALLOC ? "alloc" : "free";
        out->bytes = (int64_t)seen->memory.bytes;
        column(part_name(seen->memory.part), out->group, sizeof out->group);
        return tracing->of[TRACE_MEMORY];
    case OBSERVED_OP:
    case OBSERVED_RECORD:
    case OBSERVED_WAIT:
    case OBSERVED_COUNT:
        break;
    }
    return false;
}

bool trace_line(const struct tracing *tracing, const struct observation *seen, char out[TRACE_LINE_CHARS])
{
    enum { MICROSECOND = 1000, PER_SECOND = 1000000 };
    struct columns c;
    if (!fill(tracing, seen, &c))
        return false;
    const struct rank_context *who = seen->who;
    const int64_t us = seen->at_ns / MICROSECOND;
    char action[NAME_CHARS];
    column(seen->what == OBSERVED_RANGE ? seen->range : who->action, action, sizeof action);
    snprintf(out, TRACE_LINE_CHARS,
             "s%06d r%05d pp%03d dp%04d tp%02d %08lld.%06lld %-10s %-14s %12lld %-6s %-12s %s", who->step,
             who->rank, who->pp, who->dp, who->tp, (long long)(us / PER_SECOND), (long long)(us % PER_SECOND),
             action, c.what, (long long)c.bytes, c.peer, c.group, c.number);
    return true;
}

/* ---- the observer of a rank ---- */

struct tracer {
    struct tracing tracing;
    FILE *file; // unbuffered: a line is one write, so that lines of ranks do not mix
    bool owns_file;
};

/* Appends the path of a rank. */
static void add_path(const char *pattern, int rank, struct text *out)
{
    for (const char *at = pattern; *at != 0; at++) {
        if (at[0] == '%' && at[1] == 'r') {
            text_add(out, "%d", rank);
            at++;
        } else {
            text_add_bytes(out, at, 1);
        }
    }
}

static enum status open_file(struct tracer *tracer, int rank)
{
    tracer->file = stderr;
    if (tracer->tracing.file == NULL)
        return OK;
    AUTO(text) path = {0};
    add_path(tracer->tracing.file, rank, &path);
    tracer->file = fopen(text_chars(&path), "ae");
    tracer->owns_file = tracer->file != NULL;
    enum status status = OK;
    if (tracer->file == NULL)
        status =
            fail(IO_ERROR, "CUBOID_TRACE_FILE: cannot append to %s: %s", text_chars(&path), strerror(errno));
    else
        setvbuf(tracer->file, NULL, _IONBF, 0);
    return status;
}

static void observe(void *context, const struct observation *seen)
{
    const struct tracer *tracer = context;
    char line[TRACE_LINE_CHARS];
    if (trace_line(&tracer->tracing, seen, line))
        print_line(tracer->file, "%s", line);
}

enum status tracer_create(const struct tracing *tracing, struct device *device, struct world *world,
                          struct tracer **out)
{
    *out = NULL;
    if (!tracing->any)
        return OK;
    struct tracer *tracer = memory_zeroed(1, sizeof *tracer, "a trace");
    tracer->tracing = *tracing;
    enum status status = open_file(tracer, world->rank);
    if (status != OK) {
        tracer_destroy(tracer);
        return status;
    }
    *out = tracer;
    const struct observer observer = {.notify = observe, .context = tracer};
    TRY(device_observe(device, observer));
    return world_observe(world, observer);
}

void tracer_destroy(struct tracer *tracer)
{
    if (tracer == NULL)
        return;
    if (tracer->owns_file)
        fclose(tracer->file);
    free(tracer);
}
