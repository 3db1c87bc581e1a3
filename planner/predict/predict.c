// SPDX-License-Identifier: Apache-2.0
#include "planner/predict/predict.h"

#include "base/memory.h"
#include "base/text.h"
#include "planner/predict/lanes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative error of the sum of a step's ops. */
#define ROUNDING 1e-9

const char *predict_group_name(enum predict_group group)
{
    static const char *const names[] = {
        [GROUP_TP] = "tp",     [GROUP_PP] = "pp",     [GROUP_DP] = "dp",
        [GROUP_ZERO] = "zero", [GROUP_HOST] = "host", [GROUP_OTHER] = "other"};
    CHECK(group < PREDICT_GROUPS);
    return names[group];
}

static enum predict_group group_of(const struct tape_group *group, enum call call)
{
    const bool is_sharded = call == CALL_REDUCE_SCATTER || call == CALL_ALL_GATHER;
    if (strncmp(group->name, "tp", 2) == 0 || strncmp(group->name, "kv", 2) == 0)
        return GROUP_TP;
    if (strncmp(group->name, "pp", 2) == 0)
        return GROUP_PP;
    if (tape_group_is_data(group) || strcmp(group->name, "ties") == 0)
        return is_sharded ? GROUP_ZERO : GROUP_DP;
    return GROUP_OTHER;
}

/* ---- setup ---- */

static bool is_p2p(const struct tape_message *message)
{
    return message->call == CALL_SEND || message->call == CALL_RECEIVE;
}

/* Indices of messages, one of each call, bytes and ranks. */
struct kinds {
    int *list; // [message_count]
    int count;
    int next; // where a search starts
};

/* A message of this tape between the same ranks in the same direction, of the same call and bytes if there is
 * one; NULL: none. Layers repeat: usually the same two kinds have followed each other before. */
static const struct lane_message *find_similar(const struct rank *rank, struct kinds *kinds, int message,
                                               bool *same_bytes)
{
    const struct tape_message *m = &rank->tape->messages[message];
    const struct lane_message *found = NULL;
    for (int tried = 0; tried < kinds->count && !*same_bytes; tried++) {
        kinds->next = kinds->next < kinds->count ? kinds->next : 0;
        const int i = kinds->list[kinds->next++];
        const struct tape_message *before = &rank->tape->messages[i];
        if (before->group == m->group && is_p2p(m) == is_p2p(before) &&
            (!is_p2p(m) || (before->call == m->call && before->peer == m->peer))) {
            *same_bytes = before->call == m->call && before->bytes == m->bytes;
            found = found == NULL || *same_bytes ? &rank->messages[i] : found;
        }
    }
    if (!*same_bytes) {
        kinds->list[kinds->count++] = message;
        kinds->next = kinds->count;
    }
    return found;
}

struct message_kind predict_message_kind(const struct cost_options *options, const struct tape *tape,
                                         const struct tape_message *message)
{
    const struct tape_group *group = &tape->groups[message->group];
    const int two[] = {tape->rank, message->peer};
    struct group_shape shape = is_p2p(message) ? cost_group_shape(options, two, 2)
                                               : cost_group_shape(options, group->ranks, group->size);
    shape.ring = is_p2p(message) ? group->size : 0;
    return (struct message_kind){.call = message->call,
                                 .shape = shape,
                                 .bytes = message->bytes,
                                 .group = group_of(group, message->call)};
}

double predict_message_s(const struct cost_options *options, const struct message_kind *kind)
{
    const struct assumptions *assume = options->assume;
    const bool all_reduces = assume != NULL && assume->gradient_reduction == ASSUME_REDUCTION_ALL_REDUCE &&
                             kind->group == GROUP_ZERO && kind->call == CALL_REDUCE_SCATTER;
    const enum call call = all_reduces ? CALL_ALL_REDUCE : kind->call;
    const double seconds = cost_of_message(options, call, kind->shape, kind->bytes);
    return assume != NULL && kind->group == GROUP_TP ? seconds * (1.0 - assume->tp_overlap) : seconds;
}

static double message_seconds(const struct cost_options *options, const struct rank *rank,
                              const struct tape_message *message)
{
    const struct message_kind kind = predict_message_kind(options, rank->tape, message);
    return predict_message_s(options, &kind);
}

/* The index of the other rank of a message between two ranks that have a tape. */
static int peer_index(const struct predictor *p, const struct tape_message *message)
{
    for (int r = 0; r < p->count && is_p2p(message); r++)
        if (p->ranks[r].tape->rank == message->peer)
            return r;
    return NO_PEER;
}

static unsigned message_uses(const struct cost_options *options, const struct rank *rank,
                             const struct tape_message *message)
{
    const struct message_kind kind = predict_message_kind(options, rank->tape, message);
    return contention_uses(kind.call, kind.shape);
}

static void find_messages(struct predictor *p, const struct cost_options *options, struct rank *rank,
                          struct kinds *kinds)
{
    const struct tape *tape = rank->tape;
    for (int i = 0; i < tape->message_count; i++) {
        const struct tape_message *message = &tape->messages[i];
        struct lane_message *out = &rank->messages[i];
        bool same_bytes = false;
        const struct lane_message *before = find_similar(rank, kinds, i, &same_bytes);
        if (same_bytes) {
            *out = *before;
        } else {
            *out = (struct lane_message){.group = group_of(&tape->groups[message->group], message->call)};
            out->series = before != NULL ? before->series : rendezvous_series(p->rendezvous, tape, message);
            out->seconds = message_seconds(options, rank, message);
            out->uses = message_uses(options, rank, message);
            out->peer = before != NULL ? before->peer : peer_index(p, message);
        }
        rendezvous_reserve(p->rendezvous, out->series, message->number);
    }
}

/* After all messages of all ranks are found. */
static void find_rendezvous(const struct predictor *p, struct rank *rank)
{
    for (int i = 0; i < rank->tape->message_count; i++)
        rank->messages[i].rendezvous =
            rendezvous_at(p->rendezvous, rank->messages[i].series, rank->tape->messages[i].number);
}

static void create_lanes(struct predictor *p, struct rank *rank)
{
    const struct tape *tape = rank->tape;
    for (int i = 0; i < tape->lane_count; i++) {
        struct lane *lane = &rank->lanes[i];
        int events = 0;
        *lane =
            (struct lane){.items = &tape->lanes[i], .rank = rank, .order = p->lane_count++, .cause = NO_SPAN};
        for (int k = 0; k < lane->items->count; k++)
            if (lane->items->items[k].kind == TAPE_RECORD) {
                lane->first = events == 0 ? lane->items->items[k].index : lane->first;
                events++;
            }
        lane->recorded = memory_zeroed((size_t)events + 1, sizeof *lane->recorded, "the events of a lane");
        lanes_wake(p, lane);
    }
}

static void create_rank(struct predictor *p, const struct cost_options *options, struct rank *rank)
{
    const struct tape *tape = rank->tape;
    rank->lanes = memory_zeroed((size_t)tape->lane_count + 1, sizeof *rank->lanes, "a prediction");
    rank->ops = memory_zeroed((size_t)tape->op_count + 1, sizeof *rank->ops, "a prediction");
    rank->messages = memory_zeroed((size_t)tape->message_count + 1, sizeof *rank->messages, "a prediction");
    rank->phases = memory_zeroed((size_t)tape->action_count + 1, sizeof *rank->phases, "a prediction");
    for (int i = 0; i < tape->op_count; i++) {
        const enum op_kind kind = tape->ops[i].kind;
        const struct op_time time = cost_of_op(options, &tape->ops[i]);
        rank->ops[i] = (struct lane_op){.seconds = time.run_s + time.launch_s,
                                        .run_s = time.run_s,
                                        .launch_s = time.launch_s,
                                        .class = cost_class_of(kind),
                                        .is_copy = kind == OP_TO_DEVICE || kind == OP_TO_HOST};
    }
    for (int i = 0; i < tape->action_count; i++)
        rank->phases[i] = period_phase(&tape->actions[i]);
    struct kinds kinds = {
        .list = memory_zeroed((size_t)tape->message_count + 1, sizeof *kinds.list, "a prediction")};
    find_messages(p, options, rank, &kinds);
    free(kinds.list);
    create_lanes(p, rank);
}

static void destroy_rank(struct rank *rank)
{
    for (int i = 0; i < rank->tape->lane_count; i++)
        free(rank->lanes[i].recorded);
    free(rank->lanes);
    free(rank->ops);
    free(rank->messages);
    free(rank->phases);
    free(rank->contention.peer_lanes);
}

/* Finds the ranks that share the cores of a CPU. The ranks of a node that have a tape each represent the same
 * number of its ranks. */
static void share_cores(struct predictor *p, const struct cost_options *options)
{
    const struct profile_device *device = &options->profile->device;
    const int per_node = options->ranks_per_node > 0 ? options->ranks_per_node : 1;
    const bool measured = options->profile->measured[MEASURED_P2P].count > 0;
    if (!device->is_cpu)
        return;
    p->nodes = memory_zeroed((size_t)p->count, sizeof *p->nodes, "the nodes of ranks");
    for (int r = 0; r < p->count; r++) {
        const int node = p->ranks[r].tape->rank / per_node;
        int at = 0;
        while (p->nodes[at].ranks > 0 && p->nodes[at].node != node)
            at++;
        p->nodes[at] =
            (struct node_cores){.node = node,
                                .ranks = p->nodes[at].ranks + 1,
                                .cores = device->cores,
                                .measured_crowding = measured ? (double)per_node / device->cores : 0.0};
        p->ranks[r].cores = &p->nodes[at];
    }
    for (int r = 0; r < p->count; r++) {
        const int represented = per_node / p->ranks[r].cores->ranks;
        const double ranks = represented > 0 ? represented : 1;
        p->ranks[r].represents = ranks;
        p->ranks[r].threads = cost_threads(options) * ranks;
        p->ranks[r].waiting = options->processes ? options->profile->node.waiting_process * ranks : 0.0;
        p->ranks[r].taken = p->ranks[r].waiting;
        p->ranks[r].cores->busy += p->ranks[r].waiting;
    }
}

static void create(struct predictor *p, const struct cost_options *options, struct tape *const *tapes)
{
    p->rendezvous = rendezvous_table_create(tapes, p->count);
    for (int r = 0; r < p->count; r++) {
        p->ranks[r].out = &p->out->ranks[r];
        p->ranks[r].index = r;
        p->ranks[r].tape = tapes[r];
    }
    for (int r = 0; r < p->count; r++)
        create_rank(p, options, &p->ranks[r]);
    for (int r = 0; r < p->count; r++) {
        find_rendezvous(p, &p->ranks[r]);
        p->ranks[r].contention.peer_lanes =
            memory_zeroed((size_t)p->lane_count + 1, sizeof(struct lane *), "a prediction");
    }
    share_cores(p, options);
    p->heap = memory_zeroed((size_t)p->lane_count + 1, sizeof *p->heap, "a prediction");
}

/* ---- the simulation ---- */

static enum status check_ended(const struct predictor *p)
{
    struct text why = {0};
    for (int r = 0; r < p->count; r++)
        for (int l = 0; l < p->ranks[r].tape->lane_count; l++) {
            const struct tape *tape = p->ranks[r].tape;
            const struct lane *lane = &p->ranks[r].lanes[l];
            if (lane->at < lane->items->count)
                text_add(&why, "%srank %d waits in %s (stream %s)", why.length > 0 ? ", " : "", tape->rank,
                         tape->actions[lane->items->items[lane->at].action].name, lane->items->name);
        }
    enum status status = why.length == 0 ? OK : fail(BAD_SCHEDULE, "deadlock: %s", text_chars(&why));
    text_free(&why);
    return status;
}

static void add_ops(struct rank *rank)
{
    for (int i = 0; i < rank->tape->op_count; i++) {
        const struct lane_op *op = &rank->ops[i];
        rank->out->run_s[op->class] += (double)op->count * op->run_s;
        rank->out->run_s[COST_LAUNCH] += (double)op->count * op->launch_s;
    }
}

/* After the end of a rank's compute lane come transfers, then the wait for the slowest rank. */
static void finish(struct predictor *p)
{
    struct prediction *out = p->out;
    for (int r = 0; r < p->count; r++) {
        struct rank *rank = &p->ranks[r];
        double now_s = rank->tape->lane_count > 0 ? rank->lanes[COMPUTE].now_s : 0.0;
        for (int l = 0; l < rank->tape->lane_count; l++) {
            const struct lane *lane = &rank->lanes[l];
            if (lane->now_s > out->step_s) {
                out->step_s = lane->now_s;
                out->last_span = lane->cause;
            }
            if (lane->now_s > now_s) {
                rank->out->exposed_s[lane->group] += lane->now_s - now_s;
                now_s = lane->now_s;
            }
        }
        rank->out->end_s = now_s;
        add_ops(rank);
    }
    for (int r = 0; r < p->count; r++)
        out->ranks[r].bubble_s += out->step_s - out->ranks[r].end_s;
}

/* Sums up the ops of the compute lanes. There is no limit for steps that overlap (lanes.h): these can be
 * shorter than the simulated one. */
static void add_limit(struct predictor *p)
{
    for (int r = 0; r < p->count; r++) {
        struct rank *rank = &p->ranks[r];
        const struct tape *tape = rank->tape;
        if (period_has_verdict(rank))
            p->limit_s = INFINITY;
        for (int i = 0; tape->lane_count > 0 && i < tape->lanes[COMPUTE].count; i++)
            if (tape->lanes[COMPUTE].items[i].kind == TAPE_OP)
                rank->ops_left_s += rank->ops[tape->lanes[COMPUTE].items[i].index].seconds;
    }
}

static enum status run_simulation(struct predictor *p, const struct cost_options *options,
                                  struct tape *const *tapes)
{
    create(p, options, tapes);
    if (!isinf(p->limit_s))
        add_limit(p);
    lanes_run(p);
    if (p->out->exceeds)
        return OK;
    TRY(check_ended(p));
    finish(p);
    if (p->records_spans)
        critical_path_find(p);
    period_find(p);
    return OK;
}

static struct prediction *prediction_create(int count)
{
    struct prediction *prediction = memory_zeroed(1, sizeof *prediction, "a prediction");
    *prediction =
        (struct prediction){.count = count,
                            .ranks = memory_zeroed((size_t)count, sizeof *prediction->ranks, "a prediction"),
                            .last_span = NO_SPAN};
    return prediction;
}

static enum status predict(const struct cost_options *options, struct tape *const *tapes, int count,
                           double limit_s, bool records_spans, struct prediction **out)
{
    struct predictor predictor = {.ranks =
                                      memory_zeroed((size_t)count, sizeof *predictor.ranks, "a prediction"),
                                  .count = count,
                                  .out = prediction_create(count),
                                  .slowdown = 1.0 + options->profile->model.overlap_slowdown,
                                  .limit_s = limit_s,
                                  .records_spans = records_spans};
    const enum status status = run_simulation(&predictor, options, tapes);
    for (int r = 0; r < count; r++)
        destroy_rank(&predictor.ranks[r]);
    free(predictor.ranks);
    free(predictor.nodes);
    free(predictor.heap);
    rendezvous_table_destroy(predictor.rendezvous);
    if (status == OK)
        *out = predictor.out;
    else
        prediction_destroy(predictor.out);
    return status;
}

enum status predict_step(const struct cost_options *options, struct tape *const *tapes, int count,
                         struct prediction **out)
{
    return predict(options, tapes, count, INFINITY, false, out);
}

enum status predict_within(const struct cost_options *options, struct tape *const *tapes, int count,
                           double limit_s, struct prediction **out)
{
    return predict(options, tapes, count, limit_s * (1.0 + ROUNDING), false, out);
}

enum status predict_timeline(const struct cost_options *options, struct tape *const *tapes, int count,
                             struct prediction **out)
{
    return predict(options, tapes, count, INFINITY, true, out);
}

void prediction_destroy(struct prediction *prediction)
{
    if (prediction == NULL)
        return;
    free(prediction->ranks);
    free(prediction->spans);
    free(prediction);
}
