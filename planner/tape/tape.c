// SPDX-License-Identifier: Apache-2.0
#include "planner/tape/tape.h"

#include "base/memory.h"
#include "parallel/observe_world.h"
#include "planner/tape/tape_recorder.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists that grow ---- */

static size_t capacity_of(int count)
{
    enum { FEW = 16 };
    size_t capacity = count == 0 ? 0 : FEW;
    while (capacity < (size_t)count)
        capacity *= 2;
    return capacity;
}

void tape_grow(void **list, int count, int more, size_t each)
{
    const size_t needed = (size_t)count + (size_t)more;
    CHECK(needed <= INT_MAX);
    if (needed > capacity_of(count))
        *list = memory_resized(*list, capacity_of((int)needed), each, "the tape of a rank");
}

/* ---- lanes, actions, groups ---- */

bool tape_action_is_forward(const struct tape_action *action)
{
    return action->scheduled.exists && action->scheduled.kind == FORWARD;
}

/* Returns the lane of a stream, added at its first use. */
static int lane_of(struct tape_recorder *r, const struct stream *stream)
{
    struct tape *tape = r->tape;
    for (int i = 0; i < tape->lane_count; i++)
        if (r->streams[i] == stream)
            return i;
    GROW(tape->lanes, tape->lane_count, 1);
    GROW(r->streams, tape->lane_count, 1);
    GROW(r->recorded, tape->lane_count, 1);
    tape->lanes[tape->lane_count] = (struct tape_lane){.items = NULL};
    snprintf(tape->lanes[tape->lane_count].name, sizeof tape->lanes->name, "%s", stream->name);
    r->streams[tape->lane_count] = stream;
    r->recorded[tape->lane_count] = NULL;
    return tape->lane_count++;
}

int tape_recorder_action(struct tape_recorder *r, const struct rank_context *who)
{
    struct tape *tape = r->tape;
    const char *name = who->action;
    if (tape->action_count > 0 && strcmp(tape->actions[tape->action_count - 1].name, name) == 0)
        return tape->action_count - 1;
    GROW(tape->actions, tape->action_count, 1);
    struct tape_action *action = &tape->actions[tape->action_count];
    const size_t length = strnlen(name, sizeof action->name - 1); // snprintf() is slower
    memcpy(action->name, name, length);
    action->name[length] = 0;
    action->scheduled = who->scheduled;
    return tape->action_count++;
}

static int group_of(struct tape_recorder *r, const struct comm *comm)
{
    struct tape *tape = r->tape;
    for (int i = 0; i < tape->group_count; i++)
        if (r->comms[i] == comm)
            return i;
    int *ranks = memory_zeroed((size_t)comm->size, sizeof *ranks, "the tape of a rank");
    GROW(tape->groups, tape->group_count, 1);
    GROW(r->comms, tape->group_count, 1);
    for (int i = 0; i < comm->size; i++)
        ranks[i] = comm->ranks != NULL ? comm->ranks[i] : i;
    struct tape_group *group = &tape->groups[tape->group_count];
    *group = (struct tape_group){.size = comm->size, .ranks = ranks};
    snprintf(group->name, sizeof group->name, "%s", comm->name);
    r->comms[tape->group_count] = comm;
    return tape->group_count++;
}

/* ---- ops and messages ---- */

static int op_of(struct tape_recorder *r, const struct op *op)
{
    struct tape *tape = r->tape;
    const struct op_record record = op_record(op);
    // Layers repeat: usually the same two ops have followed each other before.
    for (int tried = 0; tried < tape->op_count; tried++) {
        r->next_op = r->next_op < tape->op_count ? r->next_op : 0;
        if (op_record_equals(&tape->ops[r->next_op++], &record))
            return r->next_op - 1;
    }
    GROW(tape->ops, tape->op_count, 1);
    tape->ops[tape->op_count] = record;
    r->next_op = ++tape->op_count;
    return tape->op_count - 1;
}

static bool is_collective(const struct tape_message *message)
{
    return message->call != CALL_SEND && message->call != CALL_RECEIVE;
}

/* Counts messages of this kind between this rank and the peer, or collectives of the group: all ranks of the
 * group then agree on the numbers, although a collective follows different numbers of sends on each. */
int64_t tape_recorder_number(struct tape_recorder *r, const struct tape_message *message)
{
    const bool alone = is_collective(message);
    for (int tried = 0; tried < r->counter_count; tried++) {
        r->next_counter = r->next_counter < r->counter_count ? r->next_counter : 0;
        struct message_counter *counter = &r->counters[r->next_counter];
        if (counter->group == message->group &&
            (alone ? counter->peer < 0 : counter->peer == message->peer && counter->call == message->call))
            return ++counter->count;
        r->next_counter++;
    }
    GROW(r->counters, r->counter_count, 1);
    r->counters[r->counter_count++] = (struct message_counter){
        .group = message->group, .peer = alone ? -1 : message->peer, .call = message->call, .count = 1};
    return 1;
}

static int message_of(struct tape_recorder *r, const struct observed_message *seen)
{
    struct tape *tape = r->tape;
    struct tape_message message = {
        .call = seen->call,
        .dtype = seen->data.dtype,
        .group = group_of(r, seen->comm),
        .bytes = message_bytes(seen),
        .peer = seen->peer < 0              ? -1
                : seen->comm->ranks != NULL ? seen->comm->ranks[seen->peer]
                                            : seen->peer,
    };
    message.number = tape_recorder_number(r, &message);
    message.with_previous = tape->message_count > 0 && r->last_sequence == seen->sequence &&
                            tape->messages[tape->message_count - 1].group == message.group;
    r->last_sequence = seen->sequence;
    GROW(tape->messages, tape->message_count, 1);
    tape->messages[tape->message_count] = message;
    return tape->message_count++;
}

/* ---- the observer ---- */

bool tape_recorder_grow(struct tape_recorder *r, struct tape_lane *lane, int more)
{
    r->items += more;
    if (r->items > TAPE_MAX_ITEMS)
        return false;
    GROW(lane->items, lane->count, more);
    return true;
}

static void add_item(struct tape_recorder *r, int lane, struct tape_item item)
{
    struct tape_lane *at = &r->tape->lanes[lane];
    if (tape_recorder_grow(r, at, 1))
        at->items[at->count++] = item;
}

static void observe(void *context, const struct observation *seen)
{
    struct tape_recorder *r = context;
    if (!r->on || r->items > TAPE_MAX_ITEMS || seen->stream == NULL)
        return;
    const int lane = lane_of(r, seen->stream), action = tape_recorder_action(r, seen->who);
    struct tape_item item = {.action = action, .layer = seen->who->layer};
    switch (seen->what) {
    case OBSERVED_OP:
        item.kind = TAPE_OP;
        item.index = op_of(r, seen->op);
        break;
    case OBSERVED_MESSAGE:
        item.kind = TAPE_MESSAGE;
        item.index = message_of(r, seen->message);
        break;
    case OBSERVED_RECORD:
        item.kind = TAPE_RECORD;
        item.index = (int)seen->event.at;
        r->recorded[lane] = seen->event.stream;
        break;
    case OBSERVED_WAIT:
        item.kind = TAPE_WAIT;
        item.lane = (int16_t)lane_of(r, seen->event.stream); // of few streams
        item.index = (int)seen->event.at;
        break;
    case OBSERVED_RANGE:
    case OBSERVED_ALLOC:
    case OBSERVED_FREE:
    case OBSERVED_COUNT:
        return;
    }
    add_item(r, lane, item);
}

/* ---- the recorder ---- */

struct tape_recorder *tape_recorder_create(int rank)
{
    struct tape_recorder *r = memory_zeroed(1, sizeof *r, "the tape of a rank");
    r->tape = memory_zeroed(1, sizeof *r->tape, "the tape of a rank");
    r->tape->rank = rank;
    return r;
}

struct observer tape_recorder_observer(struct tape_recorder *recorder)
{
    return (struct observer){.notify = observe, .context = recorder, .ignores_time = true};
}

void tape_recorder_record(struct tape_recorder *recorder, bool on)
{
    recorder->on = on;
}

enum status tape_recorder_finish(struct tape_recorder *recorder, struct tape **out)
{
    struct tape *tape = recorder->tape;
    const bool too_long = recorder->items > TAPE_MAX_ITEMS;
    const int rank = tape->rank;
    free(recorder->streams);
    free(recorder->recorded);
    free(recorder->counters);
    free(recorder->comms);
    free(recorder);
    if (too_long) {
        tape_destroy(tape);
        return fail(NOT_SUPPORTED, "a step of rank %d has more than %d million ops and messages", rank,
                    TAPE_MAX_ITEMS / 1000000);
    }
    *out = tape;
    return OK;
}

void tape_destroy(struct tape *tape)
{
    if (tape == NULL)
        return;
    for (int i = 0; i < tape->lane_count; i++)
        free(tape->lanes[i].items);
    for (int i = 0; i < tape->group_count; i++)
        free(tape->groups[i].ranks);
    free(tape->lanes);
    free(tape->ops);
    free(tape->groups);
    free(tape->messages);
    free(tape->actions);
    free(tape);
}

bool tape_group_is_data(const struct tape_group *group)
{
    return strstr(group->name, "dp") != NULL;
}

int64_t tape_items(const struct tape *tape)
{
    int64_t items = 0;
    for (int lane = 0; lane < tape->lane_count; lane++)
        items += tape->lanes[lane].count;
    return items;
}
