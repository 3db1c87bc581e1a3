// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang_dump.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/comm.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void hang_dump_name(const char *run_dir, const struct hang *hang, const struct hang_finding *finding,
                    struct text *out)
{
    text_add(out, "%s/hang-%d.json", run_dir, hang->ranks[finding->culprit].progress.head.who.step);
}

/* ---- writing ---- */

static void add_string(const char *key, const char *value, struct text *out)
{
    text_add(out, ", \"%s\": ", key);
    text_add_json(out, value);
}

static void add_groups(const struct hang_rank *rank, struct text *out)
{
    text_add(out, ",\n   \"groups\": [");
    for (int g = 0; g < rank->progress.head.groups && g < PROGRESS_GROUPS; g++) {
        const struct progress_group *group = &rank->progress.group[g];
        text_add(out, "%s\n    {\"index\": %d", g > 0 ? "," : "", g);
        add_string("name", group->name, out);
        text_add(out, ", \"id\": \"%016llx\", \"calls\": %lld, \"first\": %d, \"stride\": %d, \"size\": %d}",
                 (unsigned long long)group->id, (long long)group->calls, group->first, group->stride,
                 group->size);
    }
    text_add(out, "]");
}

static void add_messages(const struct hang_rank *rank, struct text *out)
{
    bool first = true;
    text_add(out, ",\n   \"messages\": [");
    for (int64_t n = 1; n <= rank->progress.head.messages; n++) {
        const struct progress_message *m = hang_message(rank, n);
        if (m == NULL) {
            n = rank->progress.head.messages - PROGRESS_MESSAGES;
            continue;
        }
        text_add(out, "%s\n    {\"message\": %lld, \"group\": %d, \"number\": %lld, \"bytes\": %lld",
                 first ? "" : ",", (long long)n, m->group, (long long)m->number, (long long)m->bytes);
        add_string("call", call_name((enum call)m->call), out);
        add_string("dtype", m->dtype < DTYPE_COUNT ? dtype_name((enum dtype)m->dtype) : "", out);
        add_string("action", m->action, out);
        text_add(
            out,
            ", \"peer\": %d, \"step\": %d, \"queued_ns\": %lld, \"started_ns\": %lld, \"done_ns\": %lld}",
            m->peer, m->step, (long long)m->queued_ns, (long long)m->started_ns, (long long)m->done_ns);
        first = false;
    }
    text_add(out, "]");
}

static void add_rank(const struct hang_rank *rank, struct text *out)
{
    const struct progress_head *head = &rank->progress.head;
    text_add(out, "  {\"rank\": %d, \"pp\": %d, \"dp\": %d, \"tp\": %d, \"step\": %d", head->who.rank,
             head->who.pp, head->who.dp, head->who.tp, head->who.step);
    add_string("node", rank->node, out);
    add_string("action", head->who.action, out);
    add_string("waits", head->who.waiting_for, out);
    add_string("needs", rank->needs, out);
    add_string("gpu_completed", head->gpu.completed, out);
    add_string("gpu_current", head->gpu.current, out);
    add_string("process", process_state_name(rank->process), out);
    text_add(out,
             ", \"still_s\": %.3f, \"ended\": %s, \"pid\": %d, \"count\": %llu, \"since_ns\": %lld, "
             "\"recorded\": %lld, \"awaited\": %lld",
             rank->stalled_s, head->state == PROGRESS_ENDED ? "true" : "false", head->process,
             (unsigned long long)head->count, (long long)head->since_ns, (long long)head->messages,
             (long long)head->awaited);
    add_groups(rank, out);
    add_messages(rank, out);
    text_add(out, "}");
}

void hang_dump_text(const struct hang *hang, const char *report, struct text *out)
{
    text_add(out, "{\"format\": 1, \"report\": ");
    text_add_json(out, report);
    text_add(out, ", \"limit_s\": %.3f, \"at_ns\": %lld, \"ranks\": [\n", hang->limit_s,
             (long long)clock_ns());
    for (int r = 0; r < hang->count; r++) {
        if (r > 0)
            text_add(out, ",\n");
        add_rank(&hang->ranks[r], out);
    }
    text_add(out, "]}\n");
}

/* ---- in time ---- */

struct dump {
    struct text text;
    const char *path;
    atomic_bool done;
};

static void *write_file(void *argument)
{
    struct dump *dump = argument;
    if (file_write_atomic(dump->path, dump->text.chars, dump->text.length) != OK)
        print_line(stderr, "warning: %s", fail_text());
    atomic_store(&dump->done, true);
    return NULL;
}

void hang_dump_in_time(const struct hang *hang, const char *report, const char *path)
{
    enum { MAX_MS = 2000, POLL_MS = 5 };
    pthread_t thread;
    // Not freed: a thread that hangs uses it, and the process is about to exit.
    struct dump *dump = memory_zeroed(1, sizeof *dump, "the dump of a hang");
    dump->path = text_copy(path);
    hang_dump_text(hang, report, &dump->text);
    if (pthread_create(&thread, NULL, write_file, dump) != 0)
        return;
    pthread_detach(thread);
    for (int ms = 0; ms < MAX_MS && !atomic_load(&dump->done); ms += POLL_MS)
        poll(NULL, 0, POLL_MS);
}

/* ---- reading ---- */

/* Limits the numbers of a damaged file, so that no sum or difference of two of them overflows. */
static int64_t limited(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static int64_t integer(const json_t *object, const char *key)
{
    const int64_t most = INT64_C(1) << 61;
    return limited((int64_t)json_integer_value(json_object_get(object, key)), -most, most);
}

/* A number that is never negative. */
static int64_t positive(const json_t *object, const char *key)
{
    return limited(integer(object, key), 0, INT64_MAX);
}

/* A rank, a coordinate, a step, or a distance between ranks. */
static int32_t small(const json_t *object, const char *key)
{
    const int32_t most = INT32_C(1) << 30;
    return (int32_t)limited(integer(object, key), -most, most);
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static void copy(const json_t *object, const char *key, char *out, size_t capacity)
{
    text_printable(string(object, key), out, capacity);
}

static void read_groups(const json_t *list, struct rank_progress *out)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        if (i == PROGRESS_GROUPS)
            break;
        struct progress_group *group = &out->group[i];
        copy(entry, "name", group->name, sizeof group->name);
        group->id = strtoull(string(entry, "id"), NULL, 16);
        group->calls = positive(entry, "calls");
        group->first = small(entry, "first");
        group->stride = small(entry, "stride");
        group->size = small(entry, "size");
        out->head.groups = (int32_t)i + 1;
    }
}

static uint8_t call_named(const char *name)
{
    int call = 0;
    while (call < CALL_COUNT && strcmp(call_name((enum call)call), name) != 0)
        call++;
    return (uint8_t)call;
}

static uint8_t dtype_named(const char *name)
{
    int dtype = 0;
    while (dtype < DTYPE_COUNT && strcmp(dtype_name((enum dtype)dtype), name) != 0)
        dtype++;
    return (uint8_t)dtype;
}

static void read_messages(const json_t *list, struct rank_progress *out)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        int64_t index = integer(entry, "message"), group = integer(entry, "group");
        if (index < 1 || index > out->head.messages)
            continue;
        struct progress_message *m = &out->message[(index - 1) % PROGRESS_MESSAGES];
        *m = (struct progress_message){
            .number = positive(entry, "number"),
            .bytes = positive(entry, "bytes"),
            .queued_ns = integer(entry, "queued_ns"),
            .started_ns = integer(entry, "started_ns"),
            .done_ns = integer(entry, "done_ns"),
            .group = group >= 0 && group < out->head.groups ? (int32_t)group : -1,
            .peer = small(entry, "peer"),
            .step = small(entry, "step"),
            .call = call_named(string(entry, "call")),
            .dtype = dtype_named(string(entry, "dtype")),
        };
        copy(entry, "action", m->action, sizeof m->action);
    }
}

static void read_rank(const json_t *entry, struct hang_rank *out)
{
    struct progress_head *head = &out->progress.head;
    head->who = (struct rank_context){.rank = small(entry, "rank"),
                                      .pp = small(entry, "pp"),
                                      .dp = small(entry, "dp"),
                                      .tp = small(entry, "tp"),
                                      .step = small(entry, "step")};
    copy(entry, "action", head->who.action, sizeof head->who.action);
    copy(entry, "waits", head->who.waiting_for, sizeof head->who.waiting_for);
    copy(entry, "needs", out->needs, sizeof out->needs);
    copy(entry, "gpu_completed", head->gpu.completed, sizeof head->gpu.completed);
    copy(entry, "gpu_current", head->gpu.current, sizeof head->gpu.current);
    copy(entry, "node", out->node, sizeof out->node);
    out->process = process_state_named(string(entry, "process"));
    out->stalled_s = number(entry, "still_s");
    head->state = json_is_true(json_object_get(entry, "ended")) ? PROGRESS_ENDED : PROGRESS_ACTIVE;
    head->process = small(entry, "pid");
    head->count = (uint64_t)positive(entry, "count");
    head->since_ns = integer(entry, "since_ns");
    head->messages = positive(entry, "recorded");
    head->awaited = positive(entry, "awaited");
    read_groups(json_object_get(entry, "groups"), &out->progress);
    read_messages(json_object_get(entry, "messages"), &out->progress);
}

/* Whether a file of `bytes` bytes may have so many ranks: those of the node that reports have their
 * messages, so that the memory is in proportion to the file. */
static bool ranks_fit(size_t count, size_t bytes)
{
    enum { TIMES_SIZE = 32, SPARE_BYTES = 8 << 20 };
    return count <= (TIMES_SIZE * bytes + SPARE_BYTES) / sizeof(struct hang_rank);
}

static enum status read_ranks(const char *path, const json_t *root, size_t bytes, struct hang *out,
                              struct text *report)
{
    const json_t *ranks = json_object_get(root, "ranks");
    size_t i;
    json_t *entry;
    if (integer(root, "format") != 1)
        return fail(BAD_DATA, "%s: format %lld is not 1: was it written by a newer version?", path,
                    (long long)integer(root, "format"));
    if (!json_is_array(ranks) || json_array_size(ranks) == 0)
        return fail(BAD_DATA, "%s: no ranks (is this a hang-STEP.json?)", path);
    if (!ranks_fit(json_array_size(ranks), bytes))
        return fail(BAD_DATA, "%s: %zu ranks in %zu bytes: damaged, or not a hang-STEP.json", path,
                    json_array_size(ranks), bytes);
    for (i = 0; i < json_array_size(ranks); i++)
        if (!json_is_object(json_array_get(ranks, i)))
            return fail(BAD_DATA, "%s: rank %zu is no object: damaged, or not a hang-STEP.json", path, i);
    hang_create((int)json_array_size(ranks), out);
    out->limit_s = number(root, "limit_s");
    json_array_foreach(ranks, i, entry) read_rank(entry, &out->ranks[i]);
    hang_sort(out);
    text_add(report, "%s", string(root, "report"));
    return OK;
}

enum status hang_dump_read(const char *path, struct hang *out, struct text *report)
{
    AUTO(text) bytes = {0};
    json_error_t error;
    TRY(file_read(path, &bytes));
    json_t *root = json_read(text_chars(&bytes), bytes.length, 0, &error);
    enum status status =
        root != NULL ? read_ranks(path, root, bytes.length, out, report)
                     : fail(BAD_DATA, "%s:%d: %s (is this a hang-STEP.json?)", path, error.line, error.text);
    json_decref(root);
    return status;
}
