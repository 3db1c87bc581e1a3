// SPDX-License-Identifier: Apache-2.0
#include "planner/tape/tape_recorder.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* The items of a lane. */
struct section_lane {
    int begin, end;
    int first_event, events; // number of the first event recorded in the section, and their count
    int difference;          // between the event numbers of the last repetition and those of the section
};

/* An event from before the section, of this step. */
struct outer_event {
    int lane, number;
};

struct tape_section {
    struct section_lane *lanes;
    int lane_count, item_count;
    int first_message, message_count;
    struct outer_event outer[TAPE_SECTION_OUTER];
    int outer_count;
};

/* ---- extent ---- */

struct tape_section *tape_section_begin(const struct tape_recorder *recorder)
{
    const struct tape *tape = recorder->tape;
    struct tape_section *section = memory_zeroed(1, sizeof *section, "a section of a tape");
    section->lanes =
        memory_zeroed((size_t)tape->lane_count + 1, sizeof *section->lanes, "a section of a tape");
    section->lane_count = tape->lane_count;
    for (int i = 0; i < tape->lane_count; i++)
        section->lanes[i].begin = tape->lanes[i].count;
    section->first_message = tape->message_count;
    return section;
}

void tape_section_destroy(struct tape_section *section)
{
    if (section == NULL)
        return;
    free(section->lanes);
    free(section);
}

/* Adds lanes that began within the section. */
static void add_lanes(struct tape_section *section, int count)
{
    section->lanes =
        memory_resized(section->lanes, (size_t)count + 1, sizeof *section->lanes, "a section of a tape");
    for (int i = section->lane_count; i < count; i++)
        section->lanes[i] = (struct section_lane){.begin = 0};
    section->lane_count = count;
}

static void count_events(const struct tape_lane *lane, struct section_lane *out)
{
    for (int i = out->begin; i < out->end; i++)
        if (lane->items[i].kind == TAPE_RECORD && out->events++ == 0)
            out->first_event = lane->items[i].index;
}

static bool is_inside(const struct section_lane *lane, int number)
{
    return number >= lane->first_event && number - lane->first_event < lane->events;
}

/* Index of an event in the list of outer events; -1: not in it. */
static int outer_at(const struct tape_section *section, int lane, int number)
{
    for (int i = 0; i < section->outer_count; i++)
        if (section->outer[i].lane == lane && section->outer[i].number == number)
            return i;
    return -1;
}

/* Whether the lane recorded the event in this step. */
static bool is_of_step(const struct tape_lane *lane, int number)
{
    for (int i = 0; i < lane->count; i++)
        if (lane->items[i].kind == TAPE_RECORD)
            return number >= lane->items[i].index;
    return false;
}

/* Adds the outer events of a lane. False: there are too many. */
static bool add_outer(const struct tape *tape, struct tape_section *section, const struct tape_lane *lane,
                      const struct section_lane *range)
{
    for (int i = range->begin; i < range->end; i++) {
        const struct tape_item *item = &lane->items[i];
        if (item->kind != TAPE_WAIT || is_inside(&section->lanes[item->lane], item->index) ||
            outer_at(section, item->lane, item->index) >= 0 ||
            !is_of_step(&tape->lanes[item->lane], item->index))
            continue;
        if (section->outer_count == TAPE_SECTION_OUTER)
            return false;
        section->outer[section->outer_count++] = (struct outer_event){item->lane, item->index};
    }
    return true;
}

bool tape_section_end(const struct tape_recorder *recorder, struct tape_section *section)
{
    const struct tape *tape = recorder->tape;
    if (recorder->items > TAPE_MAX_ITEMS)
        return false;
    add_lanes(section, tape->lane_count);
    section->message_count = tape->message_count - section->first_message;
    for (int i = 0; i < tape->lane_count; i++) {
        section->lanes[i].end = tape->lanes[i].count;
        section->item_count += section->lanes[i].end - section->lanes[i].begin;
        count_events(&tape->lanes[i], &section->lanes[i]);
    }
    for (int i = 0; i < tape->lane_count; i++)
        if (!add_outer(tape, section, &tape->lanes[i], &section->lanes[i]))
            return false;
    return true;
}

int tape_section_outer(const struct tape_recorder *recorder, const struct tape_section *section,
                       struct event out[TAPE_SECTION_OUTER])
{
    for (int i = 0; i < section->outer_count; i++)
        out[i] = (struct event){.stream = recorder->recorded[section->outer[i].lane],
                                .at = (uint64_t)section->outer[i].number};
    return section->outer_count;
}

bool tape_section_event(const struct tape_recorder *recorder, const struct tape_section *section,
                        struct event *event)
{
    for (int i = 0; i < section->lane_count; i++)
        if (recorder->recorded[i] == event->stream && is_inside(&section->lanes[i], (int)event->at)) {
            event->at += (uint64_t)section->lanes[i].difference;
            return true;
        }
    return false;
}

/* ---- repetition ---- */

static void repeat_messages(struct tape_recorder *r, const struct tape_section *section)
{
    struct tape *tape = r->tape;
    GROW(tape->messages, tape->message_count, section->message_count);
    for (int i = 0; i < section->message_count; i++) {
        struct tape_message *message = &tape->messages[tape->message_count++];
        *message = tape->messages[section->first_message + i];
        message->number = tape_recorder_number(r, message);
    }
    r->last_sequence = 0; // the transport does not count repeated calls
}

/* Records as many events as the section. */
static void repeat_events(struct stream *stream, struct section_lane *range)
{
    for (int i = 0; i < range->events; i++) {
        const struct event event = stream_record(stream);
        if (i == 0)
            range->difference = (int)event.at - range->first_event;
    }
}

static int repeat_wait(const struct tape_section *section, const struct tape_item *item,
                       const struct event *outer)
{
    const struct section_lane *lane = &section->lanes[item->lane];
    if (is_inside(lane, item->index))
        return item->index + lane->difference;
    const int at = section->outer_count > 0 ? outer_at(section, item->lane, item->index) : -1;
    return at >= 0 ? (int)outer[at].at : item->index;
}

static void repeat_items(struct tape_recorder *r, const struct tape_section *section, int lane,
                         const struct event *outer, int message_difference, int action)
{
    struct tape_lane *to = &r->tape->lanes[lane];
    const struct section_lane *range = &section->lanes[lane];
    if (!tape_recorder_grow(r, to, range->end - range->begin))
        return;
    for (int i = range->begin; i < range->end; i++) {
        struct tape_item item = to->items[i];
        item.action = action;
        if (item.kind == TAPE_MESSAGE)
            item.index += message_difference;
        else if (item.kind == TAPE_RECORD)
            item.index += range->difference;
        else if (item.kind == TAPE_WAIT)
            item.index = repeat_wait(section, &item, outer);
        to->items[to->count++] = item;
    }
}

void tape_section_repeat(struct tape_recorder *recorder, struct tape_section *section,
                         const struct event *outer)
{
    const int message_difference = recorder->tape->message_count - section->first_message;
    if (section->item_count == 0 || recorder->items > TAPE_MAX_ITEMS)
        return;
    const int action = tape_recorder_action(recorder, rank_context());
    const bool on = recorder->on;
    recorder->on = false; // the new events are those of the items
    for (int lane = 0; lane < section->lane_count; lane++)
        repeat_events(recorder->recorded[lane], &section->lanes[lane]);
    recorder->on = on;
    repeat_messages(recorder, section);
    for (int lane = 0; lane < section->lane_count; lane++)
        repeat_items(recorder, section, lane, outer, message_difference, action);
}
