// SPDX-License-Identifier: Apache-2.0
/* The period of consecutive steps with optimizer post-validation: closed forms. */
#include "tests/unit/planner/small_tapes.h"

enum { FORWARD_0, BACKWARD_0, OPTIMIZER, VERDICT, ACTIONS };

/* The actions of all ranks. */
static void name_actions(struct set *set, struct tape_action actions[ACTIONS], int count)
{
    static const char *const names[ACTIONS] = {"0F0", "0B0", "optimizer", "verdict"};
    for (int i = 0; i < ACTIONS; i++)
        snprintf(actions[i].name, sizeof actions[i].name, "%s", names[i]);
    actions[FORWARD_0].scheduled = (struct scheduled_action){.exists = true, .kind = FORWARD};
    actions[BACKWARD_0].scheduled = (struct scheduled_action){.exists = true, .kind = BACKWARD};
    for (int r = 0; r < set->count; r++) {
        set->tapes[r]->actions = actions;
        set->tapes[r]->action_count = count;
    }
}

static void run_action(struct set *set, int rank, int action, int seconds)
{
    struct tape_lane *lane = &set->storage[rank].lanes[0];
    run_op(set, rank, 0, seconds);
    lane->items[lane->count - 1].action = action;
}

/* Rank 0 begins first and ends first; rank 1 starts after its first forward pass. Both update in the
 * verdict, which the last rank sends. */
static struct set parallelogram(struct tape_action actions[ACTIONS], int count)
{
    struct set set = set_create(2);
    name_actions(&set, actions, count);
    run_action(&set, 0, FORWARD_0, 10);
    p2p(&set, 0, 1, 0, 0, 1);
    run_action(&set, 0, FORWARD_0, 10);
    run_action(&set, 0, BACKWARD_0, 30);
    run_action(&set, 1, FORWARD_0, 20);
    run_action(&set, 1, BACKWARD_0, 30);
    p2p(&set, 1, 0, 0, 0, 1);
    run_action(&set, 0, VERDICT, 2);
    run_action(&set, 1, VERDICT, 2);
    return set;
}

/* Both ranks compute for 50 s and update for 2; rank 0 also sends for 1 s between its passes. Rank 1 begins
 * at 11 s and ends at 61. */
Test(period, is_the_longest_time_of_a_rank)
{
    struct tape_action actions[ACTIONS] = {{.name = ""}};
    struct set set = parallelogram(actions, ACTIONS);
    struct prediction *step = predict(&set, ONE);
    expect_near(step->step_s, 53.0);
    expect_near(step->overlap_s, 64.0 - 53.0);
    for (int r = 0; r < 2; r++) {
        const struct predicted_rank *rank = &step->ranks[r];
        expect_near(rank->bubble_s + rank->exposed_s[GROUP_PP] + rank->run_s[COST_MATMUL], step->step_s);
        cr_expect(rank->bubble_s >= 0.0);
    }
    prediction_destroy(step);
    free(set.storage);
}

/* Without the action "verdict" ranks wait for each other between steps. */
Test(period, is_the_whole_step_without_post_validation)
{
    struct tape_action actions[ACTIONS] = {{.name = ""}};
    struct set set = parallelogram(actions, ACTIONS);
    snprintf(actions[VERDICT].name, sizeof actions[VERDICT].name, "optimizer");
    struct prediction *step = predict(&set, ONE);
    expect_near(step->step_s, 64.0);
    cr_expect(step->overlap_s <= 0.0);
    prediction_destroy(step);
    free(set.storage);
}

/* A rank updates after the ranks above it: rank 1 has nothing to do from 21 s on, rank 0 until 50 s. */
Test(period, includes_the_wait_for_the_ranks_above)
{
    struct tape_action actions[ACTIONS] = {{.name = ""}};
    struct set set = set_create(2);
    name_actions(&set, actions, ACTIONS);
    run_action(&set, 0, FORWARD_0, 10);
    run_action(&set, 0, BACKWARD_0, 40);
    run_action(&set, 1, FORWARD_0, 10);
    run_action(&set, 1, BACKWARD_0, 11);
    run_action(&set, 0, VERDICT, 2);
    run_action(&set, 1, VERDICT, 3);
    struct prediction *step = predict(&set, ONE);
    expect_near(step->step_s, 52.0); // the simulated step, in which rank 1 does not wait
    prediction_destroy(step);
    free(set.storage);
}
