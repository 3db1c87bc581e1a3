// SPDX-License-Identifier: Apache-2.0
/* See draw_trace.c for the format. Times are whole nanoseconds, so that slices that touch do not cross. */
#include "schedules/draw/draw_lanes.h"

#include <math.h>

enum { THREADS = 100 }; // numbers reserved for each rank

struct tracer {
    const struct lane_drawing *drawing;
    const struct lane_row *row;
    int thread;
    bool started; // the first event has been written
    struct text *out;
};

static double nanoseconds(double seconds)
{
    return round(seconds * 1e9);
}

/* Process 0 is the idle process. */
static void event(struct tracer *t, const char *phase)
{
    const int pid = t->row->rank + 1;
    text_add(t->out, "%s\n{\"ph\": \"%s\", \"pid\": %d, \"tid\": %d", t->started ? "," : "", phase, pid,
             THREADS * pid + t->thread);
    t->started = true;
}

static void add_name(struct tracer *t, const char *what, const char *name)
{
    event(t, "M");
    text_add(t->out, ", \"name\": \"%s\", \"args\": {\"name\": ", what);
    text_add_json(t->out, name);
    text_add(t->out, "}}");
}

static void begin_slice(struct tracer *t, const char *name, double begin_s, double end_s)
{
    event(t, "X");
    text_add(t->out, ", \"ts\": %.3f, \"dur\": %.3f, \"name\": ", nanoseconds(begin_s) / 1000.0,
             (nanoseconds(end_s) - nanoseconds(begin_s)) / 1000.0);
    text_add_json(t->out, name);
}

/* Returns the number of slices of the same action, from this one on. */
static int same_action(const struct lane_row *row, int at)
{
    int count = 1;
    while (at + count < row->count && row->slices[at + count].action == row->slices[at].action)
        count++;
    return count;
}

static void add_action(struct tracer *t, const struct lane_slice *slices, int count)
{
    double critical_s = 0.0, end_s = slices[0].end_s;
    for (int i = 0; i < count; i++) {
        critical_s += slices[i].critical ? slices[i].end_s - slices[i].begin_s : 0.0;
        end_s = slices[i].end_s > end_s ? slices[i].end_s : end_s;
    }
    begin_slice(t, slices[0].action, slices[0].begin_s, end_s);
    text_add(t->out, ", \"cat\": \"action\", \"args\": {\"critical_s\": %.9g}}", critical_s);
}

static void add_message(struct tracer *t, const struct lane_slice *slice)
{
    begin_slice(t, slice->message, slice->begin_s, slice->end_s);
    text_add(t->out, ", \"cat\": \"message\", \"args\": {\"bytes\": %lld", (long long)slice->bytes);
    if (slice->from >= 0)
        text_add(t->out, ", \"from\": %d, \"to\": %d", slice->from, slice->to);
    text_add(t->out, ", \"critical\": %s}}", slice->critical ? "true" : "false");
}

/* One end of an arrow: it begins with the send, and ends a nanosecond before the receive does. */
static void add_arrow(struct tracer *t, const struct lane_slice *slice)
{
    enum { SHORTEST = 2 }; // nanoseconds
    const double begin = nanoseconds(slice->begin_s), end = nanoseconds(slice->end_s);
    const bool sends = slice->from == t->row->rank;
    if (slice->from < 0 || end - begin < SHORTEST)
        return;
    event(t, sends ? "s" : "f");
    text_add(t->out, ", \"ts\": %.3f, \"name\": \"message\", \"cat\": \"message\", \"id\": ",
             (sends ? begin : end - 1.0) / 1000.0);
    struct text id = {0};
    text_add(&id, "%s, %d to %d, %lld", slice->group, slice->from, slice->to, (long long)slice->number);
    text_add_json(t->out, id.chars);
    text_add(t->out, "%s}", sends ? "" : ", \"bp\": \"e\"");
    text_free(&id);
}

static void add_row(struct tracer *t)
{
    const struct lane_row *row = t->row;
    add_name(t, "thread_name", row->name);
    event(t, "M");
    text_add(t->out, ", \"name\": \"thread_sort_index\", \"args\": {\"sort_index\": %d}}", t->thread);
    for (int i = 0; i < row->count;) {
        const int count = same_action(row, i);
        add_action(t, row->slices + i, count);
        for (int k = i; k < i + count; k++)
            if (row->slices[k].message != NULL)
                add_message(t, &row->slices[k]);
        i += count;
    }
}

/* Calls `add` for each row. */
static void for_rows(struct tracer *t, void (*add)(struct tracer *t))
{
    const struct lane_drawing *drawing = t->drawing;
    for (int i = 0; i < drawing->count; i++) {
        t->row = &drawing->rows[i];
        t->thread = i > 0 && drawing->rows[i - 1].rank == t->row->rank ? t->thread + 1 : 0;
        CHECK(t->thread < THREADS);
        add(t);
    }
}

static void add_process(struct tracer *t)
{
    struct text name = {0};
    if (t->thread > 0)
        return;
    text_add(&name, "%s: pp %d", t->drawing->title, t->row->rank);
    add_name(t, "process_name", text_chars(&name));
    event(t, "M");
    text_add(t->out, ", \"name\": \"process_sort_index\", \"args\": {\"sort_index\": %d}}", t->row->rank + 1);
    text_free(&name);
}

static void add_arrows(struct tracer *t)
{
    for (int i = 0; i < t->row->count; i++)
        add_arrow(t, &t->row->slices[i]);
}

void draw_lanes_trace(const struct lane_drawing *drawing, struct text *out)
{
    struct tracer t = {.drawing = drawing, .out = out};
    text_add(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for_rows(&t, add_process);
    for_rows(&t, add_row);
    for_rows(&t, add_arrows); // after all slices, so that each end finds its slice
    text_add(out, "\n]}\n");
}
