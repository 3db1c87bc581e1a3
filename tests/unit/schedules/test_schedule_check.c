// SPDX-License-Identifier: Apache-2.0
/* The checker detects errors, so each of its rules is tested with an injected fault (of every family: in
 * test_schedule_faults); and over thousands of randomly modified lists it must agree with a second, naive
 * checker that simply executes them. */
#include "tests/unit/schedules/schedule_damage.h"

#include <stdlib.h>
#include <string.h>

static int find(const struct schedule *s, int rank, enum action_kind kind, int stage, int microbatch)
{
    int position = position_of(s, rank, kind, stage, microbatch);
    cr_assert(position >= 0, "no such action");
    return position;
}

static void expect_error(struct schedule *s, const char *text)
{
    struct schedule_error why;
    cr_assert_eq(schedule_check(s, &why), BAD_SCHEDULE, "accepted, instead of: %s", text);
    cr_assert_str_eq(why.text, text);
    cr_assert_str_eq(fail_text(), text);
    schedule_destroy(s);
}

Test(check, names_a_backward_that_precedes_its_forward)
{
    struct schedule *s = build_lists("1f1b", 4, 8, 0);
    struct schedule_error why;
    move(s, 3, 0, 1);
    cr_assert_eq(schedule_check(s, &why), BAD_SCHEDULE);
    cr_assert(why.rank == 3 && why.position == 0);
    expect_error(s, "rank 3, action 0: 3B0 runs before 3F0");
}

Test(check, names_stages_and_microbatches_out_of_range)
{
    struct schedule *s = build("1f1b", 2, 2, 1);
    at(s, 0, 0)->kind = ACTION_KIND_COUNT;
    expect_error(s, "rank 0, action 0: no action has the kind 8");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, 0)->kind = (enum action_kind) - 1;
    expect_error(s, "rank 0, action 0: no action has the kind -1");
    s = build("1f1b", 2, 2, 1);
    at(s, 1, 1)->stage = 2;
    expect_error(s, "rank 1, action 1: 2F0: there are stages 0 to 1");
    s = build("1f1b", 2, 2, 1);
    at(s, 1, 1)->stage = -1;
    expect_error(s, "rank 1, action 1: -1F0: there are stages 0 to 1");
    s = build("1f1b", 2, 2, 1);
    at(s, 1, 1)->microbatch = 2;
    expect_error(s, "rank 1, action 1: 1F2: there are microbatches 0 to 1");
    s = build("1f1b", 2, 2, 1);
    at(s, 1, 1)->microbatch = -2;
    expect_error(s, "rank 1, action 1: 1F-2: there are microbatches 0 to 1");
}

Test(check, names_an_action_on_a_wrong_rank)
{
    struct schedule *s = build_lists("1f1b", 2, 2, 0);
    at(s, 0, 1)->stage = 1;
    expect_error(s, "rank 0, action 1: 1F1 belongs to rank 1");
}

Test(check, names_duplicates)
{
    struct schedule *s = build_lists("1f1b", 2, 2, 0);
    at(s, 0, 1)->microbatch = 0;
    expect_error(s, "rank 0, action 1: 0F0 is listed twice");
    s = build_lists("zb-h1", 2, 2, 0);
    at(s, 0, find(s, 0, BACKWARD_WEIGHT, 0, 1))->kind = BACKWARD;
    expect_error(s, "rank 0, action 5: 0B1 is listed twice, as one half");
    s = build_lists("1f1b", 2, 2, 0);
    at(s, 0, find(s, 0, BACKWARD, 0, 1))->microbatch = 0;
    expect_error(s, "rank 0, action 3: 0B0 is listed twice");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, find(s, 0, SEND_ACTIVATION, 0, 1))->microbatch = 0;
    expect_error(s, "rank 0, action 3: 0SEND_F0 is listed twice");
}

Test(check, names_missing_actions)
{
    struct schedule *s = build_lists("1f1b", 2, 2, 0);
    remove_at(s, 1, find(s, 1, FORWARD, 1, 1));
    expect_error(s, "rank 1: 1F1 is missing");
    s = build_lists("1f1b", 2, 2, 0);
    remove_at(s, 1, find(s, 1, BACKWARD, 1, 1));
    expect_error(s, "rank 1: 1B1 is missing, and so are its I and W");
    s = build_lists("zb-h1", 2, 2, 0);
    remove_at(s, 0, find(s, 0, BACKWARD_WEIGHT, 0, 1));
    expect_error(s, "rank 0: 0W1 is missing");
    s = build_lists("zb-h1", 2, 2, 0);
    remove_at(s, 0, find(s, 0, BACKWARD_INPUT, 0, 0));
    expect_error(s, "rank 0: 0I0 is missing");
    const struct {
        enum action_kind kind;
        int rank;
        const char *text;
    } transfers[] = {
        {SEND_ACTIVATION, 0, "rank 0: 0SEND_F1 is missing"},
        {RECV_ACTIVATION, 1, "rank 1: 1RECV_F1 is missing"},
        {SEND_GRADIENT, 1, "rank 1: 1SEND_B1 is missing"},
        {RECV_GRADIENT, 0, "rank 0: 0RECV_B1 is missing"},
    };
    for (size_t i = 0; i < sizeof transfers / sizeof *transfers; i++) {
        s = build("1f1b", 2, 2, 1);
        int rank = transfers[i].rank;
        remove_at(s, rank, find(s, rank, transfers[i].kind, rank, 1));
        expect_error(s, transfers[i].text);
    }
    s = build_lists("1f1b", 2, 2, 0);
    s->ranks[0].count = 0;
    expect_error(s, "rank 0: 0F0 is missing");
}

Test(check, names_actions_before_their_inputs)
{
    struct schedule *s = build_lists("zb-h1", 2, 2, 0);
    move(s, 0, find(s, 0, BACKWARD_WEIGHT, 0, 0), find(s, 0, BACKWARD_INPUT, 0, 0));
    expect_error(s, "rank 0, action 2: 0W0 runs before 0I0");
    s = build("1f1b", 2, 2, 1);
    move(s, 0, find(s, 0, SEND_ACTIVATION, 0, 0), 0);
    expect_error(s, "rank 0, action 0: 0SEND_F0 runs before 0F0");
    s = build("1f1b", 2, 2, 1);
    move(s, 1, find(s, 1, FORWARD, 1, 0), 0);
    expect_error(s, "rank 1, action 0: 1F0 runs before 1RECV_F0");
    s = build("1f1b", 2, 2, 1);
    move(s, 0, find(s, 0, BACKWARD, 0, 0), find(s, 0, RECV_GRADIENT, 0, 0));
    expect_error(s, "rank 0, action 4: 0B0 runs before 0RECV_B0");
    s = build("1f1b", 2, 2, 1);
    move(s, 1, find(s, 1, SEND_GRADIENT, 1, 0), find(s, 1, BACKWARD, 1, 0));
    expect_error(s, "rank 1, action 3: 1SEND_B0 runs before 1I0");
}

Test(check, names_weights_out_of_microbatch_order)
{
    struct schedule *s = build_lists("zb-h1", 2, 2, 0);
    move(s, 1, find(s, 1, BACKWARD_WEIGHT, 1, 1), find(s, 1, BACKWARD_WEIGHT, 1, 0));
    expect_error(
        s,
        "rank 1, action 5: 1W0 runs after microbatch 1: gradients must be accumulated in microbatch order");
    s = build_lists("gpipe", 1, 2, 0);
    move(s, 0, 2, 3);
    expect_error(
        s,
        "rank 0, action 3: 0B0 runs after microbatch 1: gradients must be accumulated in microbatch order");
}

Test(check, names_unnecessary_transfers)
{
    struct schedule *s = build("1f1b", 2, 2, 1);
    s->has_transfers = false;
    expect_error(s, "rank 0, action 1: 0SEND_F0 is a transfer, but transfers have not been added yet");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, 1)->kind = RECV_ACTIVATION;
    expect_error(s, "rank 0, action 1: 0RECV_F0 crosses no boundary between ranks");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, 1)->kind = SEND_GRADIENT;
    expect_error(s, "rank 0, action 1: 0SEND_B0 crosses no boundary between ranks");
    s = build("1f1b", 3, 2, 1);
    at(s, 0, 1)->peer = 2;
    expect_error(s, "rank 0, action 1: 0SEND_F0 has peer rank 2, but stage 1 is on rank 1");
    s = build("1f1b", 3, 2, 1);
    at(s, 1, find(s, 1, RECV_GRADIENT, 1, 0))->peer = -1;
    expect_error(s, "rank 1, action 6: 1RECV_B0 has peer rank -1, but stage 2 is on rank 2");
}

Test(check, names_an_edge_whose_ends_disagree)
{
    struct schedule *s = build("gpipe", 2, 3, 1);
    move(s, 1, find(s, 1, RECV_ACTIVATION, 1, 1), 0);
    expect_error(s, "rank 1, action 0: 1RECV_F1 is number 0 from rank 0, which sends it as number 1");
}

/* Every rank alone is in order, but they wait for each other. */
Test(check, names_a_cyclic_wait)
{
    struct schedule *s = build_lists("1f1b", 2, 2, 0);
    move(s, 1, find(s, 1, BACKWARD, 1, 0), 2);
    move(s, 0, find(s, 0, BACKWARD, 0, 0), 1);
    expect_error(s, "rank 0, action 1: 0B0 waits forever for rank 1 at 1F1, which waits for rank 0 at 0B0");
}

/* Valid while transfers overlap computation, and a deadlock where they block. */
Test(check, names_a_deadlock_of_blocking_transfers)
{
    struct schedule *s = build("1f1b", 2, 2, 1);
    move(s, 1, find(s, 1, RECV_ACTIVATION, 1, 1), find(s, 1, SEND_GRADIENT, 1, 0));
    struct simulation *sim = simulated(s, (struct cost_table){.chunk = {1, 1, 1}});
    simulation_destroy(sim);
    expect_error(s, "rank 0, action 3: 0SEND_F1 waits forever for rank 1 at 1SEND_B0, which waits for "
                    "rank 0 at 0SEND_F1");
}

Test(check, names_a_rank_above_its_memory_claim)
{
    struct schedule *s = build("gpipe", 2, 4, 1), *other = build("1f1b", 2, 4, 1);
    s->family = other->family;
    schedule_destroy(other);
    expect_error(s, "rank 0: holds the activations of 4 microbatches at once; 1f1b claims at most 2");
}

Test(check, names_an_invalid_overlap)
{
    struct schedule *s = build_lists("1f1b", 2, 2, 0);
    at(s, 0, 3)->overlaps_next = true;
    expect_error(s, "rank 0, action 3: 0B1 overlaps the next action, but there is none");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, 0)->overlaps_next = true;
    expect_error(s, "rank 0, action 0: 0F0 cannot overlap the next action: both must compute");
    s = build("1f1b", 2, 2, 1);
    at(s, 0, 1)->overlaps_next = true;
    expect_error(s, "rank 0, action 1: 0SEND_F0 cannot overlap the next action: both must compute");
    s = build_lists("1f1b", 2, 3, 0);
    at(s, 1, 1)->overlaps_next = true;
    at(s, 1, 2)->overlaps_next = true;
    expect_error(s, "rank 1, action 1: 1B0 overlaps an action that overlaps another one");
    s = build_lists("1f1b", 2, 2, 0);
    at(s, 1, 0)->overlaps_next = true; // 1F0 with 1B0, which needs it
    expect_error(s, "rank 0, action 2: 0B0 waits forever for rank 1 at (1F0;1B0), which waits for its "
                    "own 1F0");
    s = build_lists("1f1b", 2, 2, 0);
    at(s, 0, 1)->overlaps_next = true; // 0F1 with 0B0, for which rank 1 is too late with its 1F1
    move(s, 1, 1, 2);
    expect_error(s, "rank 0, action 1: (0F1;0B0) waits forever for rank 1 at 1F1, which waits for rank 0 at "
                    "(0F1;0B0)");
}

/* A V: rank 1 holds stages 1 and 2, so nothing is sent between them, and only the order can be wrong. */
static void v_shaped(struct schedule *s)
{
    for (int stage = 0; stage < 4; stage++)
        schedule_add(s, FORWARD, stage, 0);
    for (int stage = 3; stage >= 0; stage--)
        schedule_add(s, BACKWARD, stage, 0);
}

static struct schedule *build_v(void)
{
    static const struct family family = {.about = {.name = "a V"}, .placement = PLACE_V};
    struct schedule *s = NULL;
    s = schedule_create(&family, &(struct schedule_options){.p = 2, .m = 1, .v = 2});
    v_shaped(s);
    return s;
}

Test(check, accepts_handover_within_a_rank)
{
    struct text text = {0};
    struct schedule *s = build_v();
    cr_assert_eq(schedule_check(s, NULL), OK);
    cr_assert_eq(schedule_add_transfers(s), OK);
    cr_assert_eq(schedule_check(s, NULL), OK);
    cr_assert_str_eq(list_text(s, 0, true, &text), "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0");
    cr_assert_str_eq(list_text(s, 1, true, &text), "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0");
    text_free(&text);
    schedule_destroy(s);
    s = build_v();
    move(s, 1, 0, 1);
    expect_error(s, "rank 1, action 0: 2F0 runs before 1F0");
    s = build_v();
    move(s, 1, 2, 3);
    expect_error(s, "rank 1, action 2: 1B0 runs before 2I0");
}

/* The naive checker. It keeps completed actions as flags, and lets every rank run its next action when its
 * inputs are available, in rounds, until no rank can continue. */
struct naive_checker {
    const struct schedule *s;
    bool *done;    // [kind][stage][microbatch]
    int *position; // [p]
};

static bool *flag(const struct naive_checker *c, enum action_kind kind, int stage, int microbatch)
{
    return &c->done[((int)kind * c->s->stages + stage) * c->s->m + microbatch];
}

static bool is_produced(const struct naive_checker *c, bool gradient, int stage, int microbatch)
{
    if (!gradient)
        return *flag(c, FORWARD, stage, microbatch);
    return *flag(c, BACKWARD, stage, microbatch) || *flag(c, BACKWARD_INPUT, stage, microbatch);
}

static bool is_available(const struct naive_checker *c, bool gradient, int stage, int microbatch)
{
    int from = gradient ? stage + 1 : stage - 1;
    if (from < 0 || from >= c->s->stages)
        return true;
    if (!c->s->has_transfers ||
        schedule_rank(c->s, from, microbatch) == schedule_rank(c->s, stage, microbatch))
        return is_produced(c, gradient, from, microbatch);
    return *flag(c, gradient ? RECV_GRADIENT : RECV_ACTIVATION, stage, microbatch);
}

static bool may_compute(const struct naive_checker *c, struct action a)
{
    int k = a.microbatch;
    bool backward_done = is_produced(c, true, a.stage, k);
    for (int later = k + 1; later < c->s->m; later++)
        if ((a.kind == BACKWARD || a.kind == BACKWARD_WEIGHT) &&
            schedule_rank(c->s, a.stage, later) == schedule_rank(c->s, a.stage, k) &&
            (*flag(c, BACKWARD, a.stage, later) || *flag(c, BACKWARD_WEIGHT, a.stage, later)))
            return false;
    if (*flag(c, a.kind, a.stage, k))
        return false;
    if (a.kind == FORWARD)
        return is_available(c, false, a.stage, k);
    if (a.kind == BACKWARD_WEIGHT)
        return *flag(c, BACKWARD_INPUT, a.stage, k) && !*flag(c, BACKWARD, a.stage, k);
    return is_produced(c, false, a.stage, k) && is_available(c, true, a.stage, k) && !backward_done;
}

/* A transfer happens when both ends have reached it; done by the sender. */
static bool may_send(struct naive_checker *c, int rank, struct action a)
{
    bool gradient = a.kind == SEND_GRADIENT;
    int to = gradient ? a.stage - 1 : a.stage + 1;
    if ((a.kind != SEND_ACTIVATION && !gradient) || to < 0 || to >= c->s->stages ||
        schedule_rank(c->s, to, a.microbatch) != a.peer || a.peer == rank ||
        !is_produced(c, gradient, a.stage, a.microbatch))
        return false;
    const struct action_list *list = &c->s->ranks[a.peer];
    if (c->position[a.peer] >= list->count)
        return false;
    struct action b = list->actions[c->position[a.peer]];
    enum action_kind kind = gradient ? RECV_GRADIENT : RECV_ACTIVATION;
    if (b.kind != kind || b.stage != to || b.microbatch != a.microbatch || b.peer != rank ||
        *flag(c, kind, to, a.microbatch))
        return false;
    *flag(c, kind, to, a.microbatch) = true;
    c->position[a.peer]++;
    return true;
}

static bool naive_execute(struct naive_checker *c)
{
    const struct schedule *s = c->s;
    int left = 0;
    for (int rank = 0; rank < s->p; rank++)
        left += s->ranks[rank].count;
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < s->p; rank++) {
            if (c->position[rank] >= s->ranks[rank].count)
                continue;
            struct action a = s->ranks[rank].actions[c->position[rank]];
            bool computes = action_traits(a.kind)->computes;
            if (schedule_rank(s, a.stage, a.microbatch) != rank || (!computes && !s->has_transfers))
                return false;
            if (computes ? may_compute(c, a) : may_send(c, rank, a)) {
                *flag(c, a.kind, a.stage, a.microbatch) = true;
                c->position[rank]++;
                left -= computes ? 1 : 2;
                moved = true;
            }
        }
    }
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < s->m; k++)
            if (!is_produced(c, false, stage, k) ||
                !(*flag(c, BACKWARD, stage, k) || *flag(c, BACKWARD_WEIGHT, stage, k)))
                return false;
    return left == 0;
}

static bool naively_valid(const struct schedule *s)
{
    struct naive_checker c = {.s = s};
    c.done = calloc((size_t)ACTION_KIND_COUNT * (size_t)s->stages * (size_t)s->m, sizeof *c.done);
    c.position = calloc((size_t)s->p, sizeof *c.position);
    bool valid = naive_execute(&c);
    for (int rank = 0; rank < s->p; rank++)
        if (schedule_peak(s, rank) > s->family->peak_claim(s, rank))
            valid = false;
    free(c.done);
    free(c.position);
    return valid;
}

/* One random change, which may leave the lists valid. */
static void damage(struct schedule *s, struct rng *rng)
{
    int rank = rng_int(rng, 0, s->p - 1), last = s->ranks[rank].count - 1;
    if (last < 1)
        return;
    int i = rng_int(rng, 0, last), k = rng_int(rng, 0, last);
    struct action *a = at(s, rank, i);
    switch (rng_int(rng, 0, 9)) {
    case 0:
        remove_at(s, rank, i);
        return;
    case 1:
        a->microbatch = rng_int(rng, 0, s->m - 1);
        return;
    case 2:
        a->kind = (enum action_kind)rng_int(rng, 0, ACTION_KIND_COUNT - 1);
        return;
    case 3:
        a->stage = rng_int(rng, 0, s->stages - 1);
        return;
    case 4:
        action_list_add(&s->ranks[rank], *at(s, rank, i));
        return;
    case 5:
        move(s, rank, i, k);
        return;
    default: // neighbors: most likely to stay valid
        move(s, rank, i, i == last ? i - 1 : i + 1);
        return;
    }
}

Test(check, agrees_with_a_naive_checker)
{
    struct rng rng = {.generator = philox_named(3, "schedules")};
    int valid = 0, invalid = 0;
    for (int i = 0; i < cases(12000); i++) {
        struct schedule_options options = random_options(&rng, rng_int(&rng, 0, family_count() - 1), 4, 5);
        options.without_transfers = rng_int(&rng, 0, 2) == 0;
        struct schedule *s = build_with(options);
        forget_pairs(s); // which the naive checker does not cover
        for (int change = rng_int(&rng, 1, 3); change > 0; change--)
            damage(s, &rng);
        bool expected = naively_valid(s);
        struct schedule_error why;
        cr_assert_eq(schedule_check(s, &why) == OK, expected, "case %d, %s p %d m %d: %s", i, options.name,
                     options.p, options.m, why.text);
        valid += expected ? 1 : 0;
        invalid += expected ? 0 : 1;
        schedule_destroy(s);
    }
    cr_assert(valid > cases(1000) && invalid > cases(5000), "%d valid, %d not", valid, invalid);
}
