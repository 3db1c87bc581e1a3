// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang_dump.h"

#include "parallel/comm.h"
#include "trainer/files/json_read.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int64_t integer(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
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
        group->calls = integer(entry, "calls");
        group->first = (int32_t)integer(entry, "first");
        group->stride = (int32_t)integer(entry, "stride");
        group->size = (int32_t)integer(entry, "size");
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
            .number = integer(entry, "number"),
            .bytes = integer(entry, "bytes"),
            .queued_ns = integer(entry, "queued_ns"),
            .started_ns = integer(entry, "started_ns"),
            .done_ns = integer(entry, "done_ns"),
            .group = group >= 0 && group < out->head.groups ? (int32_t)group : -1,
            .peer = (int32_t)integer(entry, "peer"),
            .step = (int32_t)integer(entry, "step"),
            .call = call_named(string(entry, "call")),
            .dtype = dtype_named(string(entry, "dtype")),
        };
        copy(entry, "action", m->action, sizeof m->action);
    }
}

static void read_rank(const json_t *entry, struct hang_rank *out)
{
    struct progress_head *head = &out->progress.head;
    head->who = (struct rank_context){.rank = (int)integer(entry, "rank"),
                                      .pp = (int)integer(entry, "pp"),
                                      .dp = (int)integer(entry, "dp"),
                                      .tp = (int)integer(entry, "tp"),
                                      .step = (int)integer(entry, "step")};
    copy(entry, "action", head->who.action, sizeof head->who.action);
    copy(entry, "waits", head->who.waiting_for, sizeof head->who.waiting_for);
    copy(entry, "needs", out->needs, sizeof out->needs);
    copy(entry, "node", out->node, sizeof out->node);
    out->process = process_state_named(string(entry, "process"));
    out->stalled_s = number(entry, "still_s");
    head->state = json_is_true(json_object_get(entry, "ended")) ? PROGRESS_ENDED : PROGRESS_ACTIVE;
    head->process = (int32_t)integer(entry, "pid");
    head->count = (uint64_t)integer(entry, "count");
    head->since_ns = integer(entry, "since_ns");
    head->messages = integer(entry, "recorded");
    head->awaited = integer(entry, "awaited");
    read_groups(json_object_get(entry, "groups"), &out->progress);
    read_messages(json_object_get(entry, "messages"), &out->progress);
}

static enum status read_ranks(const char *path, const json_t *root, struct hang *out, struct text *report)
{
    const json_t *ranks = json_object_get(root, "ranks");
    size_t i;
    json_t *entry;
    if (integer(root, "format") != 1)
        return fail(BAD_DATA, "%s: format %lld is not 1: was it written by a newer version?", path,
                    (long long)integer(root, "format"));
    if (!json_is_array(ranks) || json_array_size(ranks) == 0)
        return fail(BAD_DATA, "%s: no ranks (is this a hang-STEP.json?)", path);
    TRY(hang_create((int)json_array_size(ranks), out));
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
    enum status status = root != NULL ? read_ranks(path, root, out, report)
                                      : fail(BAD_DATA, "%s:%d: %s", path, error.line, error.text);
    json_decref(root);
    text_free(&bytes);
    return status;
}
