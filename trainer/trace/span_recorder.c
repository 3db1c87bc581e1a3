// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/span_recorder.h"

#include "base/text.h"
#include "kernels/ops.h"
#include "parallel/observe_world.h"

#include <stdlib.h>
#include <string.h>

struct recorded_span {
    enum span_kind kind;
    int64_t bytes;
    struct stream *stream;
    char name[SPAN_CHARS];
};

static const char *const kind_names[SPAN_KINDS] = {
    [SPAN_STEP] = "step",      [SPAN_OPTIMIZER] = "optimizer", [SPAN_REDUCTION] = "reductions",
    [SPAN_GATHER] = "gathers", [SPAN_TRANSFER] = "transfers",  [SPAN_COPY] = "copies"};

const char *span_kind_name(enum span_kind kind)
{
    return kind_names[kind];
}

/* ---- spans of a step ---- */

static enum status grow(struct span_bank *bank)
{
    enum { MORE = 256 };
    if (bank->marks.count < bank->capacity)
        return OK;
    const int capacity = bank->capacity + bank->capacity / 2 + MORE;
    struct recorded_span *more = realloc(bank->spans, (size_t)capacity * sizeof *more);
    if (more == NULL)
        return fail(NO_MEMORY, "no memory for the timeline of a step");
    bank->spans = more;
    bank->capacity = capacity;
    return OK;
}

static enum status append(struct span_bank *bank, const struct recorded_span *span, int *out)
{
    TRY(grow(bank));
    bank->spans[bank->marks.count] = *span;
    return mark_pairs_begin(&bank->marks, span->stream, out);
}

/* Records the first failure, and nothing after it. */
static void check(struct span_recorder *r, enum status status)
{
    if (status != OK && r->status == OK)
        r->status = status;
}

/* Returns the index of the new span, or -1. */
static int begin(struct span_recorder *r, struct span_bank *bank, const struct recorded_span *span)
{
    int index = -1;
    if (r->status == OK)
        check(r, append(bank, span, &index));
    return r->status == OK ? index : -1;
}

static void end(struct span_recorder *r, const struct span_bank *bank, int *span)
{
    if (*span >= 0 && r->status == OK)
        check(r, mark_pairs_end(&bank->marks, *span, bank->spans[*span].stream));
    *span = -1;
}

static bool is_recorded(const struct span_recorder *r, int64_t step)
{
    return r->active && r->status == OK && step >= r->first && step <= r->last;
}

/* The spans of the current step; the first one is the step itself. */
static struct span_bank *bank_of(struct span_recorder *r, int64_t step)
{
    struct span_bank *bank = &r->banks[step % SPAN_BANKS];
    struct recorded_span whole = {.kind = SPAN_STEP, .stream = r->compute};
    if (bank->step == step)
        return bank;
    bank->step = step;
    bank->marks.count = 0;
    snprintf(whole.name, sizeof whole.name, "step %lld", (long long)step);
    (void)begin(r, bank, &whole);
    return bank;
}

/* ---- the observer ---- */

static enum span_kind kind_of(enum call call)
{
    switch (call) { // no default: a new call is a compile error here
    case CALL_ALL_REDUCE:
    case CALL_REDUCE_SCATTER:
        return SPAN_REDUCTION;
    case CALL_ALL_GATHER:
    case CALL_BROADCAST:
        return SPAN_GATHER;
    case CALL_ALL_TO_ALL:
    case CALL_SEND:
    case CALL_RECEIVE:
    case CALL_BARRIER:
    case CALL_COUNT:
        break;
    }
    return SPAN_TRANSFER;
}

/* A message or a copy is about to be enqueued, or has been. All messages of an exchange are one span. */
static void see_queued(struct span_recorder *r, const struct observation *seen, struct recorded_span span,
                       int *open)
{
    if (seen->enqueued) {
        end(r, r->bank, open);
        return;
    }
    if (*open >= 0) {
        r->bank->spans[*open].bytes += span.bytes;
        return;
    }
    span.stream = (struct stream *)(uintptr_t)seen->stream; // to set marks in it
    r->bank = bank_of(r, seen->who->step);
    *open = begin(r, r->bank, &span);
}

static void see_message(struct span_recorder *r, const struct observation *seen)
{
    const struct observed_message *m = seen->message;
    struct recorded_span span = {.kind = kind_of(m->call), .bytes = message_bytes(m)};
    snprintf(span.name, sizeof span.name, "%s %s", call_name(m->call), m->comm->name);
    see_queued(r, seen, span, &r->message);
}

/* (A copy inside a message is part of it.) */
static void see_op(struct span_recorder *r, const struct observation *seen)
{
    const struct op *op = seen->op;
    struct recorded_span span = {.kind = SPAN_COPY};
    if (r->message >= 0 || (op->kind != OP_TO_DEVICE && op->kind != OP_TO_HOST))
        return;
    span.bytes = (int64_t)op->transfer.bytes;
    snprintf(span.name, sizeof span.name, "%s", op_name(op->kind));
    see_queued(r, seen, span, &r->copy);
}

/* A range named like the action in progress is an action, or the loading of samples; others are parts of the
 * optimizer. */
static void see_range(struct span_recorder *r, const struct observation *seen)
{
    struct recorded_span span = {.kind = SPAN_OPTIMIZER, .stream = r->compute};
    if (seen->range == NULL) {
        end(r, r->bank, &r->range);
        return;
    }
    if (strcmp(seen->range, seen->who->action) == 0)
        return;
    snprintf(span.name, sizeof span.name, "%s", seen->range);
    r->bank = bank_of(r, seen->who->step);
    r->range = begin(r, r->bank, &span);
}

static void see(void *context, const struct observation *seen)
{
    struct span_recorder *r = context;
    if (!is_recorded(r, seen->who->step) || r->device->replaying != NULL)
        return;
    if (seen->what == OBSERVED_MESSAGE)
        see_message(r, seen);
    else if (seen->what == OBSERVED_OP)
        see_op(r, seen);
    else if (seen->what == OBSERVED_RANGE)
        see_range(r, seen);
}

/* ---- the recorder of a rank ---- */

enum status span_recorder_attach(struct span_recorder *recorder, struct device *device, struct world *world,
                                 int64_t first, int64_t last)
{
    *recorder = (struct span_recorder){
        .device = device, .first = first, .last = last, .message = -1, .copy = -1, .range = -1};
    const struct observer observer = {
        .notify = see, .context = recorder, .ignores_time = true, .sees_enqueued = true};
    TRY(device_observe(device, observer));
    return world_observe(world, observer);
}

void span_recorder_close(struct span_recorder *recorder)
{
    for (int i = 0; i < SPAN_BANKS; i++) {
        mark_pairs_free(&recorder->banks[i].marks);
        free(recorder->banks[i].spans);
    }
    *recorder = (struct span_recorder){.active = false};
}

void span_recorder_begin_step(struct span_recorder *recorder, struct stream *compute)
{
    recorder->compute = compute;
    recorder->active = recorder->device != NULL;
    if (is_recorded(recorder, rank_context()->step))
        (void)bank_of(recorder, rank_context()->step);
}

void span_recorder_end_step(struct span_recorder *recorder, int64_t step)
{
    struct span_bank *bank = &recorder->banks[step % SPAN_BANKS];
    int whole = 0;
    if (is_recorded(recorder, step) && bank->step == step)
        end(recorder, bank, &whole);
    recorder->active = false;
}

/* ---- reading ---- */

static enum status wait_for(const struct span_bank *bank)
{
    for (int i = 0; i < bank->marks.count; i++) {
        bool again = false;
        for (int k = 0; k < i && !again; k++)
            again = bank->spans[k].stream == bank->spans[i].stream;
        if (!again)
            TRY(stream_sync(bank->spans[i].stream));
    }
    return OK;
}

/* The number of the stream, in the order of their first spans. */
static int number_of(const struct span_bank *bank, int span)
{
    int first = 0;
    while (bank->spans[first].stream != bank->spans[span].stream)
        first++;
    return first;
}

enum status span_recorder_read(struct span_recorder *recorder, int64_t step, const struct mark_clock *host,
                               struct span **out, int *count)
{
    struct span_bank *bank = &recorder->banks[step % SPAN_BANKS];
    if (recorder->status != OK)
        return fail(recorder->status, "the times of step %lld could not be recorded", (long long)step);
    CHECK(bank->step == step);
    TRY(wait_for(bank));
    struct span *spans = calloc((size_t)bank->marks.count + 1, sizeof *spans);
    if (spans == NULL)
        return fail(NO_MEMORY, "no memory for the timeline of a step");
    for (int i = 0; i < bank->marks.count; i++) {
        const struct recorded_span *from = &bank->spans[i];
        spans[i] = (struct span){.begin_s = mark_pairs_s(&bank->marks, i, false, host),
                                 .end_s = mark_pairs_s(&bank->marks, i, true, host),
                                 .bytes = from->bytes,
                                 .kind = (int32_t)from->kind,
                                 .stream = number_of(bank, i)};
        memcpy(spans[i].name, from->name, sizeof spans[i].name);
        snprintf(spans[i].stream_name, sizeof spans[i].stream_name, "%s", from->stream->name);
    }
    *out = spans;
    *count = bank->marks.count;
    return OK;
}
