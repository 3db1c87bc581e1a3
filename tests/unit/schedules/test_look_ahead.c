// SPDX-License-Identifier: Apache-2.0
#include "schedules/look_ahead.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>
#include <stdlib.h>

static bool is_ahead(struct action a)
{
    return a.kind == FORWARD || a.kind == SEND_ACTIVATION || a.kind == RECV_ACTIVATION;
}

/* An independent simulation: ranks run, a message is transferred when sender and receiver are both at it,
 * and a rank at any other unready action waits. */
static void run_until_stuck(const struct schedule *s, int *at)
{
    bool moved = true;
    for (int rank = 0; rank < s->p; rank++)
        at[rank] = 0;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < s->p; rank++) {
            struct action a = s->ranks[rank].actions[at[rank]]; // a list ends with a backward
            if (!is_ahead(a))
                continue;
            if (a.kind != FORWARD) {
                struct action other = s->ranks[a.peer].actions[at[a.peer]];
                int up = a.kind == SEND_ACTIVATION ? 1 : -1;
                if (!is_ahead(other) || other.kind == FORWARD || other.kind == a.kind || other.peer != rank ||
                    other.stage != a.stage + up || other.microbatch != a.microbatch)
                    continue;
                at[a.peer]++;
            }
            at[rank]++;
            moved = true;
        }
    }
}

static void expect_longest(struct schedule_options options)
{
    struct schedule *s = build_with(options);
    int *count = calloc((size_t)s->p, sizeof *count), *at = calloc((size_t)s->p, sizeof *at);
    schedule_look_ahead(s, count);
    run_until_stuck(s, at);
    for (int rank = 0; rank < s->p; rank++)
        cr_assert_eq(count[rank], at[rank], "%s p %d m %d v %d, rank %d: %d, not %d", options.name, s->p,
                     s->m, s->v, rank, count[rank], at[rank]);
    free(count);
    free(at);
    schedule_destroy(s);
}

Test(look_ahead, is_the_longest_prefix_without_unmatched_messages)
{
    struct rng rng = {.generator = philox_named(1, "look ahead")};
    for (int index = 0; schedule_about(index) != NULL; index++)
        for (int i = 0; i < cases(300); i++)
            expect_longest(random_options(&rng, index, 9, 20));
}

/* Forward passes run before the step is final. */
static void expect_forwards(const char *name, int p, int m, int v, const int *forwards)
{
    struct schedule *s = build(name, p, m, v);
    int count[8];
    schedule_look_ahead(s, count);
    for (int rank = 0; rank < p; rank++) {
        int found = 0;
        for (int i = 0; i < count[rank]; i++)
            found += s->ranks[rank].actions[i].kind == FORWARD;
        cr_assert_eq(found, forwards[rank], "%s rank %d: %d", name, rank, found);
    }
    schedule_destroy(s);
}

Test(look_ahead, known_schedules)
{
    expect_forwards("1f1b", 4, 8, 1, (const int[]){4, 3, 2, 1});
    expect_forwards("zb-h2", 4, 8, 1, (const int[]){6, 4, 3, 1}); // of 7 5 3 1 before the first backward
    expect_forwards("zb-v", 4, 8, 2, (const int[]){8, 8, 8, 8});
    expect_forwards("gpipe", 2, 3, 1, (const int[]){3, 3});
    expect_forwards("1f1b", 3, 1, 1, (const int[]){1, 1, 1});
}

/* ---- speedup: many consecutive steps ---- */

enum { PERIOD_STEPS = 8, PERIOD_RANKS = 8 };

/* A clock per rank over all steps. f = i = w = 1 for a whole rank; a message, and a report to the next
 * rank, take `message`, an all-reduce twice that; an update takes `update`, with its copy `copied`. */
struct clocks {
    const struct schedule *s;
    bool validated;
    double message, update, copied;
    int cut[PERIOD_RANKS];
    double clock[PERIOD_RANKS];
    int step[PERIOD_RANKS], at[PERIOD_RANKS];
    double ended[PERIOD_STEPS + 1][PERIOD_RANKS]; // when the list of a step was done; 0: not yet
    double report[PERIOD_STEPS + 1]
                 [PERIOD_RANKS];  // when the rank had the reports of itself and all earlier ranks
    double started[PERIOD_STEPS]; // by rank 0
    double *produced_at[2];       // [gradient][step][stages][m]
};

static double *produced_at(const struct clocks *c, bool gradient, int step, int stage, int microbatch)
{
    return &c->produced_at[gradient][((size_t)step * (size_t)c->s->stages + (size_t)stage) * (size_t)c->s->m +
                                     (size_t)microbatch];
}

/* When the rank may run its next action, regardless of the action's inputs; < 0: unknown. */
static double gate(const struct clocks *c, int rank)
{
    int step = c->step[rank], last = c->s->p - 1;
    double latest = 0.0;
    if (step == 0)
        return 0.0;
    if (c->validated && c->at[rank] == c->cut[rank] && !(c->report[step - 1][last] > 0.0))
        return -1.0;
    if (c->validated && c->at[rank] == c->cut[rank])
        latest = c->report[step - 1][last] + c->message * (last - rank);
    if (c->at[rank] > 0)
        return latest;
    if (c->validated) {
        double known = c->report[step - 1][rank];
        double update = rank < last ? c->update + c->copied : c->update;
        return known > 0.0 ? fmax(latest, known + update) : -1.0;
    }
    for (int r = 0; r <= last; r++) {
        if (!(c->ended[step - 1][r] > 0.0))
            return -1.0;
        latest = fmax(latest, c->ended[step - 1][r] + 2.0 * c->message + c->update);
    }
    return latest;
}

/* When the inputs of an action are available; < 0: unknown. */
static double input(const struct clocks *c, int rank, struct action a)
{
    const struct action_traits *traits = action_traits(a.kind);
    bool gradient = !traits->forward;
    int source = gradient ? a.stage + 1 : a.stage - 1;
    if (a.kind == BACKWARD_WEIGHT || source < 0 || source >= c->s->stages)
        return 0.0;
    double at = *produced_at(c, gradient, c->step[rank], source, a.microbatch);
    bool here = schedule_rank(c->s, source, a.microbatch) == rank;
    return at > 0.0 ? at + (here ? 0.0 : c->message) : -1.0;
}

static bool advance(struct clocks *c, int rank)
{
    const struct action_list *list = &c->s->ranks[rank];
    int step = c->step[rank];
    if (step == PERIOD_STEPS)
        return false;
    if (c->at[rank] == list->count) {
        c->ended[step][rank] = c->clock[rank];
        c->step[rank]++;
        c->at[rank] = 0;
        return true;
    }
    struct action a = list->actions[c->at[rank]];
    const struct action_traits *traits = action_traits(a.kind);
    double allowed = gate(c, rank), available = traits->computes ? input(c, rank, a) : 0.0;
    if (allowed < 0.0 || available < 0.0)
        return false;
    c->clock[rank] = fmax(c->clock[rank], fmax(allowed, available));
    if (rank == 0 && c->at[rank] == 0)
        c->started[step] = c->clock[rank];
    if (traits->computes)
        c->clock[rank] += (a.kind == BACKWARD ? 2.0 : 1.0) / c->s->v;
    if (traits->forward || traits->backward_input)
        *produced_at(c, !traits->forward, step, a.stage, a.microbatch) = c->clock[rank];
    c->at[rank]++;
    return true;
}

static void forward_reports(struct clocks *c)
{
    for (int step = 0; step < PERIOD_STEPS; step++)
        for (int rank = 0; rank < c->s->p; rank++) {
            bool above = rank == 0 || c->report[step][rank - 1] > 0.0;
            if (c->ended[step][rank] > 0.0 && above)
                c->report[step][rank] =
                    fmax(c->ended[step][rank], rank > 0 ? c->report[step][rank - 1] + c->message : 0.0);
        }
}

/* Time from the start of one step to that of the next, in the steady state. */
static double period(const char *name, int p, int m, bool validated, double message, double update)
{
    struct clocks c = {.validated = validated, .message = message, .update = update, .copied = update};
    struct schedule *s = build(name, p, m, 0);
    size_t cells = (size_t)PERIOD_STEPS * (size_t)s->stages * (size_t)m;
    c.s = s;
    c.produced_at[0] = calloc(cells, sizeof(double));
    c.produced_at[1] = calloc(cells, sizeof(double));
    schedule_look_ahead(s, c.cut);
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < p; rank++)
            while (advance(&c, rank))
                moved = true;
        forward_reports(&c);
    }
    for (int rank = 0; rank < p; rank++)
        cr_assert_eq(c.step[rank], PERIOD_STEPS, "%s: rank %d is stalled", name, rank);
    free(c.produced_at[0]);
    free(c.produced_at[1]);
    schedule_destroy(s);
    return c.started[PERIOD_STEPS - 1] - c.started[PERIOD_STEPS - 2];
}

static void expect_period(const char *name, double waiting, double validated, double waiting_costs,
                          double validated_costs)
{
    const struct {
        double expected, found;
    } four[] = {
        {waiting, period(name, 8, 32, false, 0.0, 0.0)},
        {validated, period(name, 8, 32, true, 0.0, 0.0)},
        {waiting_costs, period(name, 8, 32, false, 0.1, 0.5)},
        {validated_costs, period(name, 8, 32, true, 0.1, 0.5)},
    };
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq(four[i].found, four[i].expected, 1e-9, "%s, %d: %g", name, i, four[i].found);
}

/* The table of docs/schedules.md. With synchronization, a step takes the makespan. Without, zb-h2 and zb-v
 * take exactly m (f + i + w); the others start the next step on the rank that finishes the last one. */
Test(look_ahead, periods_of_consecutive_steps)
{
    expect_period("zb-h2", 103.0, 96.0, 104.4, 98.4);
    expect_period("zb-v", 99.5, 96.0, 103.5, 101.0);
    expect_period("1f1b", 117.0, 117.0, 124.5, 124.8);
    expect_period("zb-h1", 103.0, 103.0, 106.5, 106.8);
    expect_period("interleaved", 106.5, 106.5, 110.2, 110.5);
}

Test(look_ahead, never_lengthens_a_step_by_more_than_the_copy)
{
    for (int index = 0; schedule_about(index) != NULL; index++) {
        const char *name = schedule_about(index)->name;
        if (strcmp(name, "dualpipe") == 0) // has no post-validation
            continue;
        for (int p = 2; p <= 8; p += 3)
            for (int m = 1; m <= 17; m += 4) {
                double waits = period(name, p, m, false, 0.1, 0.5);
                double validates = period(name, p, m, true, 0.1, 0.5);
                cr_assert(validates <= waits + 0.5 + 1e-9, "%s p %d m %d: %g, and %g", name, p, m, waits,
                          validates);
            }
    }
}
