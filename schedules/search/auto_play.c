// SPDX-License-Identifier: Apache-2.0
/* Greedy simulation of the pipeline. Whenever a rank is free it runs an I or an F whose input is available.
 * Otherwise it runs a W, if that ends before the next input arrives (as far as known), or if only a W
 * releases the memory for an F. So W fills the bubbles and is delayed otherwise: the heuristic of 2401.10241.
 * The free parameters form a rule: how many F a rank may be ahead of its I, how much it holds until its W,
 * the priority if both F and I are available, and how much of a W must fit. First some rules that suit the
 * round trip through the pipeline are tried, then the best one is mutated until the budget is spent.
 *
 * Caution: a rank that fills its memory with first chunks has none for their second chunks, and deadlocks. So
 * chunk c is admitted only if one slot remains free for each chunk after c. The oldest microbatch can then
 * always proceed: on no rank can younger ones hold the memory that it needs. */
#include "schedules/search/auto_pipe.h"

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

struct game {
    struct pipe *pipe;
    struct rule rule;
    int *ahead, *held; // [p]
    int64_t *next;     // [p] time of a rank's next decision
    int *soonest;      // tournament tree of ranks, each node the earlier of its two children: the root is
                       // soonest[1]
    int leaves;
    pipe_step *steps; // [p][length]
    int64_t *turn;    // [p] time from a rank's first F to its first I
    int64_t *work;    // [p] for one microbatch
    struct philox dice;
    uint64_t thrown;
};

static void decide_at(struct game *g, int rank, int64_t when)
{
    g->next[rank] = when;
    for (int node = (rank + g->leaves) / 2; node >= 1; node /= 2) {
        int a = g->soonest[2 * node], b = g->soonest[2 * node + 1];
        g->soonest[node] = g->next[b] < g->next[a] ? b : a;
    }
}

static void set_board(struct game *g)
{
    struct pipe *x = g->pipe;
    pipe_reset(x);
    for (int rank = 0; rank < g->leaves; rank++) {
        g->soonest[g->leaves + rank] = rank;
        g->next[rank] = rank < x->p ? 0 : PIPE_NEVER;
    }
    for (int node = g->leaves - 1; node >= 1; node--)
        g->soonest[node] = g->soonest[2 * node];
    for (int rank = 0; rank < x->p; rank++)
        g->ahead[rank] = g->held[rank] = 0;
}

/* State visible to a rank when it decides. */
struct view {
    int forward, backward, weight; // candidate step, or NOBODY
    bool wants_memory;             // an F is available, and only memory is missing
    int64_t soon;                  // arrival time of the next input that it could use
};

static void look_at_input(const struct game *g, const struct part *q, int step, int64_t now, struct view *out)
{
    const struct pipe *x = g->pipe;
    const struct rule *rule = &g->rule;
    int k = x->done[(size_t)q->rank * (size_t)x->parts + (size_t)step], after = x->v - 1 - q->chunk;
    int64_t there = k < x->m ? x->there[q->kind][(size_t)q->stage * (size_t)x->m + (size_t)k] : -1;
    if (there < 0)
        return;
    bool forward = q->kind == PART_F;
    if (forward && g->ahead[q->rank] + after >= rule->ahead[q->rank])
        return;
    if (forward && g->held[q->rank] + after >= rule->hold[q->rank]) {
        out->wants_memory = out->wants_memory || there <= now;
        return;
    }
    if (there > now) {
        out->soon = there < out->soon ? there : out->soon;
        return;
    }
    int *chosen = forward ? &out->forward : &out->backward;
    bool deep = forward ? rule->deep_forward : rule->deep_backward;
    if (*chosen == NOBODY || deep)
        *chosen = step;
}

static struct view look(const struct game *g, int rank, int64_t now)
{
    const struct pipe *x = g->pipe;
    const int *done = x->done + (size_t)rank * (size_t)x->parts;
    struct view view = {.forward = NOBODY, .backward = NOBODY, .weight = NOBODY, .soon = PIPE_NEVER};
    int most = 0;
    for (int step = 0; step < 2 * x->v; step++)
        look_at_input(g, pipe_part(x, rank, step), step, now, &view);
    for (int step = 2 * x->v; step < x->parts; step++)
        if (done[step - x->v] - done[step] > most) {
            most = done[step - x->v] - done[step];
            view.weight = step;
        }
    return view;
}

/* Returns the step that a rank runs now, or NOBODY, and then the time of the next decision. */
static int choose(const struct game *g, int rank, int64_t now, int64_t *again)
{
    struct view view = look(g, rank, now);
    if (view.forward != NOBODY && (g->rule.forward_first || view.backward == NOBODY))
        return view.forward;
    if (view.backward != NOBODY)
        return view.backward;
    *again = view.soon;
    if (view.weight == NOBODY)
        return NOBODY;
    int64_t fits = pipe_part(g->pipe, rank, view.weight)->time / 100 * g->rule.fit;
    return view.wants_memory || view.soon == PIPE_NEVER || now + fits <= view.soon ? view.weight : NOBODY;
}

static void take(struct game *g, int rank, int step, int64_t now)
{
    struct pipe *x = g->pipe;
    const struct part *q = pipe_part(x, rank, step);
    int k = x->done[(size_t)rank * (size_t)x->parts + (size_t)step]++;
    rank_steps(x, g->steps, rank)[x->at[rank]++] = (pipe_step)step;
    g->ahead[rank] += q->kind == PART_F ? 1 : q->kind == PART_I ? -1 : 0;
    g->held[rank] += q->kind == PART_F ? 1 : q->kind == PART_W ? -1 : 0;
    x->clock[rank] = now + q->time;
    decide_at(g, rank, x->at[rank] < x->length ? x->clock[rank] : PIPE_NEVER);
    if (q->feeds == NOBODY)
        return;
    int64_t there = pipe_deliver(x, q, k, x->clock[rank]);
    if (there < x->clock[q->feeds])
        there = x->clock[q->feeds];
    if (there < g->next[q->feeds] && x->at[q->feeds] < x->length)
        decide_at(g, q->feeds, there);
}

/* Returns the makespan of one simulation, its steps in g->steps; PIPE_NEVER as soon as it exceeds `longest`.
 * */
static int64_t play(struct game *g, int64_t longest)
{
    struct pipe *x = g->pipe;
    int64_t latest = 0, left = x->actions;
    set_board(g);
    while (left > 0) {
        int rank = g->soonest[1];
        int64_t now = g->next[rank], again = PIPE_NEVER;
        if (now == PIPE_NEVER)
            return PIPE_NEVER;
        int step = choose(g, rank, now, &again);
        if (step == NOBODY) {
            decide_at(g, rank, again);
            continue;
        }
        take(g, rank, step, now);
        latest = x->clock[rank] > latest ? x->clock[rank] : latest;
        if (latest > longest)
            return PIPE_NEVER;
        left--;
    }
    return latest;
}

/* ---- rules ---- */

static int between(int64_t value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

static int dice(struct game *g, int sides)
{
    return (int)(philox_word(g->dice, 0, g->thrown++) % (uint32_t)sides);
}

/* Measures round trip and work of every rank, for a single microbatch. */
static void measure(struct game *g)
{
    const struct pipe *x = g->pipe;
    int64_t now = 0;
    for (int rank = 0; rank < x->p; rank++)
        g->turn[rank] = g->work[rank] = 0;
    for (int n = 0; n < 2 * x->stages; n++) {
        bool forward = n < x->stages;
        const struct part *q =
            &x->part[x->of_stage[forward ? n : 2 * x->stages - 1 - n] + (forward ? 0 : x->v)];
        if (forward && q->chunk == 0)
            g->turn[q->rank] = -now;
        if (!forward && q->chunk == x->v - 1)
            g->turn[q->rank] += now;
        g->work[q->rank] += q->time + (forward ? 0 : q[x->v].time);
        now += q->time + (q->edge != NOBODY ? x->wire + x->latency : 0);
    }
}

/* As many F ahead as the round trip takes, times `percent`; all available memory. */
static void set_rule(struct game *g, int percent, int more)
{
    const struct pipe *x = g->pipe;
    for (int rank = 0; rank < x->p; rank++) {
        int64_t work = g->work[rank] / x->v + 1;
        int64_t ahead = percent == 0 ? x->limit : (g->turn[rank] / 100 * percent + work - 1) / work + more;
        g->rule.ahead[rank] = between(ahead, x->v, x->limit);
        g->rule.hold[rank] = x->limit;
    }
}

/* Rule `index` of the initial rules, the most promising first; returns false after the last. */
static bool first_rule(struct game *g, int index)
{
    static const int percents[] = {0, 100, 150, 200, 300, 125};
    static const int fits[] = {100, 60, 20};
    enum { PERCENTS = sizeof percents / sizeof *percents, FITS = sizeof fits / sizeof *fits };
    int way = index, many = g->pipe->v > 1;
    g->rule.forward_first = way % 2 == 1;
    way /= 2;
    g->rule.deep_forward = many ? way % 2 == 0 : true;
    way /= many ? 2 : 1;
    g->rule.deep_backward = many ? way % 2 == 1 : true;
    way /= many ? 2 : 1;
    g->rule.fit = fits[way % FITS];
    way /= FITS;
    int more = way / PERCENTS;
    set_rule(g, percents[way % PERCENTS], more);
    return more < 2;
}

/* Mutates one parameter of the rule, or one parameter of several ranks. */
static void change_rule(struct game *g)
{
    const struct pipe *x = g->pipe;
    struct rule *rule = &g->rule;
    int what = dice(g, 8), from = dice(g, x->p), to = from + 1, by = dice(g, 2) == 0 ? 1 : -1;
    if (dice(g, 2) == 0)
        to = x->p;
    if (dice(g, 4) == 0)
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
        rule->fit = 10 * dice(g, 14);
        return;
    default:
        for (int rank = from; rank < to; rank++) {
            int *value = what < 7 ? &rule->ahead[rank] : &rule->hold[rank];
            *value = between((int64_t)*value + by, x->v, x->limit);
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

static int64_t search(struct game *g, struct rule *best_rule, int64_t known, int64_t goal, int64_t budget,
                      pipe_step *steps)
{
    struct pipe *x = g->pipe;
    int64_t best = known, of_rule = PIPE_NEVER, plays = budget / x->actions + 1;
    bool first = true;
    for (int64_t n = 0; n < plays && best > goal; n++) {
        first = first && first_rule(g, (int)n);
        if (!first) {
            copy_rule(&g->rule, best_rule, x->p);
            change_rule(g);
        }
        int64_t time = play(g, of_rule);
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

static bool game_init(struct game *g, struct rule *best)
{
    size_t p = (size_t)g->pipe->p;
    g->leaves = 1;
    while (g->leaves < g->pipe->p)
        g->leaves *= 2;
    g->rule.ahead = calloc(4 * p, sizeof *g->rule.ahead);
    g->ahead = calloc(2 * p, sizeof *g->ahead);
    g->next = calloc((size_t)g->leaves, sizeof *g->next);
    g->soonest = calloc(2 * (size_t)g->leaves, sizeof *g->soonest);
    g->steps = calloc((size_t)g->pipe->actions, sizeof *g->steps);
    g->turn = calloc(2 * p, sizeof *g->turn);
    if (!g->rule.ahead || !g->ahead || !g->next || !g->soonest || !g->steps || !g->turn)
        return false;
    g->rule.hold = g->rule.ahead + p;
    best->ahead = g->rule.ahead + 2 * p;
    best->hold = g->rule.ahead + 3 * p;
    g->held = g->ahead + p;
    g->work = g->turn + p;
    return true;
}

int64_t play_many(struct pipe *x, int64_t known, int64_t goal, int64_t budget, pipe_step *steps)
{
    struct game g = {.pipe = x, .dice = philox_named(1, "auto.play")};
    struct rule best = {0};
    if (game_init(&g, &best)) {
        measure(&g);
        known = search(&g, &best, known, goal, budget, steps);
    }
    free(g.rule.ahead);
    free(g.ahead);
    free(g.next);
    free(g.soonest);
    free(g.steps);
    free(g.turn);
    return known;
}
