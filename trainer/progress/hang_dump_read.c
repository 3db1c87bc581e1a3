// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang_dump.h"

#include "parallel/comm.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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
    struct text bytes = {0};
    json_error_t error;
    TRY(file_read(path, &bytes));
    json_t *root = json_read(text_chars(&bytes), bytes.length, 0, &error);
    enum status status =
        root != NULL ? read_ranks(path, root, bytes.length, out, report)
                     : fail(BAD_DATA, "%s:%d: %s (is this a hang-STEP.json?)", path, error.line, error.text);
    json_decref(root);
    text_free(&bytes);
    return status;
}
