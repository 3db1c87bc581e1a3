// SPDX-License-Identifier: Apache-2.0
/* Greedy simulation of the pipeline. Whenever a rank is free it runs an I or an F whose input is available.
 * Otherwise it runs a W, if that ends before the next input arrives (as far as known), or if only a W
 * releases the memory for an F. So W fills the bubbles and is delayed otherwise: the heuristic of 2401.10241.
 * The free parameters form a rule: how many F a rank may be ahead of its I, how many it holds until their W,
 * the priority if both F and I are available, and how much of a W must fit. First some rules that suit the
 * round trip through the pipeline are tried, then the best one is mutated until the budget is spent.
 *
 * Caution: a rank that fills its memory with first chunks has none for their second chunks, and deadlocks. So
 * chunk c is admitted only if one slot remains free for each chunk after c. The oldest microbatch can then
 * always proceed: on no rank can younger ones hold the memory that it needs. */
#include "schedules/search/auto.h"

#include "base/memory.h"
#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

struct rule {
    int *ahead;         // [p] limit of F not followed by their I
    int *hold;          // [p] limit of F not followed by their W
    bool forward_first; // priority if an F and an I are available
    bool deep_forward;  // of several F: that of the last chunk, else of the first
    bool deep_backward;
    int fit; // fraction of a W that must fit before the next input arrives, in percent
};

struct greedy {
    struct pipeline *pipe;
    struct rule rule;
    int *ahead, *held; // [p]
    int64_t *next;     // [p] time of a rank's next decision
    int *earliest;     // tournament tree of ranks, each node the earlier of its two children: the root is
                       // earliest[1]
    int leaves;
    pipe_step *steps;    // [p][length]
    int64_t *round_trip; // [p] time from a rank's first F to its first I
    int64_t *work;       // [p] for one microbatch
    struct philox rng;
    uint64_t draws;
};

static void decide_at(struct greedy *g, int rank, int64_t when)
{
    g->next[rank] = when;
    for (int node = (rank + g->leaves) / 2; node >= 1; node /= 2) {
        int a = g->earliest[2 * node], b = g->earliest[2 * node + 1];
        g->earliest[node] = g->next[b] < g->next[a] ? b : a;
    }
}

static void reset_run(struct greedy *g)
{
    struct pipeline *x = g->pipe;
    pipe_reset(x);
    for (int rank = 0; rank < g->leaves; rank++) {
        g->earliest[g->leaves + rank] = rank;
        g->next[rank] = rank < x->p ? 0 : PIPE_NEVER;
    }
    for (int node = g->leaves - 1; node >= 1; node--)
        g->earliest[node] = g->earliest[2 * node];
    for (int rank = 0; rank < x->p; rank++)
        g->ahead[rank] = g->held[rank] = 0;
}

/* State visible to a rank when it decides. */
struct view {
    int forward, backward, weight; // candidate step, or NONE
    bool lacks_memory;             // an F is available, and only memory is missing
    int64_t soon;                  // arrival time of the next input that it could use
};

static void observe_input(const struct greedy *g, const struct task *q, int step, int64_t now,
                          struct view *out)
{
    const struct pipeline *x = g->pipe;
    const struct rule *rule = &g->rule;
    int k = x->done[(size_t)q->rank * (size_t)x->tasks + (size_t)step], after = x->v - 1 - q->chunk;
    int64_t arrival = k < x->m ? x->arrival[q->kind][(size_t)q->stage * (size_t)x->m + (size_t)k] : -1;
    if (arrival < 0)
        return;
    bool forward = q->kind == TASK_F;
    if (forward && g->ahead[q->rank] + after >= rule->ahead[q->rank])
        return;
    if (forward && g->held[q->rank] + after >= rule->hold[q->rank]) {
        out->lacks_memory = out->lacks_memory || arrival <= now;
        return;
    }
    if (arrival > now) {
        out->soon = arrival < out->soon ? arrival : out->soon;
        return;
    }
    int *chosen = forward ? &out->forward : &out->backward;
    bool deep = forward ? rule->deep_forward : rule->deep_backward;
    if (*chosen == NONE || deep)
        *chosen = step;
}

static struct view observe(const struct greedy *g, int rank, int64_t now)
{
    const struct pipeline *x = g->pipe;
    const int *done = x->done + (size_t)rank * (size_t)x->tasks;
    struct view view = {.forward = NONE, .backward = NONE, .weight = NONE, .soon = PIPE_NEVER};
    int largest_backlog = 0;
    for (int step = 0; step < 2 * x->v; step++)
        observe_input(g, pipe_task(x, rank, step), step, now, &view);
    for (int step = 2 * x->v; step < x->tasks; step++)
        if (done[step - x->v] - done[step] > largest_backlog) {
            largest_backlog = done[step - x->v] - done[step];
            view.weight = step;
        }
    return view;
}

/* Returns the step that a rank runs now; NONE if it waits, with the time of the next decision in
 * `retry_at`. */
static int choose_step(const struct greedy *g, int rank, int64_t now, int64_t *retry_at)
{
    struct view view = observe(g, rank, now);
    if (view.forward != NONE && (g->rule.forward_first || view.backward == NONE))
        return view.forward;
    if (view.backward != NONE)
        return view.backward;
    *retry_at = view.soon;
    if (view.weight == NONE)
        return NONE;
    int64_t fits = pipe_task(g->pipe, rank, view.weight)->time / 100 * g->rule.fit;
    return view.lacks_memory || view.soon == PIPE_NEVER || now + fits <= view.soon ? view.weight : NONE;
}

static void run_step(struct greedy *g, int rank, int step, int64_t now)
{
    struct pipeline *x = g->pipe;
    const struct task *q = pipe_task(x, rank, step);
    int k = x->done[(size_t)rank * (size_t)x->tasks + (size_t)step]++;
    rank_steps(x, g->steps, rank)[x->at[rank]++] = (pipe_step)step;
    g->ahead[rank] += q->kind == TASK_F ? 1 : q->kind == TASK_I ? -1 : 0;
    g->held[rank] += q->kind == TASK_F ? 1 : q->kind == TASK_W ? -1 : 0;
    x->clock[rank] = now + q->time;
    decide_at(g, rank, x->at[rank] < x->length ? x->clock[rank] : PIPE_NEVER);
    if (q->consumer == NONE)
        return;
    int64_t arrival = pipe_deliver(x, q, k, x->clock[rank]);
    if (arrival < x->clock[q->consumer])
        arrival = x->clock[q->consumer];
    if (arrival < g->next[q->consumer] && x->at[q->consumer] < x->length)
        decide_at(g, q->consumer, arrival);
}

/* Returns the makespan under g->rule, and its steps in g->steps; PIPE_NEVER as soon as it exceeds
 * `longest`. */
static int64_t run_rule(struct greedy *g, int64_t longest)
{
    struct pipeline *x = g->pipe;
    int64_t latest = 0, left = x->actions;
    reset_run(g);
    while (left > 0) {
        int rank = g->earliest[1];
        int64_t now = g->next[rank], retry_at = PIPE_NEVER;
        if (now == PIPE_NEVER)
            return PIPE_NEVER;
        int step = choose_step(g, rank, now, &retry_at);
        if (step == NONE) {
            decide_at(g, rank, retry_at);
            continue;
        }
        run_step(g, rank, step, now);
        latest = x->clock[rank] > latest ? x->clock[rank] : latest;
        if (latest > longest)
            return PIPE_NEVER;
        left--;
    }
    return latest;
}

/* ---- rules ---- */

static int clamp(int64_t value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

static int random_below(struct greedy *g, int bound)
{
    return (int)(philox_word(g->rng, 0, g->draws++) % (uint32_t)bound);
}

/* Measures round trip and work of every rank, for a single microbatch. */
static void measure(struct greedy *g)
{
    const struct pipeline *x = g->pipe;
    int64_t now = 0;
    for (int rank = 0; rank < x->p; rank++)
        g->round_trip[rank] = g->work[rank] = 0;
    for (int n = 0; n < 2 * x->stages; n++) {
        bool forward = n < x->stages;
        const struct task *q =
            &x->task[x->of_stage[forward ? n : 2 * x->stages - 1 - n] + (forward ? 0 : x->v)];
        if (forward && q->chunk == 0)
            g->round_trip[q->rank] = -now;
        if (!forward && q->chunk == x->v - 1)
            g->round_trip[q->rank] += now;
        g->work[q->rank] += q->time + (forward ? 0 : q[x->v].time);
        now += q->time + (q->edge != NONE ? x->wire + x->latency : 0);
    }
}

/* Sets the number of F ahead to what fills `percent` of the round trip, plus `more`; uses all memory. */
static void set_rule(struct greedy *g, int percent, int more)
{
    const struct pipeline *x = g->pipe;
    for (int rank = 0; rank < x->p; rank++) {
        int64_t work = g->work[rank] / x->v + 1;
        int64_t ahead =
            percent == 0 ? x->limit : (g->round_trip[rank] / 100 * percent + work - 1) / work + more;
        g->rule.ahead[rank] = clamp(ahead, x->v, x->limit);
        g->rule.hold[rank] = x->limit;
    }
}

/* Sets rule `index` of the initial rules, the most promising first; returns false after the last. */
static bool initial_rule(struct greedy *g, int index)
{
    static const int percents[] = {0, 100, 150, 200, 300, 125};
    static const int fits[] = {100, 60, 20};
    enum { PERCENTS = sizeof percents / sizeof *percents, FITS = sizeof fits / sizeof *fits };
    int variant = index, several_chunks = g->pipe->v > 1;
    g->rule.forward_first = variant % 2 == 1;
    variant /= 2;
    g->rule.deep_forward = several_chunks ? variant % 2 == 0 : true;
    variant /= several_chunks ? 2 : 1;
    g->rule.deep_backward = several_chunks ? variant % 2 == 1 : true;
    variant /= several_chunks ? 2 : 1;
    g->rule.fit = fits[variant % FITS];
    variant /= FITS;
    int more = variant / PERCENTS;
    set_rule(g, percents[variant % PERCENTS], more);
    return more < 2;
}

/* Mutates one parameter of the rule, or one parameter of several ranks. */
static void mutate_rule(struct greedy *g)
{
    const struct pipeline *x = g->pipe;
    struct rule *rule = &g->rule;
    int what = random_below(g, 8), from = random_below(g, x->p), to = from + 1,
        by = random_below(g, 2) == 0 ? 1 : -1;
    if (random_below(g, 2) == 0)
        to = x->p;
    if (random_below(g, 4) == 0)
        from = 0;
    switch (what) {
    case 0:
        rule->forward_first = !rule->forward_first;
        return;
    case 1:
        rule->deep_forward = !rule->deep_forward;
        return;
    case 2:
        rule->deep_backward = !rule->deep_backward;
        return;
    case 3:
        rule->fit = 10 * random_below(g, 14);
        return;
    default:
        for (int rank = from; rank < to; rank++) {
            int *value = what < 7 ? &rule->ahead[rank] : &rule->hold[rank];
            *value = clamp((int64_t)*value + by, x->v, x->limit);
        }
    }
}

static void copy_rule(struct rule *to, const struct rule *from, int p)
{
    int *ahead = to->ahead, *hold = to->hold;
    memcpy(ahead, from->ahead, (size_t)p * sizeof *ahead);
    memcpy(hold, from->hold, (size_t)p * sizeof *hold);
    *to = *from;
    to->ahead = ahead;
    to->hold = hold;
}

static int64_t search(struct greedy *g, struct rule *best_rule, int64_t known, int64_t goal, int64_t budget,
                      pipe_step *steps)
{
    struct pipeline *x = g->pipe;
    int64_t best = known, of_rule = PIPE_NEVER, runs = budget / x->actions + 1;
    bool first = true;
    for (int64_t n = 0; n < runs && best > goal; n++) {
        first = first && initial_rule(g, (int)n);
        if (!first) {
            copy_rule(&g->rule, best_rule, x->p);
            mutate_rule(g);
        }
        int64_t time = run_rule(g, of_rule);
        if (time > of_rule || time == PIPE_NEVER)
            continue;
        of_rule = time;
        copy_rule(best_rule, &g->rule, x->p);
        if (time >= best)
            continue;
        best = time;
        memcpy(steps, g->steps, (size_t)x->actions * sizeof *steps);
    }
    return best;
}

static void greedy_init(struct greedy *g, struct rule *best)
{
    static const char what[] = "a search for a schedule";
    size_t p = (size_t)g->pipe->p;
    g->leaves = 1;
    while (g->leaves < g->pipe->p)
        g->leaves *= 2;
    g->rule.ahead = memory_zeroed(4 * p, sizeof *g->rule.ahead, what);
    g->ahead = memory_zeroed(2 * p, sizeof *g->ahead, what);
    g->next = memory_zeroed((size_t)g->leaves, sizeof *g->next, what);
    g->earliest = memory_zeroed(2 * (size_t)g->leaves, sizeof *g->earliest, what);
    g->steps = memory_zeroed((size_t)g->pipe->actions, sizeof *g->steps, what);
    g->round_trip = memory_zeroed(2 * p, sizeof *g->round_trip, what);
    g->rule.hold = g->rule.ahead + p;
    best->ahead = g->rule.ahead + 2 * p;
    best->hold = g->rule.ahead + 3 * p;
    g->held = g->ahead + p;
    g->work = g->round_trip + p;
}

int64_t greedy_search(struct pipeline *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps)
{
    struct greedy g = {.pipe = pipe, .rng = philox_named(1, "auto.play")};
    struct rule best = {0};
    greedy_init(&g, &best);
    measure(&g);
    known = search(&g, &best, known, goal, budget, steps);
    free(g.rule.ahead);
    free(g.ahead);
    free(g.next);
    free(g.earliest);
    free(g.steps);
    free(g.round_trip);
    return known;
}
