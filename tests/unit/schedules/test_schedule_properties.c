// SPDX-License-Identifier: Apache-2.0
/* Properties of every family for any p, m and v, over ten thousand random cases: the lists are valid by an
 * independent count, a simulated clock agrees with the formulas, memory stays within the family's limit
 * and fits the slots, and a schedule that is written reads back unchanged. */
#include "schedules/csv/csv.h"
#include "schedules/peak.h"
#include "tests/unit/schedules/schedule_tools.h"

#include <math.h>
#include <stdlib.h>

/* Only other transfers are between a SEND and the action that produces its data. */
static void expect_prompt_sends(const struct schedule *s)
{
    for (int rank = 0; rank < s->p; rank++) {
        const struct action_list *list = &s->ranks[rank];
        for (int i = 0; i < list->count; i++) {
            struct action a = list->actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            int at = i;
            while (at > 0 && !action_traits(list->actions[at].kind)->computes)
                at--;
            bool first_of_pair = at > 0 && list->actions[at - 1].overlaps_next;
            if (traits->sends && first_of_pair && list->actions[at].stage != a.stage)
                at--;
            struct action made = list->actions[at];
            cr_assert(!traits->sends || (made.stage == a.stage && made.microbatch == a.microbatch),
                      "%s p %d m %d v %d rank %d action %d", s->family->about.name, s->p, s->m, s->v, rank,
                      i);
        }
    }
}

/* The owner of each slot of a lifetime: a microbatch, or -1. */
struct slots {
    int owner[4][160]; // [chunk][slot]
    int held[4], most[4];
};

static void acquire(struct slots *x, const struct slot_plan *plan, enum lifetime lifetime, int chunk,
                    int microbatch)
{
    int slot = slot_of(plan, lifetime, chunk, microbatch);
    cr_assert(slot >= 0 && slot < plan->peak[lifetime][chunk] && slot < 160);
    cr_assert_eq(x->owner[chunk][slot], -1, "slot %d acquired by %d and %d", slot, x->owner[chunk][slot],
                 microbatch);
    x->owner[chunk][slot] = microbatch;
    x->held[chunk]++;
    x->most[chunk] = x->held[chunk] > x->most[chunk] ? x->held[chunk] : x->most[chunk];
}

static void release(struct slots *x, const struct slot_plan *plan, enum lifetime lifetime, int chunk,
                    int microbatch)
{
    int *owner = &x->owner[chunk][slot_of(plan, lifetime, chunk, microbatch)];
    cr_assert_eq(*owner, microbatch);
    *owner = -1;
    x->held[chunk]--;
}

/* Acquires the slots of an action's inputs: its own, or the next chunk's, which it produces. */
static void acquire_inputs(struct slots *x, const struct slot_plan *plan, const struct schedule *s,
                           struct action a)
{
    int k = a.microbatch;
    bool first = a.stage == 0, last = a.stage == s->stages - 1;
    if (a.kind == RECV_ACTIVATION || (a.kind == FORWARD && first))
        acquire(x, plan, KEEP_INPUT, schedule_chunk(s, a.stage, k), k);
    if (a.kind == FORWARD && !last && schedule_rank(s, a.stage + 1, k) == schedule_rank(s, a.stage, k))
        acquire(x, plan, KEEP_INPUT, schedule_chunk(s, a.stage + 1, k), k);
}

/* Checks the list independently: never two tensors in a slot, and no more slots than needed. */
static void expect_valid_slots_of(const struct schedule *s, int rank, const struct slot_plan *plan,
                                  enum lifetime lifetime)
{
    bool of_forward = lifetime == KEEP_UNTIL_BACKWARD_INPUT || lifetime == KEEP_UNTIL_BACKWARD_WEIGHT;
    bool until_input = lifetime == KEEP_INPUT || lifetime == KEEP_UNTIL_BACKWARD_INPUT;
    struct slots x;
    memset(&x.owner, -1, sizeof x.owner);
    memset(&x.held, 0, sizeof x.held);
    memset(&x.most, 0, sizeof x.most);
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        const struct action_traits *traits = action_traits(a.kind);
        int chunk = schedule_chunk(s, a.stage, a.microbatch);
        if (lifetime == KEEP_INPUT)
            acquire_inputs(&x, plan, s, a);
        else if (of_forward ? a.kind == FORWARD : traits->backward_input)
            acquire(&x, plan, lifetime, chunk, a.microbatch);
        if (until_input ? traits->backward_input : traits->backward_weight)
            release(&x, plan, lifetime, chunk, a.microbatch);
    }
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        cr_assert_eq(x.held[chunk], 0);
        cr_assert_eq(x.most[chunk], plan->peak[lifetime][chunk]);
    }
}

static void expect_valid_slots(const struct schedule *s, int rank)
{
    struct slot_plan *plan = slot_plan_create(s, rank);
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        expect_valid_slots_of(s, rank, plan, (enum lifetime)lifetime);
    if (s->chunks == 1)
        cr_assert_eq(plan->peak[KEEP_UNTIL_BACKWARD_WEIGHT][0], schedule_peak(s, rank));
    slot_plan_destroy(plan);
}

Test(properties, slots_hold_one_tensor_at_a_time)
{
    struct rng rng = {.generator = philox_named(2, "schedules")};
    for (int i = 0; i < cases(900); i++) {
        struct schedule *s = build_with(random_options(&rng, i % family_count(), 6, 20));
        for (int rank = 0; rank < s->p; rank++)
            expect_valid_slots(s, rank);
        schedule_destroy(s);
    }
}

/* An independent count: every F, and I and W or B, once; microbatches in order for the weights. */
static void expect_each_once(const struct schedule *s)
{
    size_t cells = (size_t)s->stages * (size_t)s->m;
    unsigned char *done = calloc(cells, 1);
    int *latest = calloc((size_t)s->stages, sizeof *latest);
    for (int rank = 0; rank < s->p; rank++) {
        memset(latest, -1, (size_t)s->stages * sizeof *latest);
        for (int i = 0; i < s->ranks[rank].count; i++) {
            struct action a = s->ranks[rank].actions[i];
            const struct action_traits *traits = action_traits(a.kind);
            unsigned char *cell = &done[(size_t)a.stage * (size_t)s->m + (size_t)a.microbatch];
            *cell = (unsigned char)(*cell + (traits->forward ? 1 : 0) + (traits->backward_input ? 4 : 0) +
                                    (traits->backward_weight ? 16 : 0));
            cr_assert(!traits->backward_weight || a.microbatch > latest[a.stage]);
            latest[a.stage] = traits->backward_weight ? a.microbatch : latest[a.stage];
        }
    }
    for (size_t i = 0; i < cells; i++)
        cr_assert_eq(done[i], 1 + 4 + 16);
    free(latest);
    free(done);
}

/* The closed form of the bubble with these costs of one chunk; negative where the family has none for this
 * case. */
static double closed_form(const struct schedule *s, const struct schedule_options *o, struct stage_cost c)
{
    const char *name = s->family->about.name;
    double whole = (s->p - 1) * (c.f + c.i + c.w);
    bool even = c.f == c.i && c.i == c.w;
    if (strcmp(name, "gpipe") == 0 || strcmp(name, "1f1b") == 0)
        return whole;
    if (strcmp(name, "looped-bfs") == 0 && s->m >= s->p)
        return whole;
    if (strcmp(name, "interleaved") == 0 && s->m % s->p == 0 && o->microbatch_group_size == 0)
        return whole;
    if (strcmp(name, "zb-h1") == 0 && s->v == 1 && s->m >= s->p && o->microbatch_group_size == 0)
        return (s->p - 1) * (c.i + fmax(c.f - c.w, 0.0));
    if ((strcmp(name, "zb-h2") == 0 || strcmp(name, "zb-v") == 0) && s->m >= 2 * s->p - 1 && even)
        return 0.0;
    return -1.0;
}

/* Every rank computes exactly its work; none is faster than one microbatch's passage through the pipeline and
 * back. */
static void expect_times(const struct schedule *s, const struct schedule_options *o, struct stage_cost c)
{
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = c});
    double way = s->stages * (c.f + c.i) + c.w, all = 0.0;
    for (int rank = 0; rank < s->p; rank++) {
        const struct rank_time *time = &sim->ranks[rank];
        cr_assert(time->peak == schedule_peak(s, rank) && time->peak <= s->family->peak_claim(s, rank));
        cr_assert(time->bubble >= 0.0 && time->busy + time->bubble <= sim->makespan);
        all += time->busy;
    }
    cr_assert_eq(all, s->stages * s->m * (c.f + c.i + c.w));
    cr_assert_geq(sim->makespan, way);
    double expected = closed_form(s, o, c);
    cr_assert(expected < 0.0 || sim->bubble == expected, "%s p %d m %d v %d: %g, not %g", o->name, s->p, s->m,
              s->v, sim->bubble, expected);
    simulation_destroy(sim);
}

static void expect_round_trip(const struct schedule *s)
{
    struct text text = {0};
    struct schedule *back = NULL;
    cr_assert_eq(schedule_write_csv(s, &text), OK);
    cr_assert_eq(schedule_parse_csv("x.csv", text.chars, text.length, &back), OK, "%s", fail_text());
    expect_same_lists(s, back);
    schedule_destroy(back);
    text_free(&text);
}

/* Building includes the checker: order, edges, no deadlock where transfers block, the memory limit. */
Test(properties, ten_thousand_cases)
{
    struct rng rng = {.generator = philox_named(1, "schedules")};
    for (int i = 0; i < cases(10000); i++) {
        bool large = i % 20 == 0;
        struct schedule_options options =
            random_options(&rng, i % family_count(), large ? 24 : 8, large ? 60 : 14);
        struct stage_cost cost = {1.0, 1.0, 1.0};
        if (i % 3 > 0) // exact in a double
            cost = (struct stage_cost){rng_int(&rng, 1, 16) / 8.0, rng_int(&rng, 1, 16) / 8.0,
                                       rng_int(&rng, 1, 16) / 8.0};
        struct schedule *s = build_with(options);
        cr_assert(s->has_transfers);
        expect_each_once(s);
        expect_prompt_sends(s);
        expect_times(s, &options, cost);
        if (!large)
            expect_valid_slots(s, rng_int(&rng, 0, s->p - 1));
        expect_round_trip(s);
        schedule_destroy(s);
    }
}
