// SPDX-License-Identifier: Apache-2.0
/* Predicted steps of small tapes made by hand: closed forms of overlap, and properties of 10,000 random sets
 * of tapes. An op of x seconds is a matmul of x FLOPs, a message of x seconds has x bytes. */
#include "tests/unit/planner/small_tapes.h"

#include "base/philox.h"

/* ---- closed forms of overlap ---- */

/* An op of 100 s next to a message of `seconds` on another lane. */
static double overlapped(int seconds, double slowdown)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 1, 1, seconds);
    const double got = step_s(&set, (struct rates){2.0, 1.0, 0.0, slowdown, 0, 0, 0.0, 0.0});
    free(set.storage);
    return got;
}

Test(overlap, slows_the_overlapped_part)
{
    expect_near(overlapped(40, 0.0), 100.0);
    expect_near(overlapped(40, 0.25), 40.0 + (100.0 - 40.0 / 1.25)); // 32 s of it are done after 40 s
    expect_near(overlapped(125, 0.25), 125.0);
    expect_near(overlapped(124, 0.25), 124.0 + (100.0 - 124.0 / 1.25));
    expect_near(overlapped(200, 0.25), 200.0);
    expect_near(overlapped(40, 3.0), 40.0 + 90.0);
}

/* It is a part of its own, of the rank and of the critical path. */
Test(overlap, is_a_class_of_its_own)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 1, 1, 40);
    struct prediction *step = predict(&set, (struct rates){2.0, 1.0, 0.0, 0.25, 0, 0, 0.0, 0.0});
    expect_near(step->ranks[0].run_s[COST_MATMUL], 100.0);
    expect_near(step->ranks[0].run_s[COST_OVERLAP], 8.0);
    expect_near(step->path.run_s[COST_MATMUL], 100.0);
    expect_near(step->path.run_s[COST_OVERLAP], 8.0);
    cr_expect(step->ranks[1].run_s[COST_OVERLAP] <= 0.0);
    prediction_destroy(step);
    free(set.storage);
}

/* Two messages at once slow down as much as one, each for its own time. */
Test(overlap, is_counted_once)
{
    struct set set = set_create(3);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 1, 1, 40);
    p2p(&set, 2, 0, 1, 2, 60);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.5, 0, 0, 0.0, 0.0}),
                60.0 + (100.0 - 60.0 / 1.5));
    free(set.storage);
}

/* A message that waits for its other rank is not in flight; then it is, in the middle of an op. */
Test(overlap, begins_with_the_transfer)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    run_op(&set, 1, 1, 50);
    p2p(&set, 0, 1, 1, 1, 30);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.5, 0, 0, 0.0, 0.0}),
                50.0 + 30.0 + (50.0 - 30.0 / 1.5));
    free(set.storage);
}

/* What other ranks send to each other, and copies and ops of other lanes, slow nothing down; nor is an op of
 * another lane slowed down. */
Test(overlap, is_of_the_rank_and_its_compute_lane)
{
    struct set set = set_create(3);
    run_op(&set, 0, 0, 100);
    run_op(&set, 0, 2, 90);
    p2p(&set, 1, 2, 1, 1, 80);
    run_op(&set, 1, 2, 100);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.5, 0, 0, 0.0, 0.0}), 100.0);
    free(set.storage);
}

/* A message that begins earlier can be next to an op that was alone before. */
Test(overlap, can_make_a_step_with_a_faster_op_longer)
{
    double seconds[2];
    for (int faster = 0; faster < 2; faster++) {
        struct set set = set_create(3);
        run_op(&set, 0, 2, 20); // the op on the compute lane begins then
        record(&set, 0, 2);
        wait_for(&set, 0, 0, 2);
        run_op(&set, 0, 0, 10);
        p2p(&set, 0, 1, 0, 0, 1);
        run_op(&set, 1, 0, 8);
        run_op(&set, 2, 0, faster ? 20 : 30);
        p2p(&set, 2, 0, 0, 1, 10);
        seconds[faster] = step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.5, 0, 0, 0.0, 0.0});
        free(set.storage);
    }
    expect_near(seconds[0], 40.0);
    expect_near(seconds[1], 20.0 + 10.0 + (10.0 - 10.0 / 1.5) + 1.0 + 8.0);
}

/* ---- shared cores ---- */

static const struct rates ONE_CORE = {2.0, 1.0, 0.0, 0.0, 1, 2, 0.0, 0.0},
                          TWO_CORES = {2.0, 1.0, 0.0, 0.0, 2, 3, 0.0, 0.0};

/* Both run at half the speed until the shorter one ends. */
Test(shared_cores, slow_down_ops_of_all_ranks)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    run_op(&set, 1, 0, 50);
    struct prediction *step = predict(&set, ONE_CORE);
    expect_near(step->step_s, 150.0);
    for (int r = 0; r < 2; r++)
        expect_near(step->ranks[r].run_s[COST_SHARED_CORES], 50.0);
    expect_near(step->ranks[0].run_s[COST_MATMUL], 100.0);
    expect_near(step->ranks[1].bubble_s, 50.0);
    expect_near(step->path.run_s[COST_MATMUL], 100.0);
    expect_near(step->path.run_s[COST_SHARED_CORES], 50.0);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 2, 2, 0.0, 0.0}), 100.0); // a core each
    prediction_destroy(step);
    free(set.storage);
}

/* From 20 s, when rank 1 begins, to 80 s, when it ends. */
Test(shared_cores, are_shared_while_both_compute)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    run_op(&set, 1, 2, 20);
    record(&set, 1, 2);
    wait_for(&set, 1, 0, 2);
    run_op(&set, 1, 0, 30);
    struct prediction *step = predict(&set, ONE_CORE);
    expect_near(step->step_s, 130.0);
    expect_near(step->ranks[0].run_s[COST_SHARED_CORES], 30.0);
    expect_near(step->ranks[1].run_s[COST_SHARED_CORES], 30.0);
    prediction_destroy(step);
    free(set.storage);
}

/* A rank that waits for a message leaves its core to the others. */
Test(shared_cores, are_free_while_a_rank_waits)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 10);
    p2p(&set, 0, 1, 0, 0, 1);
    run_op(&set, 1, 0, 10);
    expect_near(step_s(&set, ONE_CORE), 21.0);
    free(set.storage);
}

/* Three ranks on two cores, then two. */
Test(shared_cores, are_as_many_as_there_are)
{
    struct set set = set_create(3);
    for (int r = 0; r < 3; r++)
        run_op(&set, r, 0, r == 0 ? 40 : 20);
    expect_near(step_s(&set, TWO_CORES), 30.0 + 20.0);
    free(set.storage);
}

/* A tape represents two of four ranks. */
Test(shared_cores, count_the_ranks_of_a_tape)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 10);
    p2p(&set, 0, 1, 0, 0, 1);
    run_op(&set, 1, 0, 10);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 2, 4, 0.0, 0.0}), 21.0);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 1, 4, 0.0, 0.0}), 41.0);
    free(set.storage);
}

/* Ranks on other nodes have other cores. */
Test(shared_cores, are_those_of_a_node)
{
    struct set set = set_create(4);
    for (int r = 0; r < 4; r++)
        run_op(&set, r, 0, 10);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 1, 2, 0.0, 0.0}), 20.0);
    expect_near(step_s(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 1, 4, 0.0, 0.0}), 40.0);
    free(set.storage);
}

/* One core: an op next to a rank that waits, then two ops, then one next to a rank that is at its end. */
Test(shared_cores, are_taken_by_processes_that_wait)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 0, 0, 1);
    run_op(&set, 0, 0, 10);
    run_op(&set, 1, 0, 20);
    struct rates rates = ONE_CORE;
    rates.waiting = 0.25;
    struct prediction *step = predict(&set, rates);
    expect_near(step->ranks[0].end_s, 125.0 + 1.0 + 20.0);
    expect_near(step->step_s, 146.0 + 12.5);
    expect_near(step->ranks[0].run_s[COST_SHARED_CORES], 25.0 + 10.0);
    expect_near(step->ranks[1].run_s[COST_SHARED_CORES], 10.0 + 2.5);
    prediction_destroy(step);
    rates.cores = 2;
    expect_near(step_s(&set, rates), 121.0);
    free(set.storage);
}

/* ---- messages on a CPU ---- */

/* The thread of a rank moves the message, for 40 s of the 140. */
Test(cpu_messages, pause_the_ops_of_their_ranks)
{
    struct set set = set_create(3);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 1, 1, 40);
    run_op(&set, 2, 0, 100);
    struct prediction *step = predict(&set, (struct rates){2.0, 1.0, 0.0, 0.25, 3, 3, 0.0, 0.0});
    expect_near(step->ranks[0].end_s, 140.0);
    expect_near(step->ranks[0].run_s[COST_MATMUL], 100.0);
    expect_near(step->ranks[0].exposed_s[GROUP_PP], 40.0);
    expect_near(step->path.transfer_s[GROUP_PP], 40.0);
    expect_near(step->ranks[2].end_s, 100.0);
    check_parts(step);
    prediction_destroy(step);
    free(set.storage);
}

/* Two messages that rank 0 sends take turns: 40 s until 80 s, 60 s until 100 s. */
Test(cpu_messages, share_the_thread)
{
    struct set set = set_create(3);
    run_op(&set, 0, 0, 100);
    p2p(&set, 0, 1, 1, 1, 40);
    p2p(&set, 0, 2, 2, 1, 60);
    struct prediction *step = predict(&set, (struct rates){2.0, 1.0, 0.0, 0.0, 3, 3, 0.0, 0.0});
    expect_near(step->ranks[1].end_s, 80.0);
    expect_near(step->ranks[2].end_s, 100.0);
    expect_near(step->step_s, 200.0);
    check_parts(step);
    prediction_destroy(step);
    free(set.storage);
}

/* One core: after the message rank 0 runs alone for 30 s, then both share the core. */
Test(cpu_messages, come_before_shared_cores)
{
    struct set set = set_create(2);
    run_op(&set, 0, 0, 100);
    run_op(&set, 1, 2, 60);
    p2p(&set, 0, 1, 1, 1, 30);
    record(&set, 1, 2);
    wait_for(&set, 1, 0, 2);
    run_op(&set, 1, 0, 100);
    struct prediction *step = predict(&set, ONE_CORE);
    expect_near(step->ranks[0].end_s, 60.0 + 140.0);
    expect_near(step->ranks[0].exposed_s[GROUP_PP], 30.0);
    expect_near(step->ranks[0].run_s[COST_SHARED_CORES], 70.0);
    expect_near(step->step_s, 200.0 + 30.0);
    check_parts(step);
    prediction_destroy(step);
    free(set.storage);
}

/* ---- random tapes ---- */

enum { RANDOM_SETS = 10000 };

struct random {
    struct philox generator;
    uint64_t at;
};

static int draw(struct random *random, int below)
{
    return (int)(philox_word(random->generator, 0, random->at++) % (uint32_t)below);
}

enum { ANY_LANE = -1, COMPUTE_LANE = 0 };

/* Tapes cannot deadlock: their items are added in an order in which they can run. All messages are on the
 * lane `messages`, so that a rank has no two at the same time, or on any lane. */
static struct set random_set(struct random *random, int messages)
{
    const bool shares = messages == ANY_LANE;
    struct set set = set_create(2 + draw(random, RANKS - 1));
    for (int left = 5 + draw(random, 60); left > 0; left--) {
        const int rank = draw(random, set.count), lane = draw(random, LANES), other = draw(random, LANES);
        switch (draw(random, 6)) {
        case 0:
        case 1:
            run_op(&set, rank, draw(random, 3) > 0 ? 0 : lane, 1 + draw(random, 50));
            break;
        case 2:
            record(&set, rank, lane);
            break;
        case 3:
            wait_for(&set, rank, lane, other);
            break;
        case 4:
            p2p(&set, rank, (rank + 1 + draw(random, set.count - 1)) % set.count, shares ? lane : messages,
                shares ? other : messages, 1 + draw(random, 50));
            break;
        default:
            if (draw(random, 3) == 0)
                all_reduce(&set, shares ? lane : messages, 1 + draw(random, 50));
            break;
        }
    }
    return set;
}

static double checked_step_s(const struct set *set, struct rates rates)
{
    struct prediction *step = predict(set, rates);
    const double seconds = step->step_s;
    check_parts(step);
    prediction_destroy(step);
    return seconds;
}

/* Messages were measured with four busy ranks on two cores, in 40 s: between two of them, 20 s while the
 * others wait, and 30 s while one of them computes. */
Test(cpu_messages, are_faster_while_ranks_wait)
{
    const struct rates rates = {.flops = 2.0, .link = 1.0, .cores = 2, .per_node = 4, .measured_s = 40.0};
    for (int busy = 0; busy <= 2; busy++) {
        struct set set = set_create(4);
        for (int r = 2; r < 2 + busy; r++)
            run_op(&set, r, 0, 500);
        run_op(&set, 0, 1, 5); // the others have begun
        p2p(&set, 0, 1, 1, 1, 1);
        struct prediction *step = predict(&set, rates);
        expect_near(step->ranks[0].end_s, 5.0 + 20.0 + 10.0 * busy);
        expect_near(step->ranks[1].end_s, 5.0 + 20.0 + 10.0 * busy);
        prediction_destroy(step);
        free(set.storage);
    }
}

/* ---- a simulation without contention, slowdown and shared cores ---- */

struct simple_lane {
    int at, events;
    double now_s, event_s[MAX_ITEMS + 1];
};

struct simple {
    const struct set *set;
    struct simple_lane lanes[RANKS][LANES];
    double ready_s[RANKS][RANKS][MAX_MESSAGES + 1], all_s[MAX_MESSAGES + 1]; // of messages, by their number
    int joined[RANKS][RANKS][MAX_MESSAGES + 1], all_joined[MAX_MESSAGES + 1];
    bool posted[RANKS][LANES];
};

/* Returns whether the message of the lane's next item has ended. */
static bool simple_message(struct simple *s, int rank, int l, const struct tape_message *m)
{
    struct simple_lane *lane = &s->lanes[rank][l];
    const bool collective = m->call == CALL_ALL_REDUCE;
    const int from = m->call == CALL_RECEIVE ? m->peer : rank, to = m->call == CALL_SEND ? m->peer : rank;
    double *ready_s = collective ? &s->all_s[m->number] : &s->ready_s[from][to][m->number];
    int *joined = collective ? &s->all_joined[m->number] : &s->joined[from][to][m->number];
    if (!s->posted[rank][l]) {
        s->posted[rank][l] = true;
        (*joined)++;
        *ready_s = fmax(*ready_s, lane->now_s);
    }
    if (*joined < (collective ? s->set->count : 2))
        return false;
    s->posted[rank][l] = false;
    const double ranks = s->set->count, rounds = collective ? 2.0 * (ranks - 1.0) / ranks : 1.0; // of a ring
    lane->now_s = *ready_s + rounds * (double)m->bytes;
    return true;
}

/* Returns false if the lane has to wait. */
static bool simple_item(struct simple *s, int rank, int l)
{
    const struct tape *tape = s->set->tapes[rank];
    struct simple_lane *lane = &s->lanes[rank][l];
    const struct tape_item *item = &tape->lanes[l].items[lane->at];
    const struct simple_lane *other = &s->lanes[rank][item->lane];
    switch (item->kind) {
    case TAPE_OP:
        lane->now_s += (double)tape->ops[item->index].shape[0];
        break;
    case TAPE_RECORD:
        lane->event_s[++lane->events] = lane->now_s;
        break;
    case TAPE_WAIT:
        if (other->events < item->index)
            return false;
        lane->now_s = fmax(lane->now_s, other->event_s[item->index]);
        break;
    case TAPE_MESSAGE:
        if (!simple_message(s, rank, l, &tape->messages[item->index]))
            return false;
        break;
    }
    lane->at++;
    return true;
}

static double simple_step_s(const struct set *set)
{
    struct simple *s = calloc(1, sizeof *s);
    double step_s = 0.0;
    cr_assert_not_null(s);
    s->set = set;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < set->count * LANES; i++)
            while (s->lanes[i / LANES][i % LANES].at < set->tapes[i / LANES]->lanes[i % LANES].count &&
                   simple_item(s, i / LANES, i % LANES))
                any = true;
    }
    for (int i = 0; i < set->count * LANES; i++)
        step_s = fmax(step_s, s->lanes[i / LANES][i % LANES].now_s);
    free(s);
    return step_s;
}

/* ---- their properties ---- */

/* A faster device, a faster link, a shorter latency and one op that is faster never make a step longer. */
static void check_faster(struct set *set, struct random *random)
{
    const struct rates base = {2.0, 1.0, 3.0, 0.0, 0, 0, 0.0, 0.0},
                       faster[] = {{2.0 + 1.0 * draw(random, 5), 1.0, 3.0, 0.0, 0, 0, 0.0, 0.0},
                                   {2.0, 1.0 + 0.5 * draw(random, 5), 3.0, 0.0, 0, 0, 0.0, 0.0},
                                   {2.0, 1.0, 0.1 * draw(random, 31), 0.0, 0, 0, 0.0, 0.0}};
    const double limit_s = step_s(set, base) * (1.0 + 1e-12);
    for (size_t i = 0; i < sizeof faster / sizeof *faster; i++)
        cr_expect(step_s(set, faster[i]) <= limit_s, "%zu", i);
    struct tape *tape = set->tapes[draw(random, set->count)];
    if (tape->op_count == 0)
        return;
    int64_t *size = &tape->ops[draw(random, tape->op_count)].shape[0];
    *size = 1 + draw(random, (int)*size);
    cr_expect(step_s(set, base) <= limit_s);
}

Test(random_tapes, are_never_slower_on_a_faster_cluster)
{
    struct random random = {.generator = philox_named(11, "tapes")};
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, MESSAGES);
        check_faster(&set, &random);
        free(set.storage);
    }
}

/* With a slowdown s a step takes between 1 and 1 + s times as long as without. */
Test(random_tapes, are_slowed_down_by_at_most_the_slowdown)
{
    struct random random = {.generator = philox_named(12, "tapes")};
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, MESSAGES);
        const double slowdown = 0.1 * draw(&random, 20);
        const double alone_s = checked_step_s(&set, ONE);
        expect_near(alone_s, simple_step_s(&set));
        const double got_s = checked_step_s(&set, (struct rates){2.0, 1.0, 0.0, slowdown, 0, 0, 0.0, 0.0});
        cr_expect(got_s >= alone_s * (1.0 - 1e-12) && got_s <= alone_s * (1.0 + slowdown) * (1.0 + 1e-12),
                  "%g s, alone %g s", got_s, alone_s);
        free(set.storage);
    }
}

/* Each of at most LANES messages of a rank has an equal share, so no item takes more than LANES times as long
 * as without contention. */
Test(random_tapes, share_links)
{
    struct random random = {.generator = philox_named(14, "tapes")};
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, ANY_LANE);
        const double got_s = checked_step_s(&set, ONE), alone_s = simple_step_s(&set);
        cr_expect(got_s >= alone_s * (1.0 - 1e-12) && got_s <= LANES * alone_s * (1.0 + 1e-12),
                  "%g s, alone %g s", got_s, alone_s);
        free(set.storage);
    }
}

/* On fewer cores than ranks a step takes as long as its ops on all cores, or longer, and at most
 * ranks / cores times as long as with a core for each, if no messages pause ops. */
Test(random_tapes, share_cores)
{
    struct random random = {.generator = philox_named(13, "tapes")};
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, COMPUTE_LANE);
        const int cores = 1 + draw(&random, set.count);
        const double alone_s = simple_step_s(&set);
        struct prediction *step =
            predict(&set, (struct rates){2.0, 1.0, 0.0, 0.3, cores, set.count, 0.0, 0.0});
        double busy_s = 0.0;
        check_parts(step);
        for (int r = 0; r < set.count; r++)
            busy_s += step->ranks[r].run_s[COST_MATMUL];
        cr_expect(step->step_s >= busy_s / cores * (1.0 - 1e-12));
        cr_expect(step->step_s <= alone_s * set.count / cores * (1.0 + 1e-12) &&
                  step->step_s >= alone_s * (1.0 - 1e-12));
        prediction_destroy(step);
        free(set.storage);
    }
}

/* The thread of a CPU's rank runs an op or moves a message, but not both. */
Test(random_tapes, use_a_thread_for_one_thing_at_a_time)
{
    struct random random = {.generator = philox_named(15, "tapes")};
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, MESSAGES);
        const int cores = 1 + draw(&random, set.count);
        struct prediction *step =
            predict(&set, (struct rates){2.0, 1.0, 0.0, 0.3, cores, set.count, 0.0, 0.0});
        check_parts(step);
        for (int r = 0; r < set.count; r++) {
            double busy_s = step->ranks[r].run_s[COST_MATMUL];
            for (int g = 0; g < PREDICT_GROUPS; g++)
                busy_s += step->ranks[r].transfer_s[g];
            cr_expect(busy_s <= step->step_s * (1.0 + 1e-12), "%g of %g s", busy_s, step->step_s);
        }
        prediction_destroy(step);
        free(set.storage);
    }
}

/* A prediction that ends early is of a step that takes longer than its limit; otherwise it is the same. */
Test(random_tapes, end_early_only_above_the_limit)
{
    struct random random = {.generator = philox_named(16, "tapes")};
    int early = 0;
    for (int i = 0; i < RANDOM_SETS; i++) {
        struct set set = random_set(&random, MESSAGES);
        const int cores = draw(&random, set.count + 1); // 0: GPUs
        const struct rates rates = {2.0, 1.0, 0.0, 0.3, cores, set.count, 0.0, 0.0};
        const double seconds = step_s(&set, rates), limit_s = seconds * 0.1 * (1 + draw(&random, 10));
        struct prediction *step = predict_limited(&set, rates, RANKS, limit_s);
        cr_expect(step->exceeds ? seconds > limit_s : step->step_s == seconds, "%g s, limit %g s", seconds,
                  limit_s);
        early += step->exceeds;
        prediction_destroy(step);
        free(set.storage);
    }
    cr_expect(early > RANDOM_SETS / 10, "%d ended early", early);
}
