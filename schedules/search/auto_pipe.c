// SPDX-License-Identifier: Apache-2.0
#include "schedules/search/auto.h"

#include "base/memory.h"
#include "schedules/families/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the longest of all times; a tick is 2^-24 of it. */
static double longest_time(const struct schedule *s, const struct cost_table *costs)
{
    double longest = fmax(costs->latency, costs->wire);
    for (int stage = 0; stage < s->stages; stage++) {
        struct stage_cost c = costs->of_stage != NULL ? costs->of_stage[stage] : costs->chunk;
        longest = fmax(longest, fmax(c.f, fmax(c.i, c.w)));
    }
    return longest;
}

static void set_task(struct pipeline *x, const struct schedule *s, const struct edges *edges, struct task *q)
{
    int last = x->stages - 1;
    bool forward = q->kind == TASK_F;
    q->rank = s->rank_of[0][q->stage];
    q->consumer = q->edge = NONE;
    if (q->kind == TASK_W || (q->kind == TASK_I && q->stage == 0))
        return;
    bool turns = forward && q->stage == last; // the loss: F of the last stage is followed by its own I
    q->consumer_kind = forward && !turns ? TASK_F : TASK_I;
    q->consumer_stage = turns ? last : forward ? q->stage + 1 : q->stage - 1;
    q->consumer = s->rank_of[0][q->consumer_stage];
    if (q->consumer != q->rank)
        q->edge = edges->into[!forward][0][q->consumer_stage];
}

static void set_tasks(struct pipeline *x, const struct schedule *s, const struct edges *edges,
                      const struct cost_table *costs)
{
    for (int rank = 0; rank < x->p; rank++)
        for (int chunk = 0; chunk < x->v; chunk++) {
            int stage = schedule_stage(s, rank, chunk);
            struct stage_cost cost = costs->of_stage != NULL ? costs->of_stage[stage] : costs->chunk;
            const double time[TASK_KINDS] = {cost.f, cost.i, cost.w};
            x->of_stage[stage] = rank * x->tasks + chunk;
            for (int kind = 0; kind < TASK_KINDS; kind++) {
                struct task *q = &x->task[(size_t)rank * (size_t)x->tasks + (size_t)(kind * x->v + chunk)];
                *q = (struct task){.kind = (enum task_kind)kind, .chunk = chunk, .stage = stage};
                q->time = llround(time[kind] * x->ticks_per_unit);
                set_task(x, s, edges, q);
            }
        }
}

static void allocate(struct pipeline *x)
{
    static const char what[] = "a search for a schedule";
    const size_t cells = (size_t)x->stages * (size_t)x->m, p = (size_t)x->p;
    x->task = memory_zeroed(p * (size_t)x->tasks, sizeof *x->task, what);
    x->done = memory_zeroed(p * (size_t)x->tasks, sizeof *x->done, what);
    x->of_stage = memory_zeroed((size_t)x->stages, sizeof *x->of_stage, what);
    x->arrival[0] = memory_zeroed(cells, sizeof *x->arrival[0], what);
    x->arrival[1] = memory_zeroed(cells, sizeof *x->arrival[1], what);
    x->edge_free = memory_zeroed((size_t)x->edges + 1, sizeof *x->edge_free, what);
    x->clock = memory_zeroed(p, sizeof *x->clock, what);
    x->at = memory_zeroed(p, sizeof *x->at, what);
    x->waits = memory_zeroed(p, sizeof *x->waits, what);
    x->ready = memory_zeroed(p, sizeof *x->ready, what);
}

struct pipeline *pipe_create(const struct schedule *placed, const struct cost_table *costs, int limit)
{
    struct edges *edges = edges_create(placed);
    struct pipeline *x = memory_zeroed(1, sizeof *x, "a search for a schedule");
    *x = (struct pipeline){.p = placed->p,
                           .m = placed->m,
                           .v = placed->v,
                           .stages = placed->stages,
                           .tasks = 3 * placed->v,
                           .limit = limit};
    x->length = x->tasks * x->m;
    x->actions = (int64_t)x->p * x->length;
    double longest = longest_time(placed, costs);
    x->ticks_per_unit = longest > 0.0 ? 0x1p24 / longest : 0.0;
    x->wire = llround(costs->wire * x->ticks_per_unit);
    x->latency = llround(costs->latency * x->ticks_per_unit);
    x->edges = edges->count;
    allocate(x);
    set_tasks(x, placed, edges, costs);
    edges_destroy(edges);
    return x;
}

void pipe_destroy(struct pipeline *pipe)
{
    if (pipe == NULL)
        return;
    free(pipe->task);
    free(pipe->done);
    free(pipe->of_stage);
    free(pipe->arrival[0]);
    free(pipe->arrival[1]);
    free(pipe->edge_free);
    free(pipe->clock);
    free(pipe->at);
    free(pipe->waits);
    free(pipe->ready);
    free(pipe);
}

void pipe_reset(struct pipeline *pipe)
{
    size_t cells = (size_t)pipe->stages * (size_t)pipe->m;
    for (int kind = 0; kind < 2; kind++)
        memset(pipe->arrival[kind], 0xff, cells * sizeof *pipe->arrival[kind]); // all bits of -1
    for (int k = 0; k < pipe->m; k++)
        pipe->arrival[TASK_F][k] = 0;
    for (int edge = 0; edge < pipe->edges; edge++)
        pipe->edge_free[edge] = 0;
    memset(pipe->done, 0, (size_t)pipe->p * (size_t)pipe->tasks * sizeof *pipe->done);
    for (int rank = 0; rank < pipe->p; rank++) {
        pipe->clock[rank] = 0;
        pipe->at[rank] = 0;
        pipe->waits[rank] = NONE;
    }
}

int64_t pipe_deliver(struct pipeline *pipe, const struct task *task, int microbatch, int64_t end)
{
    if (task->edge != NONE) {
        int64_t start = end > pipe->edge_free[task->edge] ? end : pipe->edge_free[task->edge];
        pipe->edge_free[task->edge] = start + pipe->wire;
        end = start + pipe->wire + pipe->latency;
    }
    pipe->arrival[task->consumer_kind][(size_t)task->consumer_stage * (size_t)pipe->m + (size_t)microbatch] =
        end;
    return end;
}

/* Runs a rank until it finishes or waits, and wakes the consumers of its results. */
static void run_rank(struct pipeline *x, int rank, const pipe_step *list, int64_t *starts)
{
    int *done = x->done + (size_t)rank * (size_t)x->tasks;
    int64_t clock = x->clock[rank];
    int at = x->at[rank];
    for (; at < x->length; at++) {
        const struct task *q = pipe_task(x, rank, list[at]);
        int k = done[list[at]];
        if (q->kind != TASK_W) {
            int cell = q->stage * x->m + k;
            int64_t arrival = x->arrival[q->kind][cell];
            if (arrival < 0) {
                x->waits[rank] = 2 * cell + (int)q->kind;
                break;
            }
            clock = arrival > clock ? arrival : clock;
        }
        if (starts != NULL)
            starts[at] = clock;
        clock += q->time;
        done[list[at]]++;
        if (q->consumer == NONE)
            continue;
        pipe_deliver(x, q, k, clock);
        if (x->waits[q->consumer] == 2 * (q->consumer_stage * x->m + k) + (int)q->consumer_kind) {
            x->waits[q->consumer] = NONE;
            x->ready[x->ready_count++] = q->consumer;
        }
    }
    x->clock[rank] = clock;
    x->at[rank] = at;
}

int64_t pipe_time(struct pipeline *pipe, const pipe_step *steps, int64_t *starts)
{
    int64_t latest = 0;
    pipe_reset(pipe);
    for (int rank = pipe->p - 1; rank >= 0; rank--)
        pipe->ready[pipe->ready_count++] = rank;
    while (pipe->ready_count > 0) {
        int rank = pipe->ready[--pipe->ready_count];
        size_t from = (size_t)rank * (size_t)pipe->length;
        run_rank(pipe, rank, steps + from, starts != NULL ? starts + from : NULL);
    }
    for (int rank = 0; rank < pipe->p; rank++) {
        if (pipe->at[rank] < pipe->length)
            return PIPE_NEVER;
        latest = pipe->clock[rank] > latest ? pipe->clock[rank] : latest;
    }
    return latest;
}

/* ---- local rules of a rank ---- */

/* Scans a rank's string: returns the peak of held chunks, or -1 if a step precedes its input. */
static int walk(const struct pipeline *x, int rank, const pipe_step *list, int *done)
{
    int held = 0, peak = 0;
    memset(done, 0, (size_t)x->tasks * sizeof *done);
    for (int at = 0; at < x->length; at++) {
        const struct task *q = pipe_task(x, rank, list[at]);
        int k = done[list[at]]++;
        held += q->kind == TASK_F ? 1 : 0;
        peak = held > peak ? held : peak;
        held -= q->kind == TASK_W ? 1 : 0;
        if (q->kind != TASK_F && done[list[at] - x->v] <= k)
            return -1;
    }
    return peak;
}

bool steps_allowed(struct pipeline *pipe, int rank, const pipe_step *list)
{
    int peak = walk(pipe, rank, list, pipe->done);
    return peak >= 0 && peak <= pipe->limit;
}

/* ---- conversion to and from lists ---- */

void steps_of_schedule(const struct pipeline *pipe, const struct schedule *schedule, pipe_step *steps)
{
    for (int rank = 0; rank < pipe->p; rank++) {
        pipe_step *to = steps + (size_t)rank * (size_t)pipe->length;
        for (int i = 0; i < schedule->ranks[rank].count; i++) {
            struct action a = schedule->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            int chunk = schedule_chunk(schedule, a.stage, a.microbatch);
            if (traits->forward)
                *to++ = (pipe_step)(TASK_F * pipe->v + chunk);
            if (traits->backward_input)
                *to++ = (pipe_step)(TASK_I * pipe->v + chunk);
            if (traits->backward_weight)
                *to++ = (pipe_step)(TASK_W * pipe->v + chunk);
        }
    }
}

void steps_into_schedule(struct pipeline *pipe, const pipe_step *steps, bool fuse, struct schedule *out)
{
    static const enum action_kind kinds[TASK_KINDS] = {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT};
    memset(pipe->done, 0, (size_t)pipe->p * (size_t)pipe->tasks * sizeof *pipe->done);
    for (int rank = 0; rank < pipe->p; rank++) {
        const pipe_step *list = steps + (size_t)rank * (size_t)pipe->length;
        int *done = pipe->done + (size_t)rank * (size_t)pipe->tasks;
        for (int at = 0; at < pipe->length; at++) {
            const struct task *q = pipe_task(pipe, rank, list[at]);
            int k = done[list[at]]++, weight = list[at] + pipe->v;
            bool both = fuse && q->kind == TASK_I && at + 1 < pipe->length && list[at + 1] == weight &&
                        done[weight] == k;
            schedule_add(out, both ? BACKWARD : kinds[q->kind], q->stage, k);
            if (both) {
                done[weight]++;
                at++;
            }
        }
    }
}
