// SPDX-License-Identifier: Apache-2.0
/* Messages that share links and NICs: closed forms. */
#include "tests/unit/planner/small_tapes.h"

/* Rank 0 sends to two ranks: half of its bandwidth each, until the shorter one ends. `apart`: on several
 * nodes. */
static void check_two_sends(bool apart)
{
    struct set set = set_create(3);
    p2p(&set, 0, 1, 1, 1, 40);
    p2p(&set, 0, 2, 2, 1, 60);
    struct prediction *step = predict_on(&set, ONE, apart ? 1 : RANKS);
    expect_near(step->ranks[0].end_s, 100.0);
    expect_near(step->ranks[1].end_s, 80.0);
    expect_near(step->ranks[2].end_s, 100.0);
    expect_near(step->path.transfer_s[GROUP_PP], 100.0);
    prediction_destroy(step);
    free(set.storage);
}

Test(contention, halves_the_bandwidth_of_two_sends)
{
    check_two_sends(false);
    check_two_sends(true);
}

/* The second message begins after 10 s: 10 + 20 + 30. */
Test(contention, lasts_as_long_as_both_messages)
{
    struct set set = set_create(3);
    p2p(&set, 0, 1, 1, 1, 40);
    run_op(&set, 2, 1, 10);
    p2p(&set, 0, 2, 2, 1, 15);
    struct prediction *step = predict(&set, ONE);
    expect_near(step->ranks[2].end_s, 10.0 + 30.0);
    expect_near(step->ranks[1].end_s, 40.0 + 15.0);
    expect_near(step->ranks[0].end_s, 55.0);
    prediction_destroy(step);
    free(set.storage);
}

/* Two ranks send to a third one; each of them has nothing else to send. */
Test(contention, is_that_of_the_busier_end)
{
    struct set set = set_create(3);
    p2p(&set, 0, 2, 1, 1, 40);
    p2p(&set, 1, 2, 1, 2, 40);
    expect_near(step_s(&set, ONE), 80.0);
    free(set.storage);
}

/* The directions are separate. */
Test(contention, is_between_messages_in_one_direction)
{
    struct set set = set_create(2);
    p2p(&set, 0, 1, 1, 1, 40);
    p2p(&set, 1, 0, 2, 2, 40);
    expect_near(step_s(&set, ONE), 40.0);
    free(set.storage);
}

/* An all-reduce of two ranks (50 bytes cross the link in 50 s) and a send of 30 s: 60 s at half the speed,
 * then the rest of the all-reduce. */
Test(contention, of_a_collective_is_in_both_directions)
{
    struct set set = set_create(2);
    all_reduce(&set, 1, 50);
    p2p(&set, 0, 1, 2, 2, 30);
    expect_near(step_s(&set, ONE), 60.0 + 20.0);
    free(set.storage);
}

/* Links and NICs are separate; on a CPU there is only the thread of the rank. */
Test(contention, is_of_one_medium)
{
    struct set set = set_create(3);
    p2p(&set, 0, 1, 1, 1, 40); // ranks 0 and 1 are on one node
    p2p(&set, 0, 2, 2, 1, 60);
    struct prediction *step = predict_on(&set, ONE, 2);
    expect_near(step->step_s, 60.0);
    prediction_destroy(step);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 3, 3, 0.0, 0.0}), 100.0);
    free(set.storage);
}

/* The compute lane waits for an all-reduce of its own that shares the link: 30 s of 40 are exposed twice. */
Test(contention, is_exposed)
{
    struct set set = set_create(2);
    p2p(&set, 0, 1, 1, 1, 30);
    p2p(&set, 0, 1, 0, 0, 40);
    struct prediction *step = predict(&set, ONE);
    expect_near(step->ranks[0].exposed_s[GROUP_PP], 70.0);
    check_parts(step);
    prediction_destroy(step);
    free(set.storage);
}
