// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/event_log.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "kernels/ops.h"
#include "parallel/observe_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BANKS = 2, CHUNK = 256, CLOCK_TRIES = 8 }; // CHUNK: events whose marks are created together

/* An action; on the host's clock, its times. */
struct recorded_action {
    bool computes;
    double begin_s, end_s;
    int64_t waited_ns, compute_ns;
};

struct recorded_event {
    enum event_kind kind;
    int position; // of the action that it is part of; -1: none
    int64_t bytes;
    struct stream *stream;
    char name[SPAN_CHARS];
};

struct event_bank {
    int64_t step;
    bool has_begun, is_dropped; // actions
    double begun_s, lost_s;     // the first action, on the host's clock; until the first of its repetition
    struct recorded_action *actions; // [actions]
    int count, chunks, dropped;      // events; those of dropped actions
    struct recorded_event *events;   // [CHUNK chunks]
    struct time_marks **marks;       // [chunks], of [CHUNK][begin, end]
};

static const char *const kind_names[EVENT_KINDS] = {
    [EVENT_STEP] = "step",      [EVENT_OPTIMIZER] = "optimizer", [EVENT_REDUCTION] = "reductions",
    [EVENT_GATHER] = "gathers", [EVENT_TRANSFER] = "transfers",  [EVENT_COPY] = "copies",
    [EVENT_WAIT] = "waits"};

const char *event_kind_name(enum event_kind kind)
{
    return kind_names[kind];
}

/* ---- events of a step ---- */

static enum status grow(struct event_bank *bank, struct device *device)
{
    if (bank->count < CHUNK * bank->chunks)
        return OK;
    const size_t chunks = (size_t)bank->chunks + 1;
    bank->events = memory_resized(bank->events, chunks * CHUNK, sizeof *bank->events, "the events of a step");
    bank->marks = memory_resized(bank->marks, chunks, sizeof(struct time_marks *), "the events of a step");
    TRY(time_marks_create(device, 2 * CHUNK, &bank->marks[bank->chunks]));
    bank->chunks++;
    return OK;
}

static struct time_mark mark_of(const struct event_bank *bank, int event, bool end)
{
    return (struct time_mark){bank->marks[event / CHUNK], 2 * (event % CHUNK) + end};
}

static enum status set_mark(const struct event_bank *bank, int event, bool end)
{
    return time_marks_set(bank->marks[event / CHUNK], mark_of(bank, event, end).index,
                          bank->events[event].stream);
}

static enum status append(struct event_bank *bank, const struct recorded_event *event)
{
    TRY(grow(bank, stream_device(event->stream)));
    bank->events[bank->count] = *event;
    return set_mark(bank, bank->count++, false);
}

/* After the first failure nothing is recorded. */
static struct open_event begin(struct event_log *log, struct event_bank *bank,
                               const struct recorded_event *event)
{
    if (log->status == OK)
        log->status = append(bank, event);
    return (struct open_event){bank, log->status == OK ? bank->count - 1 : -1};
}

static void end(struct event_log *log, struct open_event *open)
{
    if (open->index >= 0 && log->status == OK)
        log->status = set_mark(open->bank, open->index, true);
    open->index = -1;
}

static bool records_all(const struct event_log *log, int64_t step)
{
    return log->in_step && step >= log->first && step <= log->last;
}

/* The events of the step in progress; the first one is the step itself, if all are recorded. */
static struct event_bank *bank_of(struct event_log *log, int64_t step)
{
    struct event_bank *bank = &log->bank[step % BANKS];
    struct recorded_event whole = {.kind = EVENT_STEP, .position = -1, .stream = log->compute};
    if (bank->step == step)
        return bank;
    bank->step = step;
    bank->has_begun = bank->is_dropped = false;
    bank->lost_s = 0.0;
    bank->count = bank->dropped = 0;
    snprintf(whole.name, sizeof whole.name, "step %lld", (long long)step);
    if (records_all(log, step))
        (void)begin(log, bank, &whole);
    return bank;
}

/* ---- the observer ---- */

static enum event_kind kind_of(enum call call)
{
    switch (call) { // no default: a new call is a compile error here
    case CALL_ALL_REDUCE:
    case CALL_REDUCE_SCATTER:
        return EVENT_REDUCTION;
    case CALL_ALL_GATHER:
    case CALL_BROADCAST:
        return EVENT_GATHER;
    case CALL_ALL_TO_ALL:
    case CALL_SEND:
    case CALL_RECEIVE:
    case CALL_BARRIER:
    case CALL_COUNT:
        break;
    }
    return EVENT_TRANSFER;
}

/* What has been queued is not reported again; a message may contain copies and waits. */
static void see_queued(struct event_log *log, const struct observation *seen, struct recorded_event event)
{
    const bool is_inside = log->event.index >= 0, is_same = log->what == seen->what;
    if (seen->enqueued) {
        if (is_same)
            end(log, &log->event);
        return;
    }
    if (is_inside && is_same)
        log->event.bank->events[log->event.index].bytes += event.bytes; // all messages of an exchange
    if (is_inside)
        return;
    event.stream = (struct stream *)(uintptr_t)seen->stream; // to set marks in it
    event.position = log->position;
    log->what = seen->what;
    log->event = begin(log, bank_of(log, seen->who->step), &event);
}

static void see_message(struct event_log *log, const struct observation *seen)
{
    const struct observed_message *m = seen->message;
    struct recorded_event event = {.kind = kind_of(m->call), .bytes = message_bytes(m)};
    snprintf(event.name, sizeof event.name, "%s %s", call_name(m->call), m->comm->name);
    see_queued(log, seen, event);
}

static void see_op(struct event_log *log, const struct observation *seen)
{
    const struct op *op = seen->op;
    struct recorded_event event = {.kind = EVENT_COPY};
    if (op->kind != OP_TO_DEVICE && op->kind != OP_TO_HOST)
        return;
    event.bytes = (int64_t)op->transfer.bytes;
    snprintf(event.name, sizeof event.name, "%s", op_name(op->kind));
    see_queued(log, seen, event);
}

/* A range named like the action in progress is an action, or the loading of samples; others are parts of the
 * optimizer. */
static void see_range(struct event_log *log, const struct observation *seen)
{
    struct recorded_event event = {.kind = EVENT_OPTIMIZER, .position = -1, .stream = log->compute};
    if (seen->range == NULL) {
        end(log, &log->section);
        return;
    }
    if (strcmp(seen->range, seen->who->action) == 0)
        return;
    snprintf(event.name, sizeof event.name, "%s", seen->range);
    log->section = begin(log, bank_of(log, seen->who->step), &event);
}

static void see(void *context, const struct observation *seen)
{
    struct event_log *log = context;
    const bool all = records_all(log, seen->who->step);
    const bool stalls = !log->on_host && log->position >= 0 && seen->stream == log->compute;
    if (log->status != OK || log->device->replaying != NULL)
        return;
    if (seen->what == OBSERVED_MESSAGE && (all || stalls))
        see_message(log, seen);
    else if (seen->what == OBSERVED_WAIT && stalls)
        see_queued(log, seen, (struct recorded_event){.kind = EVENT_WAIT});
    else if (seen->what == OBSERVED_OP && all)
        see_op(log, seen);
    else if (seen->what == OBSERVED_RANGE && all)
        see_range(log, seen);
}

/* ---- the log of a rank ---- */

static enum status create(struct event_log *log)
{
    const size_t actions = (size_t)log->actions;
    log->bank = memory_zeroed(BANKS, sizeof *log->bank, "an event log");
    log->timed = memory_zeroed(actions, sizeof *log->timed, "the times of a step");
    for (int i = 0; i < BANKS; i++) {
        log->bank[i].step = -1;
        log->bank[i].actions = memory_zeroed(actions, sizeof(struct recorded_action), "the times of a step");
    }
    return log->on_host ? OK : time_marks_create(log->device, 2 * BANKS * log->actions, &log->action_marks);
}

enum status event_log_attach(const struct event_log_config *config, struct event_log *log)
{
    *log = (struct event_log){.device = config->device,
                              .on_host = device_traits(device_name(config->device))->synchronous,
                              .actions = config->actions,
                              .first = config->first,
                              .last = config->last,
                              .position = -1,
                              .event = {.index = -1},
                              .section = {.index = -1}};
    const struct observer observer = {
        .notify = see, .context = log, .ignores_time = true, .sees_enqueued = true};
    TRY(create(log));
    if (log->on_host && log->last < log->first)
        return OK;
    TRY(device_observe(log->device, observer));
    return world_observe(config->world, observer);
}

void event_log_close(struct event_log *log)
{
    for (int i = 0; log->bank != NULL && i < BANKS; i++) {
        for (int chunk = 0; chunk < log->bank[i].chunks; chunk++)
            time_marks_destroy(log->bank[i].marks[chunk]);
        free(log->bank[i].marks);
        free(log->bank[i].events);
        free(log->bank[i].actions);
    }
    free(log->bank);
    free(log->timed);
    time_marks_destroy(log->action_marks);
    time_marks_destroy(log->clock);
    // The observer remains attached: it sees the device being closed.
    *log = (struct event_log){.position = -1, .on_host = true, .device = log->device};
}

void event_log_begin_step(struct event_log *log, struct stream *compute)
{
    if (log->bank == NULL)
        return;
    log->compute = compute;
    log->in_step = true;
    (void)bank_of(log, rank_context()->step);
}

void event_log_end_step(struct event_log *log, int64_t step)
{
    if (log->bank == NULL)
        return;
    struct open_event whole = {&log->bank[step % BANKS], 0};
    if (records_all(log, step) && whole.bank->step == step)
        end(log, &whole);
    log->in_step = false;
}

/* ---- actions ---- */

static struct time_mark action_mark(const struct event_log *log, const struct event_bank *bank, int position,
                                    bool end)
{
    const int at = (int)(bank - log->bank) * log->actions + position;
    return (struct time_mark){log->action_marks, 2 * at + end};
}

static void mark_action(struct event_log *log, const struct event_bank *bank, bool end)
{
    if (log->status == OK)
        log->status =
            time_marks_set(log->action_marks, action_mark(log, bank, log->position, end).index, log->compute);
}

static void begin_actions(struct event_bank *bank)
{
    const double now_s = clock_s();
    if (!bank->has_begun)
        bank->begun_s = now_s;
    else
        bank->lost_s = now_s - bank->begun_s;
    bank->has_begun = true;
    bank->is_dropped = false;
}

void event_log_begin(struct event_log *log, int position, struct stream *compute)
{
    if (log == NULL || log->bank == NULL)
        return;
    struct event_bank *bank = bank_of(log, rank_context()->step);
    struct recorded_action *action = &bank->actions[position];
    CHECK(position >= 0 && position < log->actions);
    if (!bank->has_begun || bank->is_dropped)
        begin_actions(bank);
    log->compute = compute;
    log->position = position;
    action->computes = true;
    if (log->on_host)
        *action = (struct recorded_action){.computes = true,
                                           .waited_ns = progress_waited_ns(),
                                           .compute_ns = device_compute_ns(log->device),
                                           .begin_s = clock_s()};
    else
        mark_action(log, bank, false);
}

void event_log_end(struct event_log *log)
{
    if (log == NULL || log->bank == NULL)
        return;
    struct event_bank *bank = bank_of(log, rank_context()->step);
    struct recorded_action *action = &bank->actions[log->position];
    if (log->on_host) {
        action->end_s = clock_s();
        action->waited_ns = progress_waited_ns() - action->waited_ns;
        action->compute_ns = device_compute_ns(log->device) - action->compute_ns;
    } else {
        mark_action(log, bank, true);
    }
    log->position = -1;
}

void event_log_drop(struct event_log *log, int64_t step)
{
    if (log->bank == NULL || log->bank[step % BANKS].step != step)
        return;
    struct event_bank *bank = &log->bank[step % BANKS];
    bank->is_dropped = bank->has_begun;
    bank->dropped = bank->count;
}

/* ---- queries ---- */

static int first_of(const struct event_log *log, const struct event_bank *bank)
{
    int first = 0;
    while (first < log->actions && !bank->actions[first].computes)
        first++;
    return first;
}

/* Begin and end of an action after the begin of `first`. */
static void add_times(const struct event_log *log, const struct event_bank *bank, int first, int position,
                      struct timed_action *out)
{
    const struct recorded_action *action = &bank->actions[position];
    if (log->on_host) {
        out->begin_s = action->begin_s - bank->actions[first].begin_s;
        out->end_s = action->end_s - bank->actions[first].begin_s;
        out->waited_s = 1e-9 * (double)action->waited_ns;
        out->compute_s = 1e-9 * (double)action->compute_ns;
        return;
    }
    const struct time_mark origin = action_mark(log, bank, first, false);
    out->begin_s = time_mark_between(origin, action_mark(log, bank, position, false));
    out->end_s = time_mark_between(origin, action_mark(log, bank, position, true));
    out->compute_s = out->end_s - out->begin_s;
}

/* Subtracts messages and waits in the compute stream. */
static void add_waits(const struct event_log *log, const struct event_bank *bank)
{
    for (int i = bank->dropped; i < bank->count; i++) {
        const struct recorded_event *event = &bank->events[i];
        if (event->position < 0 || event->stream != log->compute || event->kind == EVENT_COPY)
            continue;
        const double waited_s = time_mark_between(mark_of(bank, i, false), mark_of(bank, i, true));
        log->timed[event->position].waited_s += waited_s;
        log->timed[event->position].compute_s -= waited_s;
    }
}

static bool is_known(const struct event_log *log)
{
    for (int i = 0; i < log->actions; i++)
        if (!isfinite(log->timed[i].end_s) || !isfinite(log->timed[i].compute_s))
            return false;
    return log->status == OK;
}

const struct timed_action *event_log_actions(struct event_log *log, int64_t step, double *lost_s)
{
    if (log->bank == NULL || log->bank[step % BANKS].step != step)
        return NULL;
    const struct event_bank *bank = &log->bank[step % BANKS];
    const int first = first_of(log, bank);
    for (int i = 0; i < log->actions; i++) {
        const double before_s = i > first ? log->timed[i - 1].end_s : 0.0;
        log->timed[i] = (struct timed_action){.begin_s = before_s, .end_s = before_s};
        if (bank->actions[i].computes)
            add_times(log, bank, first, i, &log->timed[i]);
    }
    if (!log->on_host)
        add_waits(log, bank);
    *lost_s = bank->lost_s;
    return is_known(log) ? log->timed : NULL;
}

/* The host reads its clock before and after setting a mark, again if it was interrupted between. */
enum status event_log_compare_clocks(struct event_log *log)
{
    double least_s = INFINITY;
    if (log->clock == NULL)
        TRY(time_marks_create(log->device, CLOCK_TRIES, &log->clock));
    TRY(stream_sync(log->compute));
    for (int i = 0; i < CLOCK_TRIES; i++) {
        const double before_s = clock_s();
        TRY(time_marks_set(log->clock, i, log->compute));
        TRY(stream_sync(log->compute));
        const double after_s = clock_s();
        if (after_s - before_s < least_s) {
            least_s = after_s - before_s;
            log->clock_s = 0.5 * (before_s + after_s) - time_mark_between((struct time_mark){log->clock, 0},
                                                                          (struct time_mark){log->clock, i});
        }
    }
    return OK;
}

static double host_s(const struct event_log *log, struct time_mark mark)
{
    return log->clock_s + time_mark_between((struct time_mark){log->clock, 0}, mark);
}

double event_log_begin_s(const struct event_log *log, int64_t step)
{
    const struct event_bank *bank = &log->bank[step % BANKS];
    const int first = first_of(log, bank);
    if (first == log->actions)
        return 0.0;
    return log->on_host ? bank->actions[first].begin_s : host_s(log, action_mark(log, bank, first, false));
}

/* ---- spans ---- */

static enum status wait_for(const struct event_bank *bank)
{
    for (int i = 0; i < bank->count; i++) {
        bool again = false;
        for (int k = 0; k < i && !again; k++)
            again = bank->events[k].stream == bank->events[i].stream;
        if (!again)
            TRY(stream_sync(bank->events[i].stream));
    }
    return OK;
}

/* The number of the stream, in the order of their first events. */
static int number_of(const struct event_bank *bank, int event)
{
    int first = 0;
    while (bank->events[first].stream != bank->events[event].stream)
        first++;
    return first;
}

static struct span span_of(const struct event_log *log, const struct event_bank *bank, int index)
{
    const struct recorded_event *event = &bank->events[index];
    struct span span = {.begin_s = host_s(log, mark_of(bank, index, false)),
                        .end_s = host_s(log, mark_of(bank, index, true)),
                        .bytes = event->bytes,
                        .kind = (int32_t)event->kind,
                        .stream = number_of(bank, index)};
    memcpy(span.name, event->name, sizeof span.name);
    snprintf(span.stream_name, sizeof span.stream_name, "%s", event->stream->name);
    return span;
}

enum status event_log_spans(const struct event_log *log, int64_t step, struct span **out, int *count)
{
    const struct event_bank *bank = &log->bank[step % BANKS];
    if (log->status != OK)
        return fail(log->status, "the times of step %lld could not be recorded", (long long)step);
    CHECK(bank->step == step);
    TRY(wait_for(bank));
    struct span *spans = memory_zeroed((size_t)bank->count, sizeof *spans, "the timeline of a step");
    *count = 0;
    for (int i = 0; i < bank->count; i++)
        if (bank->events[i].kind != EVENT_WAIT)
            spans[(*count)++] = span_of(log, bank, i);
    *out = spans;
    return OK;
}
