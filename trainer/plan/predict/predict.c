// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/predict/predict.h"

#include "base/text.h"
#include "trainer/plan/predict/meeting.h"

#include <stdlib.h>
#include <string.h>

enum { COMPUTE = 0 }; // the first lane of a tape

/* An event: when it was recorded, and the transfer before it on its lane. */
struct recorded {
    double at_s;
    double transfer_s;
    enum predict_group group;
};

struct lane {
    const struct tape_lane *items;
    struct rank *rank;
    int at;       // next item
    double now_s; // end of the previous item
    int first;    // number of its first event in the tape
    int events;   // recorded so far
    struct recorded *recorded;
    double transfer_s; // of the last message
    enum predict_group group;
    bool posted; // the messages of the next item are
    bool held;   // the next item is a wait for an event that is not recorded
    bool queued;
    struct lane *next;         // in the queue
    struct lane *next_waiting; // in a meeting
};

struct rank {
    const struct tape *tape;
    struct lane *lanes;
    struct op_time *ops;          // [tape->op_count]
    double *messages;             // [tape->message_count] seconds
    int *series;                  // [tape->message_count] of meetings
    enum predict_group *group_of; // [tape->group_count]
    struct group_shape *shapes;   // [tape->group_count]
    struct predicted_rank *out;
};

struct predictor {
    struct rank *ranks;
    int count;
    struct meetings *meetings;
    struct lane *head, *tail; // lanes that can run
};

const char *predict_group_name(enum predict_group group)
{
    static const char *const names[] = {[GROUP_TP] = "tp",
                                        [GROUP_PP] = "pp",
                                        [GROUP_DP] = "dp",
                                        [GROUP_HOST] = "host",
                                        [GROUP_OTHER] = "other"};
    CHECK(group < PREDICT_GROUPS);
    return names[group];
}

static enum predict_group kind_of(const struct tape_group *group)
{
    if (strncmp(group->name, "tp", 2) == 0 || strncmp(group->name, "kv", 2) == 0)
        return GROUP_TP;
    if (strncmp(group->name, "pp", 2) == 0)
        return GROUP_PP;
    if (strstr(group->name, "dp") != NULL || strcmp(group->name, "ties") == 0)
        return GROUP_DP;
    return GROUP_OTHER;
}

/* ---- the queue of lanes that can run ---- */

static void push(struct predictor *p, struct lane *lane)
{
    if (lane->queued)
        return;
    lane->queued = true;
    lane->next = NULL;
    if (p->tail != NULL)
        p->tail->next = lane;
    else
        p->head = lane;
    p->tail = lane;
}

static struct lane *pop(struct predictor *p)
{
    struct lane *lane = p->head;
    p->head = lane->next;
    if (p->head == NULL)
        p->tail = NULL;
    lane->queued = false;
    return lane;
}

static bool is_compute(const struct lane *lane)
{
    return lane == &lane->rank->lanes[COMPUTE];
}

static const struct tape_item *item_of(const struct lane *lane)
{
    return &lane->items->items[lane->at];
}

/* Actions from the optimizer on. */
static bool in_update(const struct lane *lane)
{
    const char *name = lane->rank->tape->actions[item_of(lane)->action].name;
    return strcmp(name, "optimizer") == 0 || strcmp(name, "verdict") == 0;
}

/* ---- items ---- */

/* A copy between host and device on a lane of its own is a transfer that the compute lane may wait for. */
static void account_copy(struct lane *lane, const struct op_record *op, double seconds)
{
    struct predicted_rank *out = lane->rank->out;
    if (op->kind != OP_TO_DEVICE && op->kind != OP_TO_HOST)
        return;
    lane->group = GROUP_HOST;
    lane->transfer_s += seconds;
    out->transfer_s[GROUP_HOST] += seconds;
    out->bytes[GROUP_HOST] += (int64_t)op->cost.bytes;
    out->calls[GROUP_HOST]++;
}

static void run_op(struct lane *lane)
{
    const struct op_record *op = &lane->rank->tape->ops[item_of(lane)->index];
    const struct op_time time = lane->rank->ops[item_of(lane)->index];
    lane->now_s += time.run_s + time.launch_s;
    if (!is_compute(lane)) {
        account_copy(lane, op, time.run_s);
        return;
    }
    lane->rank->out->run_s[cost_class_of(op->kind)] += time.run_s;
    lane->rank->out->run_s[COST_LAUNCH] += time.launch_s;
    if (in_update(lane))
        lane->rank->out->update_s += time.run_s + time.launch_s;
}

static void record(struct predictor *p, struct lane *lane)
{
    lane->recorded[lane->events++] =
        (struct recorded){.at_s = lane->now_s, .transfer_s = lane->transfer_s, .group = lane->group};
    lane->transfer_s = 0.0;
    for (int i = 0; i < lane->rank->tape->lane_count; i++)
        if (lane->rank->lanes[i].held)
            push(p, &lane->rank->lanes[i]);
}

/* The compute lane waits for `gap_s`, at the end of a transfer of `transfer_s`. */
static void account_gap(struct lane *lane, double gap_s, double transfer_s, enum predict_group group)
{
    double exposed = transfer_s < gap_s ? transfer_s : gap_s;
    if (!is_compute(lane) || gap_s <= 0.0)
        return;
    lane->rank->out->exposed_s[group] += exposed;
    lane->rank->out->bubble_s += gap_s - exposed;
    if (in_update(lane))
        lane->rank->out->update_s += exposed;
}

/* False: the event is not recorded yet. */
static bool wait(struct lane *lane)
{
    const struct tape_item *item = item_of(lane);
    const struct lane *other = &lane->rank->lanes[item->lane];
    const int number = item->index - other->first;
    if (other->first == 0 || number < 0)
        return true; // recorded before the step
    lane->held = number >= other->events;
    if (lane->held)
        return false;
    const struct recorded *event = &other->recorded[number];
    if (event->at_s > lane->now_s) {
        account_gap(lane, event->at_s - lane->now_s, event->transfer_s, event->group);
        lane->now_s = event->at_s;
    }
    return true;
}

/* The items of one exchange, beginning with the next one. */
static int exchange_items(const struct lane *lane)
{
    int count = 1;
    for (; lane->at + count < lane->items->count; count++) {
        const struct tape_item *item = &lane->items->items[lane->at + count];
        if (item->kind != TAPE_MESSAGE || !lane->rank->tape->messages[item->index].with_previous)
            break;
    }
    return count;
}

static struct meeting *meeting_of(struct predictor *p, const struct lane *lane, int item)
{
    const int message = lane->items->items[item].index;
    return meeting_at(p->meetings, lane->rank->series[message], lane->rank->tape->messages[message].number);
}

static void join(struct predictor *p, const struct lane *lane, struct meeting *meeting)
{
    meeting->joined++;
    meeting->ready_s = lane->now_s > meeting->ready_s ? lane->now_s : meeting->ready_s;
    while (meeting->joined == meeting->expected && meeting->waiting != NULL) {
        struct lane *first = meeting->waiting;
        meeting->waiting = first->next_waiting;
        push(p, first);
    }
}

/* Returns the time at which all messages of the exchange can start; -1: another rank has not reached one. */
static double ready(struct predictor *p, struct lane *lane, int count)
{
    double ready_s = lane->now_s;
    for (int i = 0; i < count; i++) {
        struct meeting *meeting = meeting_of(p, lane, lane->at + i);
        if (meeting->joined < meeting->expected) {
            lane->next_waiting = meeting->waiting;
            meeting->waiting = lane;
            return -1.0;
        }
        ready_s = meeting->ready_s > ready_s ? meeting->ready_s : ready_s;
    }
    return ready_s;
}

/* The messages of an exchange run concurrently. Returns the duration of the longest. */
static double account_exchange(struct lane *lane, int count)
{
    struct rank *rank = lane->rank;
    double longest_s = 0.0;
    for (int i = 0; i < count; i++) {
        const int index = lane->items->items[lane->at + i].index;
        const struct tape_message *message = &rank->tape->messages[index];
        const double seconds = rank->messages[index];
        lane->group = rank->group_of[message->group];
        rank->out->transfer_s[lane->group] += seconds;
        rank->out->bytes[lane->group] += message->bytes;
        rank->out->calls[lane->group]++;
        longest_s = seconds > longest_s ? seconds : longest_s;
    }
    return longest_s;
}

/* False: another rank has not reached it. */
static bool transfer(struct predictor *p, struct lane *lane)
{
    const int count = exchange_items(lane);
    for (int i = 0; i < count && !lane->posted; i++)
        join(p, lane, meeting_of(p, lane, lane->at + i));
    lane->posted = true;
    const double ready_s = ready(p, lane, count);
    if (ready_s < 0.0)
        return false;
    lane->posted = false;
    const double longest_s = account_exchange(lane, count);
    account_gap(lane, ready_s + longest_s - lane->now_s, longest_s, lane->group);
    lane->now_s = ready_s + longest_s;
    lane->transfer_s += longest_s;
    lane->at += count - 1;
    return true;
}

/* Runs a lane until it has to wait. */
static void run_lane(struct predictor *p, struct lane *lane)
{
    for (; lane->at < lane->items->count; lane->at++) {
        switch (item_of(lane)->kind) {
        case TAPE_OP:
            run_op(lane);
            break;
        case TAPE_RECORD:
            record(p, lane);
            break;
        case TAPE_WAIT:
            if (!wait(lane))
                return;
            break;
        case TAPE_MESSAGE:
            if (!transfer(p, lane))
                return;
            break;
        }
    }
}

/* ---- setup ---- */

/* The series of earlier messages of this tape with the same ends. */
static int known_series(const struct rank *rank, int message)
{
    enum { NEAR = 64 };
    const struct tape_message *m = &rank->tape->messages[message];
    for (int i = message - 1; i >= 0 && i >= message - NEAR; i--) {
        const struct tape_message *before = &rank->tape->messages[i];
        bool two = m->call == CALL_SEND || m->call == CALL_RECEIVE,
             before_two = before->call == CALL_SEND || before->call == CALL_RECEIVE;
        if (before->group == m->group && two == before_two &&
            (!two || (before->call == m->call && before->peer == m->peer)))
            return rank->series[i];
    }
    return -1;
}

static enum status find_messages(struct predictor *p, const struct cost_options *options, struct rank *rank)
{
    const struct tape *tape = rank->tape;
    for (int i = 0; i < tape->group_count; i++) {
        rank->group_of[i] = kind_of(&tape->groups[i]);
        rank->shapes[i] = cost_group_shape(options, tape->groups[i].ranks, tape->groups[i].size);
    }
    for (int i = 0; i < tape->message_count; i++) {
        const struct tape_message *message = &tape->messages[i];
        const int two[] = {tape->rank, message->peer};
        const bool is_two = message->call == CALL_SEND || message->call == CALL_RECEIVE;
        rank->messages[i] = cost_of_message(
            options, message->call, is_two ? cost_group_shape(options, two, 2) : rank->shapes[message->group],
            message->bytes);
        if (options->assume != NULL && rank->group_of[message->group] == GROUP_TP)
            rank->messages[i] *= 1.0 - options->assume->tp_overlap;
        rank->series[i] = known_series(rank, i);
        if (rank->series[i] < 0)
            rank->series[i] = meetings_series(p->meetings, tape, message);
        if (rank->series[i] < 0 || meeting_at(p->meetings, rank->series[i], message->number) == NULL)
            return fail(NO_MEMORY, "no memory for the messages of rank %d", tape->rank);
    }
    return OK;
}

static enum status create_lanes(struct predictor *p, struct rank *rank)
{
    const struct tape *tape = rank->tape;
    for (int i = 0; i < tape->lane_count; i++) {
        struct lane *lane = &rank->lanes[i];
        int events = 0;
        *lane = (struct lane){.items = &tape->lanes[i], .rank = rank};
        for (int k = 0; k < lane->items->count; k++)
            if (lane->items->items[k].kind == TAPE_RECORD) {
                lane->first = events == 0 ? lane->items->items[k].index : lane->first;
                events++;
            }
        lane->recorded = calloc((size_t)events + 1, sizeof *lane->recorded);
        if (lane->recorded == NULL)
            return fail(NO_MEMORY, "no memory for the events of rank %d", tape->rank);
        push(p, lane);
    }
    return OK;
}

static enum status create_rank(struct predictor *p, const struct cost_options *options,
                               const struct tape *tape, struct rank *rank)
{
    rank->tape = tape;
    rank->lanes = calloc((size_t)tape->lane_count + 1, sizeof *rank->lanes);
    rank->ops = calloc((size_t)tape->op_count + 1, sizeof *rank->ops);
    rank->messages = calloc((size_t)tape->message_count + 1, sizeof *rank->messages);
    rank->series = calloc((size_t)tape->message_count + 1, sizeof *rank->series);
    rank->group_of = calloc((size_t)tape->group_count + 1, sizeof *rank->group_of);
    rank->shapes = calloc((size_t)tape->group_count + 1, sizeof *rank->shapes);
    if (rank->lanes == NULL || rank->ops == NULL || rank->messages == NULL || rank->series == NULL ||
        rank->group_of == NULL || rank->shapes == NULL)
        return fail(NO_MEMORY, "no memory for the prediction of rank %d", tape->rank);
    for (int i = 0; i < tape->op_count; i++)
        rank->ops[i] = cost_of_op(options, &tape->ops[i]);
    TRY(find_messages(p, options, rank));
    return create_lanes(p, rank);
}

static void destroy_rank(struct rank *rank)
{
    for (int i = 0; rank->lanes != NULL && i < rank->tape->lane_count; i++)
        free(rank->lanes[i].recorded);
    free(rank->lanes);
    free(rank->ops);
    free(rank->messages);
    free(rank->series);
    free(rank->group_of);
    free(rank->shapes);
}

/* ---- the whole ---- */

static enum status check_ended(const struct predictor *p)
{
    struct text why = {0};
    for (int r = 0; r < p->count; r++)
        for (int l = 0; l < p->ranks[r].tape->lane_count; l++) {
            const struct lane *lane = &p->ranks[r].lanes[l];
            if (lane->at < lane->items->count)
                text_add(&why, "%srank %d waits in %s (stream %s)", why.length > 0 ? ", " : "",
                         p->ranks[r].tape->rank, p->ranks[r].tape->actions[item_of(lane)->action].name,
                         lane->items->name);
        }
    enum status status = why.length == 0 ? OK : fail(BAD_SCHEDULE, "deadlock: %s", text_chars(&why));
    text_free(&why);
    return status;
}

/* What follows the compute lane of a rank is a transfer, and then the wait for the slowest rank. */
static void finish(struct predictor *p, struct prediction *prediction)
{
    for (int r = 0; r < p->count; r++) {
        struct rank *rank = &p->ranks[r];
        struct lane *compute = &rank->lanes[COMPUTE];
        for (int l = 0; l < rank->tape->lane_count; l++) {
            const struct lane *lane = &rank->lanes[l];
            if (lane->now_s > rank->out->end_s)
                rank->out->end_s = lane->now_s;
            if (lane->now_s > compute->now_s) {
                rank->out->exposed_s[lane->group] += lane->now_s - compute->now_s;
                compute->now_s = lane->now_s;
            }
        }
        if (rank->out->end_s > prediction->step_s)
            prediction->step_s = rank->out->end_s;
    }
    for (int r = 0; r < p->count; r++)
        prediction->ranks[r].bubble_s += prediction->step_s - prediction->ranks[r].end_s;
}

static enum status play(struct predictor *p, const struct cost_options *options, struct tape *const *tapes,
                        struct prediction *prediction)
{
    TRY(meetings_create(tapes, p->count, &p->meetings));
    for (int r = 0; r < p->count; r++) {
        p->ranks[r].out = &prediction->ranks[r];
        TRY(create_rank(p, options, tapes[r], &p->ranks[r]));
    }
    while (p->head != NULL)
        run_lane(p, pop(p));
    TRY(check_ended(p));
    finish(p, prediction);
    return OK;
}

enum status predict_step(const struct cost_options *options, struct tape *const *tapes, int count,
                         struct prediction **out)
{
    struct predictor predictor = {.ranks = calloc((size_t)count, sizeof *predictor.ranks), .count = count};
    struct prediction *prediction = calloc(1, sizeof *prediction);
    if (prediction != NULL)
        *prediction =
            (struct prediction){.count = count, .ranks = calloc((size_t)count, sizeof *prediction->ranks)};
    enum status status = predictor.ranks != NULL && prediction != NULL && prediction->ranks != NULL
                             ? play(&predictor, options, tapes, prediction)
                             : fail(NO_MEMORY, "no memory for a prediction of %d ranks", count);
    for (int r = 0; predictor.ranks != NULL && r < count; r++)
        if (predictor.ranks[r].tape != NULL)
            destroy_rank(&predictor.ranks[r]);
    free(predictor.ranks);
    meetings_destroy(predictor.meetings);
    if (status == OK)
        *out = prediction;
    else
        prediction_destroy(prediction);
    return status;
}

void prediction_destroy(struct prediction *prediction)
{
    if (prediction == NULL)
        return;
    free(prediction->ranks);
    free(prediction);
}
