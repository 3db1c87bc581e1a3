// SPDX-License-Identifier: Apache-2.0
/* "Trace Event Format" (Chromium's catapult project): an array of events, each with a phase `ph`. X: a
 * slice with a start and a length; M: the name of a process or a thread; s and f: the two ends of an arrow.
 *
 * Caution: slices of one thread must nest or be disjoint, so overlapping messages are distributed over
 * several threads. A viewer drops a slice that begins before the previous one's end because of rounding, so
 * starts and ends are whole nanoseconds. The end of an arrow belongs to the slice that is open at its time,
 * so an arrow begins a nanosecond before its slice ends. */
#include "schedules/draw/draw.h"

#include "schedules/edges.h"

#include <math.h>
#include <stdlib.h>

/* Thread ids within a rank, and the number reserved for each rank. */
enum { COMPUTE = 0, MESSAGES = 1, ROWS = 50, THREADS = 200 };

struct tracer {
    const struct drawing *drawing;
    int first_pid;       // of rank 0; counted from 1, 0 means the idle process
    int64_t first_arrow; // ids are unique in the file
    double scale;
    int64_t *producer[2]; // [stages][m] the action that produces the activation; the gradient of the input
    int *lane;            // [actions] thread of a transfer
    int lanes;            // of the current rank
    bool *started;        // the file's first event has been written
    struct text *out;
};

static size_t cell(const struct schedule *s, int stage, int microbatch)
{
    return (size_t)stage * (size_t)s->m + (size_t)microbatch;
}

static int pid(const struct tracer *t, int rank)
{
    return t->first_pid + rank;
}

/* A time in whole nanoseconds. Durations are differences of two of these. */
static double nanoseconds(const struct tracer *t, double time)
{
    return round(time * t->scale * 1000.0);
}

static void event(struct tracer *t, const char *phase, int rank, int thread)
{
    text_add(t->out, "%s\n{\"ph\": \"%s\", \"pid\": %d, \"tid\": %d", *t->started ? "," : "", phase,
             pid(t, rank), THREADS * pid(t, rank) + thread);
    *t->started = true;
}

static void add_name(struct tracer *t, const char *what, int rank, int thread, const char *name)
{
    event(t, "M", rank, thread);
    text_add(t->out, ", \"name\": \"%s\", \"args\": {\"name\": ", what);
    text_add_json(t->out, name);
    text_add(t->out, "}}");
}

/* ---- threads of messages ---- */

struct start {
    double at;
    int position;
};

static int by_start(const void *left, const void *right)
{
    const struct start *a = left, *b = right;
    if (a->at < b->at || a->at > b->at)
        return a->at < b->at ? -1 : 1;
    return (a->position > b->position) - (a->position < b->position);
}

/* Assigns each transfer of the rank, in the order of their starts, to the first free thread. */
static void assign_threads(struct tracer *t, int rank, struct start *starts)
{
    const struct schedule *s = t->drawing->schedule;
    const struct simulation *sim = t->drawing->simulation;
    const struct action_time *times = sim->times + sim->first[rank];
    double free_at[ROWS - MESSAGES];
    int count = 0;
    t->lanes = 0;
    for (int i = 0; i < s->ranks[rank].count; i++)
        if (!action_traits(s->ranks[rank].actions[i].kind)->computes)
            starts[count++] = (struct start){times[i].start, i};
    qsort(starts, (size_t)count, sizeof *starts, by_start);
    for (int k = 0; k < count; k++) {
        int lane = 0;
        while (lane < t->lanes && free_at[lane] > starts[k].at && lane < ROWS - MESSAGES - 1)
            lane++;
        t->lanes = lane == t->lanes ? lane + 1 : t->lanes;
        free_at[lane] = times[starts[k].position].end;
        t->lane[starts[k].position] = MESSAGES + lane;
    }
}

/* ---- events ---- */

static void slice(struct tracer *t, int rank, int position)
{
    const struct schedule *s = t->drawing->schedule;
    const struct simulation *sim = t->drawing->simulation;
    struct action a = s->ranks[rank].actions[position];
    struct action_time time = sim->times[sim->first[rank] + position];
    const struct action_traits *traits = action_traits(a.kind);
    double start = nanoseconds(t, time.start), end = nanoseconds(t, time.end);
    event(t, "X", rank, traits->computes ? COMPUTE : t->lane[position]);
    text_add(t->out, ", \"ts\": %.3f, \"dur\": %.3f, \"name\": \"%s %d\", \"cat\": \"%s\", ", start / 1000.0,
             (end - start) / 1000.0, traits->text, a.microbatch, traits->text);
    text_add(t->out, "\"args\": {\"stage\": %d, \"chunk\": %d, \"microbatch\": %d, \"position\": %d", a.stage,
             schedule_chunk(s, a.stage, a.microbatch), a.microbatch, position);
    if (a.peer >= 0)
        text_add(t->out, ", \"peer\": %d", a.peer);
    text_add(t->out, ", \"critical\": %s}}", time.critical ? "true" : "false");
}

static void arrow_end(struct tracer *t, const char *phase, int rank, double at_ns, int64_t id)
{
    event(t, phase, rank, COMPUTE);
    text_add(t->out, ", \"ts\": %.3f, \"name\": \"message\", \"cat\": \"message\", \"id\": %lld%s}",
             at_ns / 1000.0, (long long)id, phase[0] == 'f' ? ", \"bp\": \"e\"" : "");
}

/* Draws an arrow from the action that produces the received value to the one that uses it. */
static void arrow(struct tracer *t, int rank, struct action receive)
{
    const struct schedule *s = t->drawing->schedule;
    const struct simulation *sim = t->drawing->simulation;
    bool gradient = action_traits(receive.kind)->gradient;
    int from = stage_before(receive.stage, gradient);
    int64_t id = t->first_arrow + (int64_t)(2 * cell(s, receive.stage, receive.microbatch)) + gradient;
    const struct action_time *made = &sim->times[t->producer[gradient][cell(s, from, receive.microbatch)]];
    const struct action_time *used =
        &sim->times[t->producer[gradient][cell(s, receive.stage, receive.microbatch)]];
    enum { SHORTEST = 2 }; // nanoseconds: an arrow needs a slice of this length at both ends
    double end = nanoseconds(t, made->end), start = nanoseconds(t, used->start);
    if (end - nanoseconds(t, made->start) < SHORTEST || nanoseconds(t, used->end) - start < SHORTEST)
        return;
    arrow_end(t, "s", receive.peer, end - 1.0, id);
    arrow_end(t, "f", rank, start, id);
}

static void find_producers(struct tracer *t)
{
    const struct schedule *s = t->drawing->schedule;
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            if (traits->forward || traits->backward_input)
                t->producer[!traits->forward][cell(s, a.stage, a.microbatch)] =
                    t->drawing->simulation->first[rank] + i;
        }
}

static void trace_row(struct tracer *t, const struct trace_row *row, int thread)
{
    add_name(t, "thread_name", row->rank, thread, row->name);
    event(t, "M", row->rank, thread);
    text_add(t->out, ", \"name\": \"thread_sort_index\", \"args\": {\"sort_index\": %d}}", thread);
    for (int i = 0; i < row->count; i++) {
        const struct trace_slice *s = &row->slices[i];
        const double start = nanoseconds(t, s->start), end = nanoseconds(t, s->end);
        event(t, "X", row->rank, thread);
        text_add(t->out, ", \"ts\": %.3f, \"dur\": %.3f, \"name\": ", start / 1000.0, (end - start) / 1000.0);
        text_add_json(t->out, s->name);
        text_add(t->out, ", \"cat\": ");
        text_add_json(t->out, s->kind);
        text_add(t->out, ", \"args\": {");
        if (s->bytes > 0)
            text_add(t->out, "\"bytes\": %lld", (long long)s->bytes);
        text_add(t->out, "}}");
    }
}

static void trace_rows(struct tracer *t, int rank)
{
    int thread = ROWS;
    for (int i = 0; i < t->drawing->row_count && thread < THREADS; i++)
        if (t->drawing->rows[i].rank == rank)
            trace_row(t, &t->drawing->rows[i], thread++);
}

static void trace_rank(struct tracer *t, int rank, struct start *starts)
{
    const struct action_list *list = &t->drawing->schedule->ranks[rank];
    struct text name = {0};
    text_add(&name, "%s: rank %d", t->drawing->title, rank);
    add_name(t, "process_name", rank, COMPUTE, name.chars);
    event(t, "M", rank, COMPUTE);
    text_add(t->out, ", \"name\": \"process_sort_index\", \"args\": {\"sort_index\": %d}}", pid(t, rank));
    add_name(t, "thread_name", rank, COMPUTE, "compute");
    text_free(&name);
    assign_threads(t, rank, starts);
    for (int lane = 0; lane < t->lanes; lane++)
        add_name(t, "thread_name", rank, MESSAGES + lane, "messages");
    for (int i = 0; i < list->count; i++)
        slice(t, rank, i);
    trace_rows(t, rank);
}

static void trace_drawing(struct tracer *t)
{
    const struct schedule *s = t->drawing->schedule;
    size_t cells = (size_t)s->stages * (size_t)s->m;
    int longest = 0;
    for (int rank = 0; rank < s->p; rank++)
        longest = s->ranks[rank].count > longest ? s->ranks[rank].count : longest;
    struct start *starts = malloc(((size_t)longest + 1) * sizeof *starts);
    t->lane = malloc(((size_t)longest + 1) * sizeof *t->lane);
    for (int gradient = 0; gradient < 2; gradient++)
        t->producer[gradient] = calloc(cells, sizeof *t->producer[gradient]);
    CHECK(starts != NULL && t->lane != NULL && t->producer[0] != NULL && t->producer[1] != NULL);
    find_producers(t);
    for (int rank = 0; rank < s->p; rank++)
        trace_rank(t, rank, starts);
    // After all slices, so that the end of an arrow finds its slice open.
    for (int rank = 0; rank < s->p; rank++)
        for (int i = 0; i < s->ranks[rank].count; i++)
            if (action_traits(s->ranks[rank].actions[i].kind)->receives)
                arrow(t, rank, s->ranks[rank].actions[i]);
    free(starts);
    free(t->lane);
    free(t->producer[0]);
    free(t->producer[1]);
}

void draw_trace(const struct drawing *drawings, int count, double microseconds, struct text *out)
{
    int first_pid = 1;
    int64_t first_arrow = 1;
    bool started = false;
    text_add(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (int i = 0; i < count; i++) {
        const struct schedule *s = drawings[i].schedule;
        struct tracer t = {.drawing = &drawings[i],
                           .first_pid = first_pid,
                           .first_arrow = first_arrow,
                           .scale = microseconds,
                           .started = &started,
                           .out = out};
        trace_drawing(&t);
        first_pid += s->p;
        first_arrow += 2 * (int64_t)s->stages * s->m;
    }
    text_add(out, "\n]}\n");
}
