// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang_dump.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/comm.h"

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
