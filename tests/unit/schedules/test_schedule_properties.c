// SPDX-License-Identifier: Apache-2.0
/* Properties of every family for any p, m and v, over ten thousand random cases: the lists are valid by an
 * independent count, a simulated clock agrees with the formulas, memory stays within the family's limit
 * and fits the slots, and a schedule survives a write and a read. */
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
            const struct action_fact *fact = action_fact(a.kind);
            int at = i;
            while (at > 0 && !action_fact(list->actions[at].kind)->computes)
                at--;
            bool first_of_pair = at > 0 && list->actions[at - 1].overlaps_next;
            if (fact->sends && first_of_pair && list->actions[at].stage != a.stage)
                at--;
            struct action made = list->actions[at];
            cr_assert(!fact->sends || (made.stage == a.stage && made.microbatch == a.microbatch),
                      "%s p %d m %d v %d rank %d action %d", s->family->about.name, s->p, s->m, s->v, rank,
                      i);
        }
    }
}

/* Marks `slot` of `chunk` as used by a microbatch, or free (-1). */
struct slots {
    int owner[4][160]; // [chunk][slot]
    int held, most;
};

static void take(struct slots *x, const struct slot_plan *plan, int chunk, int microbatch)
{
    int slot = slot_of(plan, UNTIL_WEIGHT, chunk, microbatch);
    cr_assert(slot >= 0 && slot < plan->peak[UNTIL_WEIGHT][chunk] && slot < 160);
    cr_assert_eq(x->owner[chunk][slot], -1, "slot %d taken by %d and %d", slot, x->owner[chunk][slot],
                 microbatch);
    x->owner[chunk][slot] = microbatch;
    x->held++;
    x->most = x->held > x->most ? x->held : x->most;
}

/* The chunk whose stage input an action starts to hold, if any: its own, or the next chunk's that it
 * produces. */
static int chunk_begun(const struct schedule *s, struct action a)
{
    int last = s->stages - 1, k = a.microbatch;
    if (a.kind == RECV_ACTIVATION)
        return schedule_chunk(s, a.stage, k);
    if (a.kind == FORWARD && a.stage < last &&
        schedule_rank(s, a.stage + 1, k) == schedule_rank(s, a.stage, k))
        return schedule_chunk(s, a.stage + 1, k);
    return -1;
}

/* Checks the list independently: never two values in a slot, and no more slots than needed. */
static void expect_good_slots(const struct schedule *s, int rank, int slack)
{
    struct slot_plan *plan = NULL;
    cr_assert_eq(slot_plan_create(s, rank, slack, &plan), OK);
    struct slots x;
    memset(&x, -1, sizeof x);
    x.held = x.most = 0;
    for (int i = 0; i < s->ranks[rank].count; i++) {
        struct action a = s->ranks[rank].actions[i];
        const struct action_fact *fact = action_fact(a.kind);
        int chunk = schedule_chunk(s, a.stage, a.microbatch);
        if (a.stage == 0 && a.kind == FORWARD)
            take(&x, plan, chunk, a.microbatch);
        if (chunk_begun(s, a) >= 0)
            take(&x, plan, chunk_begun(s, a), a.microbatch);
        int *owner = &x.owner[chunk][slot_of(plan, UNTIL_WEIGHT, chunk, a.microbatch)];
        cr_assert(!fact->computes || *owner == a.microbatch);
        if (!fact->backs_weight)
            continue;
        *owner = -1;
        x.held--;
    }
    cr_assert_eq(x.held, 0);
    cr_assert(slack > 0 || plan->rank_peak[UNTIL_WEIGHT] == x.most);
    cr_assert_eq(plan->rank_peak[STASH_UNTIL_WEIGHT], schedule_peak(s, rank));
    cr_assert_leq(plan->rank_peak[STASH_UNTIL_INPUT], plan->rank_peak[STASH_UNTIL_WEIGHT]);
    cr_assert_leq(plan->rank_peak[STASH_UNTIL_WEIGHT], plan->rank_peak[UNTIL_WEIGHT]);
    cr_assert_geq(plan->rank_peak[UNTIL_WEIGHT], x.most);
    cr_assert_leq(plan->rank_peak[UNTIL_INPUT], plan->rank_peak[UNTIL_WEIGHT]);
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++) {
        int sum = 0;
        for (int chunk = 0; chunk < s->chunks; chunk++)
            sum += plan->peak[class][chunk];
        cr_assert_leq(plan->rank_peak[class], sum);
    }
    slot_plan_destroy(plan);
}

Test(properties, slots_hold_one_thing_at_a_time)
{
    struct dice dice = {.generator = philox_named(2, "schedules")};
    for (int i = 0; i < cases(900); i++) {
        struct schedule *s = build_with(throw_options(&dice, i % family_count(), 6, 20));
        for (int rank = 0; rank < s->p; rank++)
            for (int slack = 0; slack < 3; slack++)
                expect_good_slots(s, rank, slack);
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
            const struct action_fact *fact = action_fact(a.kind);
            unsigned char *cell = &done[(size_t)a.stage * (size_t)s->m + (size_t)a.microbatch];
            *cell = (unsigned char)(*cell + (fact->forwards ? 1 : 0) + (fact->backs_input ? 4 : 0) +
                                    (fact->backs_weight ? 16 : 0));
            cr_assert(!fact->backs_weight || a.microbatch > latest[a.stage]);
            latest[a.stage] = fact->backs_weight ? a.microbatch : latest[a.stage];
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

/* Every rank computes exactly its work; none is faster than a microbatch's way down and up. */
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

static void expect_to_read_back(const struct schedule *s)
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
Test(properties, of_ten_thousand_cases)
{
    struct dice dice = {.generator = philox_named(1, "schedules")};
    for (int i = 0; i < cases(10000); i++) {
        bool large = i % 20 == 0;
        struct schedule_options options =
            throw_options(&dice, i % family_count(), large ? 24 : 8, large ? 60 : 14);
        struct stage_cost cost = {1.0, 1.0, 1.0};
        if (i % 3 > 0) // exact in a double
            cost = (struct stage_cost){throw_dice(&dice, 1, 16) / 8.0, throw_dice(&dice, 1, 16) / 8.0,
                                       throw_dice(&dice, 1, 16) / 8.0};
        struct schedule *s = build_with(options);
        cr_assert(s->has_transfers);
        expect_each_once(s);
        expect_prompt_sends(s);
        expect_times(s, &options, cost);
        if (!large)
            expect_good_slots(s, throw_dice(&dice, 0, s->p - 1), throw_dice(&dice, 0, 2));
        expect_to_read_back(s);
        schedule_destroy(s);
    }
}
