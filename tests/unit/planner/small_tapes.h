// SPDX-License-Identifier: Apache-2.0
/* Small tapes made by hand, and their predictions. An op of x seconds is a matmul of x FLOPs, a message of x
 * seconds has x bytes. Lane 0 computes.
 *
 *     struct set set = set_create(2);
 *     run_op(&set, 0, 0, 100);             // 100 s on the compute lane of rank 0
 *     p2p(&set, 0, 1, 1, 1, 40);           // from rank 0 to rank 1, on lane 1 of both
 *     expect_near(step_s(&set, ONE), 100.0);
 *     free(set.storage); */
#pragma once

#include "tests/unit/planner/ideal_profile.h"

#include "planner/predict/predict.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4,
    LANES = 3,
    MESSAGES = 1,
    MAX_ITEMS = 400,
    MAX_OPS = 200,
    MAX_MESSAGES = 200,
    WORLD = 0,
    PIPELINE = 1
};

/* A tape whose lists have a fixed capacity. */
struct fixed_tape {
    struct tape tape;
    struct tape_lane lanes[LANES];
    struct tape_item items[LANES][MAX_ITEMS];
    struct op_record ops[MAX_OPS];
    struct tape_message messages[MAX_MESSAGES];
    struct tape_group groups[2];
    struct tape_action actions[1];
    int events[LANES]; // recorded
    int ranks[RANKS];
};

struct set {
    struct fixed_tape *storage; // [count]
    struct tape *tapes[RANKS];
    int count;
    int64_t collectives, sent[RANKS][RANKS]; // so far
};

static inline struct set set_create(int count)
{
    struct set set = {.storage = calloc((size_t)count, sizeof *set.storage), .count = count};
    cr_assert_not_null(set.storage);
    for (int r = 0; r < count; r++) {
        struct fixed_tape *m = &set.storage[r];
        m->tape = (struct tape){.rank = r,
                                .lanes = m->lanes,
                                .ops = m->ops,
                                .groups = m->groups,
                                .messages = m->messages,
                                .actions = m->actions,
                                .lane_count = LANES,
                                .group_count = 2,
                                .action_count = 1};
        for (int i = 0; i < count; i++)
            m->ranks[i] = i;
        m->groups[WORLD] = (struct tape_group){.name = "world", .size = count, .ranks = m->ranks};
        m->groups[PIPELINE] = (struct tape_group){.name = "pp", .size = count, .ranks = m->ranks};
        m->actions[0] = (struct tape_action){"0F0", {.exists = true, .kind = FORWARD}};
        for (int l = 0; l < LANES; l++)
            m->lanes[l].items = m->items[l];
        set.tapes[r] = &m->tape;
    }
    return set;
}

static inline void append(struct set *set, int rank, int lane, struct tape_item item)
{
    struct tape_lane *at = &set->storage[rank].lanes[lane];
    cr_assert(at->count < MAX_ITEMS);
    at->items[at->count++] = item;
}

static inline void run_op(struct set *set, int rank, int lane, int seconds)
{
    struct tape *tape = set->tapes[rank];
    cr_assert(tape->op_count < MAX_OPS);
    tape->ops[tape->op_count] =
        (struct op_record){.kind = OP_GEMM, .dtype = F32, .shape = {seconds, 1, 1}, .launches = 0};
    append(set, rank, lane, (struct tape_item){.kind = TAPE_OP, .index = tape->op_count++});
}

static inline void message(struct set *set, int rank, int lane, struct tape_message message)
{
    struct tape *tape = set->tapes[rank];
    cr_assert(tape->message_count < MAX_MESSAGES);
    tape->messages[tape->message_count] = message;
    append(set, rank, lane, (struct tape_item){.kind = TAPE_MESSAGE, .index = tape->message_count++});
}

static inline void p2p(struct set *set, int from, int to, int from_lane, int to_lane, int seconds)
{
    const int64_t number = ++set->sent[from][to];
    struct tape_message send = {
        .call = CALL_SEND, .group = PIPELINE, .bytes = seconds, .peer = to, .number = number};
    message(set, from, from_lane, send);
    send.call = CALL_RECEIVE;
    send.peer = from;
    message(set, to, to_lane, send);
}

static inline void all_reduce(struct set *set, int lane, int bytes)
{
    set->collectives++;
    for (int r = 0; r < set->count; r++)
        message(set, r, lane,
                (struct tape_message){.call = CALL_ALL_REDUCE,
                                      .group = WORLD,
                                      .bytes = bytes,
                                      .peer = -1,
                                      .number = set->collectives});
}

static inline void record(struct set *set, int rank, int lane)
{
    append(set, rank, lane,
           (struct tape_item){.kind = TAPE_RECORD, .index = ++set->storage[rank].events[lane]});
}

/* For the last event recorded by `other`. */
static inline void wait_for(struct set *set, int rank, int lane, int other)
{
    const int number = set->storage[rank].events[other];
    if (number > 0)
        append(set, rank, lane,
               (struct tape_item){.kind = TAPE_WAIT, .lane = (int16_t)other, .index = number});
}

/* ---- predictions ---- */

/* cores: 0: a GPU for each rank; else of the CPU of a node, with one thread for each of `per_node` ranks, of
 * which each tape stands for equally many. */
struct rates {
    double flops, link, latency_s, slowdown;
    int cores, per_node;
    double waiting;    // cores that a process takes while it waits; 0: ranks are threads
    double measured_s; // of a message of one byte between two busy ranks; 0: messages are not measured
};

/* The rate of a matmul of x FLOPs, 2·m·n·k with m = x, is 2 FLOP/s. */
static const struct rates ONE = {2.0, 1.0, 0.0, 0.0, 0, 0, 0.0, 0.0};

/* GPUs: nodes of `per_node` ranks, each with a NIC of the bandwidth of a link for every rank. A finite limit:
 * predict_within(). */
static inline struct prediction *predict_limited(const struct set *set, struct rates rates, int per_node,
                                                 double limit_s)
{
    struct cluster_profile *p = ideal_profile(rates.flops, 1e30);
    const struct cost_options options = {.profile = p,
                                         .ranks_per_node = rates.cores > 0 ? rates.per_node : per_node,
                                         .threads = 1,
                                         .processes = rates.waiting > 0.0};
    struct prediction *step = NULL;
    p->node.link_bandwidth = rates.link;
    p->network = (struct profile_network){.nics = per_node, .bandwidth = rates.link};
    p->node.link_latency_s = rates.latency_s;
    p->model.overlap_slowdown = rates.slowdown;
    p->node.waiting_process = rates.waiting;
    if (rates.measured_s > 0.0)
        profile_add_sample(p, MEASURED_P2P,
                           &(struct profile_sample){
                               .shape = {2, 1, 1}, .node_ranks = rates.per_node, .value = rates.measured_s});
    p->device.is_cpu = rates.cores > 0;
    for (int i = 0; i < PROFILE_DTYPES && rates.cores > 0; i++) {
        p->device.cores = rates.cores;
        p->device.peak_flops[i] = rates.flops * rates.cores; // a rank has one of them
    }
    const enum status status = isinf(limit_s)
                                   ? predict_timeline(&options, set->tapes, set->count, &step)
                                   : predict_within(&options, set->tapes, set->count, limit_s, &step);
    cr_assert(status == OK, "%s", fail_text());
    profile_destroy(p);
    return step;
}

static inline struct prediction *predict_on(const struct set *set, struct rates rates, int per_node)
{
    return predict_limited(set, rates, per_node, INFINITY);
}

static inline struct prediction *predict(const struct set *set, struct rates rates)
{
    return predict_on(set, rates, RANKS);
}

static inline double step_s(const struct set *set, struct rates rates)
{
    struct prediction *step = predict(set, rates);
    const double seconds = step->step_s;
    prediction_destroy(step);
    return seconds;
}

static inline void expect_near(double got, double expected)
{
    cr_expect(fabs(got - expected) <= 1e-9 * fabs(expected), "%.17g instead of %.17g", got, expected);
}

/* Spans follow their causes without a gap; those of the critical path add up to the step, as do the parts of
 * each rank. */
static inline void check_parts(const struct prediction *step)
{
    double path_s = 0.0, critical_s = 0.0;
    for (int c = 0; c < COST_CLASSES; c++)
        path_s += step->path.run_s[c];
    for (int g = 0; g < PREDICT_GROUPS; g++)
        path_s += step->path.transfer_s[g];
    for (int r = 0; r < step->count; r++) {
        const struct predicted_rank *rank = &step->ranks[r];
        double sum = rank->bubble_s;
        for (int c = 0; c < COST_CLASSES; c++)
            sum += rank->run_s[c];
        for (int g = 0; g < PREDICT_GROUPS; g++)
            sum += rank->exposed_s[g];
        expect_near(sum, step->step_s);
        critical_s += rank->critical_s;
    }
    expect_near(path_s, step->step_s);
    expect_near(critical_s, step->step_s);
    for (int64_t i = 0; i < step->span_count; i++) {
        const struct predicted_span *span = &step->spans[i];
        const double cause_s = span->cause >= 0 ? step->spans[span->cause].end_s : 0.0;
        cr_expect(!(span->begin_s < cause_s || span->begin_s > cause_s) && span->cause < i);
    }
}
