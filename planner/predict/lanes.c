// SPDX-License-Identifier: Apache-2.0
#include "planner/predict/lanes.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

enum { AHEAD = 8, CACHE_LINE = 64 };

static bool is_compute(const struct lane *lane)
{
    return lane == &lane->rank->lanes[COMPUTE];
}

static const struct tape_item *item_of(const struct lane *lane)
{
    return &lane->items->items[lane->at];
}

static bool in_update(const struct lane *lane)
{
    return lane->rank->phases[item_of(lane)->action] >= PHASE_UPDATE;
}

/* ---- lanes that may be able to advance ---- */

void lanes_wake(struct predictor *predictor, struct lane *lane)
{
    if (lane->queued)
        return;
    lane->queued = true;
    lane->next = NULL;
    if (predictor->tail != NULL)
        predictor->tail->next = lane;
    else
        predictor->head = lane;
    predictor->tail = lane;
}

static struct lane *next_lane(struct predictor *p)
{
    struct lane *lane = p->head;
    p->head = lane->next;
    if (p->head == NULL)
        p->tail = NULL;
    lane->queued = false;
    return lane;
}

/* ---- spans ---- */

static void make_room(struct predictor *p)
{
    struct prediction *out = p->out;
    if (out->span_count < p->span_capacity)
        return;
    p->span_capacity = p->span_capacity > 0 ? 2 * p->span_capacity : 1024;
    CHECK(p->span_capacity <= INT32_MAX); // a tape has at most TAPE_MAX_ITEMS
    out->spans =
        memory_resized(out->spans, (size_t)p->span_capacity, sizeof *out->spans, "the timeline of ranks");
}

static void add_span(struct predictor *p, struct lane *lane)
{
    struct prediction *out = p->out;
    if (!p->records_spans)
        return;
    make_room(p);
    out->spans[out->span_count] = (struct predicted_span){.begin_s = lane->now_s,
                                                          .rank = lane->rank->index,
                                                          .lane = (int)(lane - lane->rank->lanes),
                                                          .first = lane->at,
                                                          .count = lane->items_busy,
                                                          .cause = lane->cause};
    lane->span = (int)out->span_count++;
}

/* ---- busy lanes ---- */

/* Whether the items are ops of a compute lane, which messages of the same rank slow down. */
static bool may_be_slowed(const struct lane *lane)
{
    return is_compute(lane) && item_of(lane)->kind == TAPE_OP;
}

/* Factor on the time of the rank's ops while messages are in flight. On a CPU the thread of the rank moves
 * them between its ops (kernels/cpu/device_cpu.c): these pause. */
static double slowdown(const struct predictor *p, const struct rank *rank)
{
    return rank->in_flight == 0 ? 1.0 : rank->cores != NULL ? INFINITY : p->slowdown;
}

/* Factor on the time of the rank's ops while more threads are busy than its node has cores. */
static double crowding(const struct rank *rank)
{
    const struct node_cores *cores = rank->cores;
    return cores != NULL && cores->busy > cores->cores ? cores->busy / cores->cores : 1.0;
}

/* Adds the time since left_at_s that was lost to messages that the rank's thread moved, or to shared
 * cores. */
static void add_lost(struct lane *lane, double now_s)
{
    const double seconds = now_s - lane->left_at_s;
    if (isinf(lane->overlap)) {
        lane->paused_s += seconds;
        lane->rank->out->exposed_s[lane->rank->moved] += seconds;
    } else if (lane->crowding > 1.0) {
        lane->shared_s += seconds * (1.0 - 1.0 / lane->crowding);
    }
}

void lane_change_speed(struct predictor *predictor, struct lane *lane, double overlap, double crowding,
                       double now_s)
{
    const double before = lane->overlap * lane->crowding, after = overlap * crowding;
    if (!(before < after || before > after))
        return;
    const double left_s = lane->left_s - (now_s - lane->left_at_s) / before;
    add_lost(lane, now_s);
    lane->left_s = left_s > 0.0 ? left_s : 0.0;
    lane->left_at_s = now_s;
    lane->overlap = overlap;
    lane->crowding = crowding;
    lane->slowed = lane->slowed || after > 1.0;
    lane->end_s = lane->left_s > 0.0 ? now_s + lane->left_s * after : now_s;
    lane_heap_update(predictor, lane);
}

/* Updates the end of the ops in progress on the rank's compute lane, if any, after a change at `now_s`. */
static void change_speed(struct predictor *p, const struct rank *rank, double now_s)
{
    struct lane *compute = &rank->lanes[COMPUTE];
    if (compute->items_busy == 0 || !may_be_slowed(compute))
        return;
    lane_change_speed(p, compute, slowdown(p, rank), crowding(rank), now_s);
}

/* Cores in use by the rank now: for ops, for messages, or while it waits. */
static double cores_taken(const struct rank *rank)
{
    return rank->in_flight > 0 ? rank->represents : rank->computes ? rank->threads : rank->waiting;
}

/* Updates the cores in use after ops or messages of the rank have begun or ended. */
static void change_taken(struct predictor *p, struct rank *rank, double now_s)
{
    const double taken = cores_taken(rank);
    if (rank->cores == NULL || !(taken < rank->taken || taken > rank->taken))
        return;
    rank->cores->busy += taken - rank->taken;
    rank->taken = taken;
    for (int r = 0; r < p->count && rank->cores->ranks > 1; r++)
        if (p->ranks[r].cores == rank->cores)
            change_speed(p, &p->ranks[r], now_s);
}

/* A message of the rank has begun or ended. */
static void change_in_flight(struct predictor *p, const struct lane *lane, int change, double now_s)
{
    struct rank *rank = lane->rank;
    rank->in_flight += change;
    change_speed(p, rank, now_s);
    change_taken(p, rank, now_s);
    if (change > 0)
        rank->moved = lane->group;
}

/* The compute lane of a rank begins or has ended running ops. */
static void change_computes(struct predictor *p, struct rank *rank, bool computes, double now_s)
{
    rank->computes = computes;
    change_taken(p, rank, now_s);
}

/* Starts `count` items, which take `seconds` if nothing overlaps. Returns false if they take no time. */
static bool begin(struct predictor *p, struct lane *lane, int count, double seconds)
{
    if (!(seconds > 0.0)) {
        lane->at += count;
        return false;
    }
    const bool slowed = may_be_slowed(lane);
    if (slowed)
        change_computes(p, lane->rank, true, lane->now_s);
    lane->items_busy = count;
    lane->began_s = lane->left_at_s = lane->now_s;
    lane->alone_s = lane->left_s = seconds;
    lane->shared_s = lane->paused_s = 0.0;
    lane->overlap = slowed ? slowdown(p, lane->rank) : 1.0;
    lane->crowding = slowed ? crowding(lane->rank) : 1.0;
    const double factor = lane->overlap * lane->crowding;
    lane->slowed = factor > 1.0;
    lane->end_s = lane->now_s + seconds * factor;
    add_span(p, lane);
    lane_heap_push(p, lane);
    for (int i = 0; i < AHEAD; i++) // many other lanes advance before this one ends
        __builtin_prefetch((const char *)(item_of(lane) + count) + i * CACHE_LINE);
    if (item_of(lane)->kind == TAPE_MESSAGE) {
        change_in_flight(p, lane, 1, lane->now_s);
        contention_begin(p, lane, lane->now_s);
    }
    return true;
}

/* Messages that other messages slowed down. */
static void account_contention(struct lane *lane, double slower_s)
{
    struct predicted_rank *out = lane->rank->out;
    out->transfer_s[lane->group] += slower_s;
    if (!is_compute(lane)) {
        lane->transfer_s += slower_s;
        return;
    }
    out->exposed_s[lane->group] += slower_s;
    if (in_update(lane))
        out->update_s += slower_s;
}

static void account_slowdown(struct lane *lane)
{
    const double slower_s = lane->end_s - lane->began_s - lane->alone_s;
    if (!lane->slowed || slower_s <= 0.0)
        return;
    if (item_of(lane)->kind == TAPE_MESSAGE) {
        account_contention(lane, slower_s);
        return;
    }
    const double running_s = slower_s > lane->paused_s ? slower_s - lane->paused_s : 0.0;
    lane->rank->out->run_s[COST_OVERLAP] += running_s > lane->shared_s ? running_s - lane->shared_s : 0.0;
    lane->rank->out->run_s[COST_SHARED_CORES] += lane->shared_s < running_s ? lane->shared_s : running_s;
    if (in_update(lane))
        lane->rank->out->update_s += slower_s;
}

static void end(struct predictor *p, struct lane *lane)
{
    const bool computed = may_be_slowed(lane);
    add_lost(lane, lane->end_s);
    account_slowdown(lane);
    if (computed)
        period_note(lane);
    lane->now_s = lane->end_s;
    if (item_of(lane)->kind == TAPE_MESSAGE) {
        change_in_flight(p, lane, -1, lane->now_s);
        contention_end(p, lane, lane->now_s);
    }
    lane->at += lane->items_busy;
    lane->items_busy = 0;
    if (computed)
        change_computes(p, lane->rank, false, lane->now_s);
    if (!p->records_spans)
        return;
    p->out->spans[lane->span].end_s = lane->now_s;
    p->out->spans[lane->span].shared_s = lane->shared_s;
    p->out->spans[lane->span].paused_s = lane->paused_s;
    p->out->spans[lane->span].moved = lane->rank->moved;
    lane->cause = lane->span;
}

/* ---- ops ---- */

/* A copy between host and device on a separate lane is a transfer that the compute lane may wait for. */
static void account_copy(struct lane *lane, int index)
{
    struct predicted_rank *out = lane->rank->out;
    const double seconds = lane->rank->ops[index].run_s;
    lane->group = GROUP_HOST;
    lane->transfer_s += seconds;
    out->transfer_s[GROUP_HOST] += seconds;
    out->bytes[GROUP_HOST] += (int64_t)lane->rank->tape->ops[index].cost.bytes;
    out->calls[GROUP_HOST]++;
}

/* Overlaps and shared cores make ops only slower. */
static void check_limit(struct predictor *p, const struct lane *lane, double seconds)
{
    p->out->exceeds = p->out->exceeds || lane->now_s + lane->rank->ops_left_s > p->limit_s;
    lane->rank->ops_left_s -= seconds;
}

/* Starts the ops up to the next item of another kind or action. Returns false if they take no time. */
static bool run_ops(struct predictor *p, struct lane *lane)
{
    struct lane_op *ops = lane->rank->ops;
    const struct tape_item *first = item_of(lane), *last = lane->items->items + lane->items->count;
    const bool computes = is_compute(lane);
    const struct tape_item *item = first;
    double seconds = 0.0;
    for (; item < last && item->kind == TAPE_OP && item->action == first->action; item++) {
        struct lane_op *op = &ops[item->index];
        seconds += op->seconds;
        op->count += computes;
        if (op->is_copy && !computes)
            account_copy(lane, item->index);
    }
    if (computes && in_update(lane))
        lane->rank->out->update_s += seconds;
    if (computes)
        check_limit(p, lane, seconds);
    return begin(p, lane, (int)(item - first), seconds);
}

/* ---- events ---- */

static void record(struct predictor *p, struct lane *lane)
{
    lane->recorded[lane->events++] = (struct recorded_event){
        .at_s = lane->now_s, .transfer_s = lane->transfer_s, .group = lane->group, .cause = lane->cause};
    lane->transfer_s = 0.0;
    for (int i = 0; i < lane->rank->tape->lane_count; i++)
        if (lane->rank->lanes[i].held)
            lanes_wake(p, &lane->rank->lanes[i]);
}

/* The compute lane has waited for `gap_s`, until the end of a transfer of `transfer_s`. */
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

/* Returns false if the event is not recorded yet. */
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
    const struct recorded_event *event = &other->recorded[number];
    if (event->at_s > lane->now_s) {
        account_gap(lane, event->at_s - lane->now_s, event->transfer_s, event->group);
        lane->now_s = event->at_s;
        lane->cause = event->cause;
    }
    return true;
}

/* ---- messages ---- */

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

static struct rendezvous *rendezvous_of(const struct lane *lane, int item)
{
    return lane->rank->messages[lane->items->items[item].index].rendezvous;
}

static void join(struct predictor *p, const struct lane *lane, struct rendezvous *rendezvous)
{
    if (rendezvous == NULL)
        return;
    if (rendezvous->joined++ == 0 || lane->now_s > rendezvous->ready_s) {
        rendezvous->ready_s = lane->now_s;
        rendezvous->cause = lane->cause;
    }
    while (rendezvous->joined == rendezvous->expected && rendezvous->waiting != NULL) {
        struct lane *first = rendezvous->waiting;
        rendezvous->waiting = first->next_waiting;
        lanes_wake(p, first);
    }
}

/* Finds the time at which all messages of the exchange can start, and the span that ends then. Returns false
 * if another rank has not reached one of them. */
static bool is_ready(struct lane *lane, int count, double *ready_s, int *cause)
{
    *ready_s = lane->now_s;
    *cause = lane->cause;
    for (int i = 0; i < count; i++) {
        struct rendezvous *rendezvous = rendezvous_of(lane, lane->at + i);
        if (rendezvous == NULL)
            continue;
        if (rendezvous->joined < rendezvous->expected) {
            lane->next_waiting = rendezvous->waiting;
            rendezvous->waiting = lane;
            return false;
        }
        if (rendezvous->ready_s > *ready_s) {
            *ready_s = rendezvous->ready_s;
            *cause = rendezvous->cause;
        }
    }
    return true;
}

/* Cores that the rank takes in addition once one of its messages is in flight. */
static double taken_by_message(const struct rank *rank)
{
    return rank->represents - rank->taken;
}

/* Factor on a time that was measured while all ranks of the node were busy, if some of them wait now. */
static double message_crowding(const struct predictor *p, const struct rank *rank, int peer)
{
    const struct node_cores *cores = rank->cores;
    if (cores == NULL || !(cores->measured_crowding > 1.0))
        return 1.0;
    double busy = cores->busy + taken_by_message(rank);
    if (peer != NO_PEER && p->ranks[peer].cores == cores)
        busy += taken_by_message(&p->ranks[peer]);
    return fmin(1.0, fmax(1.0, busy / cores->cores) / cores->measured_crowding);
}

/* The messages of an exchange run concurrently. Returns the duration of the longest. */
static double account_exchange(const struct predictor *p, struct lane *lane, int count)
{
    struct rank *rank = lane->rank;
    double longest_s = 0.0;
    for (int i = 0; i < count; i++) {
        const int index = lane->items->items[lane->at + i].index;
        const struct lane_message *message = &rank->messages[index];
        const double seconds = message->seconds * message_crowding(p, rank, message->peer);
        lane->group = message->group;
        rank->out->transfer_s[lane->group] += seconds;
        rank->out->bytes[lane->group] += rank->tape->messages[index].bytes;
        rank->out->calls[lane->group]++;
        longest_s = seconds > longest_s ? seconds : longest_s;
    }
    return longest_s;
}

enum outcome { TRANSFER_WAITS, TRANSFER_RUNS, TRANSFER_TAKES_NO_TIME };

static enum outcome transfer(struct predictor *p, struct lane *lane)
{
    const int count = exchange_items(lane);
    double ready_s;
    int cause;
    for (int i = 0; i < count && !lane->posted; i++)
        join(p, lane, rendezvous_of(lane, lane->at + i));
    lane->posted = true;
    if (!is_ready(lane, count, &ready_s, &cause))
        return TRANSFER_WAITS;
    lane->posted = false;
    const double longest_s = account_exchange(p, lane, count);
    account_gap(lane, ready_s + longest_s - lane->now_s, longest_s, lane->group);
    lane->now_s = ready_s;
    lane->cause = cause;
    lane->transfer_s += longest_s;
    return begin(p, lane, count, longest_s) ? TRANSFER_RUNS : TRANSFER_TAKES_NO_TIME;
}

/* ---- the loop ---- */

/* Advances an idle lane until it is busy or has to wait. */
static void advance(struct predictor *p, struct lane *lane)
{
    while (lane->at < lane->items->count) {
        switch (item_of(lane)->kind) {
        case TAPE_OP:
            if (run_ops(p, lane))
                return;
            break;
        case TAPE_RECORD:
            record(p, lane);
            lane->at++;
            break;
        case TAPE_WAIT:
            if (!wait(lane))
                return;
            lane->at++;
            break;
        case TAPE_MESSAGE:
            if (transfer(p, lane) != TRANSFER_TAKES_NO_TIME)
                return;
            break;
        }
    }
}

static void advance_all(struct predictor *p)
{
    while (p->head != NULL && !p->out->exceeds)
        advance(p, next_lane(p));
}

void lanes_run(struct predictor *predictor)
{
    advance_all(predictor);
    while (predictor->busy > 0 && !predictor->out->exceeds) {
        struct lane *lane = lane_heap_pop(predictor);
        end(predictor, lane);
        advance(predictor, lane);
        advance_all(predictor);
    }
}
