// SPDX-License-Identifier: Apache-2.0
#include "schedules/bound.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <math.h>
#include <stdlib.h>

/* Shortest and longest time of a stage: a B may be shorter or longer than its halves. */
struct range {
    double f, i, w, both;
    double max_i, max_w, max_both;
};

/* Times of a single microbatch, alone in the pipeline. */
struct single_pass {
    const struct schedule *s;
    struct range *cost; // [stages]
    double *forward;    // [stages] F(s)
    double *backward;   // [stages] I(s)
    double *end;        // [stages] end(s)
    double *fillers;    // [v] durations of a rank's chunks
};

static struct range range_of(const struct cost_table *costs, int stage)
{
    struct stage_cost c = costs->of_stage != NULL ? costs->of_stage[stage] : costs->chunk;
    double halves = c.i + c.w, whole = costs->b > 0.0 ? costs->b * halves : halves;
    return (struct range){.f = c.f,
                          .i = fmin(c.i, whole),
                          .w = fmin(c.w, whole),
                          .both = fmin(halves, whole),
                          .max_i = fmax(c.i, whole - c.w),
                          .max_w = c.w,
                          .max_both = fmax(halves, whole)};
}

static void compute_single_pass(struct single_pass *t, const struct cost_table *costs)
{
    const struct schedule *s = t->s;
    double message = costs->latency + costs->wire;
    int last = s->stages - 1;
    for (int stage = 0; stage <= last; stage++)
        t->cost[stage] = range_of(costs, stage);
    t->forward[0] = 0.0;
    for (int stage = 1; stage <= last; stage++)
        t->forward[stage] = t->forward[stage - 1] + t->cost[stage - 1].f +
                            (crosses_ranks(s, stage, 0, false) ? message : 0.0);
    t->backward[last] = t->forward[last] + t->cost[last].f;
    for (int stage = last - 1; stage >= 0; stage--)
        t->backward[stage] = t->backward[stage + 1] + t->cost[stage + 1].i +
                             (crosses_ranks(s, stage, 0, true) ? message : 0.0);
    t->end[0] = t->cost[0].both;
    for (int stage = 1; stage <= last; stage++)
        t->end[stage] =
            fmax(t->cost[stage].both, t->backward[stage - 1] - t->backward[stage] + t->end[stage - 1]);
}

/* Returns the largest total time of `count` elements of t->fillers, each used up to m times. */
static double longest(const struct single_pass *t, int count)
{
    double sum = 0.0;
    for (int n = 0; n < t->s->v && count > 0; n++) {
        int best = 0;
        for (int chunk = 1; chunk < t->s->v; chunk++)
            best = t->fillers[chunk] > t->fillers[best] ? chunk : best;
        int times = count < t->s->m ? count : t->s->m;
        sum += times * t->fillers[best];
        count -= times;
        t->fillers[best] = -1.0;
    }
    return sum;
}

enum filler { BY_F, BY_BOTH, BY_W };

static double longest_by(const struct single_pass *t, int rank, enum filler what, int count)
{
    for (int chunk = 0; chunk < t->s->v; chunk++) {
        const struct range *c = &t->cost[schedule_stage(t->s, rank, chunk)];
        t->fillers[chunk] = what == BY_F ? c->f : what == BY_W ? c->max_w : c->max_both;
    }
    return longest(t, count);
}

static double by_work(const struct single_pass *t, int rank, int limit)
{
    const struct schedule *s = t->s;
    int a = schedule_stage(s, rank, 0), z = schedule_stage(s, rank, s->v - 1);
    double work = 0.0;
    for (int chunk = 0; chunk < s->v; chunk++) {
        const struct range *c = &t->cost[schedule_stage(s, rank, chunk)];
        work += s->m * (c->f + c->both);
    }
    double fill = fmax(0.0, t->backward[z] - t->forward[a] - longest_by(t, rank, BY_F, limit));
    double drain =
        t->backward[z] - t->forward[z] + t->end[z] - t->cost[z].f - longest_by(t, rank, BY_BOTH, limit);
    double drain_inputs = t->end[a] - t->cost[a].max_i - longest_by(t, rank, BY_W, limit);
    drain = fmax(0.0, fmax(drain, drain_inputs));
    return t->forward[a] + work + (limit < (int64_t)s->m * s->v ? fill + drain : fmax(fill, drain));
}

static double by_round_trips(const struct single_pass *t, int rank, int limit)
{
    const struct schedule *s = t->s;
    int a = schedule_stage(s, rank, 0), z = schedule_stage(s, rank, s->v - 1), n = limit - s->v + 1;
    double round_trip = t->backward[z] + t->cost[z].both - t->forward[a];
    return (s->m - 1) % n * t->cost[a].f + (s->m - 1) / n * round_trip + t->backward[a] + t->end[a];
}

static double by_area(const struct single_pass *t, int rank, int limit)
{
    const struct schedule *s = t->s;
    double area = 0.0, f = INFINITY, w = INFINITY, least = INFINITY;
    for (int chunk = 0; chunk < s->v; chunk++) {
        int stage = schedule_stage(s, rank, chunk);
        const struct range *c = &t->cost[stage];
        area += s->m * (t->backward[stage] - t->forward[stage] + c->both);
        f = fmin(f, c->f);
        w = fmin(w, c->w);
    }
    for (int n = 1; n <= limit; n++)
        least = fmin(least, area / n + (f + w) * (n - 1) / 2.0);
    return t->forward[schedule_stage(s, rank, 0)] + least;
}

static double by_rest(const struct single_pass *t, int rank)
{
    const struct schedule *s = t->s;
    double rest = 0.0, bound = 0.0;
    for (int chunk = 0; chunk < s->v; chunk++) {
        int stage = schedule_stage(s, rank, chunk);
        rest += s->m * t->cost[stage].both;
        bound = fmax(bound, t->backward[stage] + rest);
    }
    return bound;
}

enum status schedule_bound(const struct schedule *placed, const struct cost_table *costs, int limit,
                           double *out)
{
    if (placed->chunks != placed->v)
        return fail(NOT_SUPPORTED, "no lower bound for schedules with replicas of stages");
    size_t stages = (size_t)placed->stages;
    AUTO_FREE double *times = memory_zeroed(3 * stages + (size_t)placed->v, sizeof *times, "a bound");
    AUTO_FREE struct range *cost = memory_zeroed(stages, sizeof *cost, "a bound");
    struct single_pass t = {.s = placed, .cost = cost};
    t.forward = times;
    t.backward = times + stages;
    t.end = times + 2 * stages;
    t.fillers = times + 3 * stages;
    compute_single_pass(&t, costs);
    if (limit > (int64_t)placed->m * placed->v)
        limit = placed->m * placed->v;
    double bound = 0.0;
    for (int rank = 0; rank < placed->p; rank++) {
        bound = fmax(bound, fmax(by_work(&t, rank, limit), by_round_trips(&t, rank, limit)));
        bound = fmax(bound, fmax(by_area(&t, rank, limit), by_rest(&t, rank)));
    }
    *out = bound;
    return OK;
}
