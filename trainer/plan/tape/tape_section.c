// SPDX-License-Identifier: Apache-2.0
#include "trainer/plan/tape/tape_section.h"

#include "trainer/plan/tape/tape_recorder.h"

#include <stdlib.h>
#include <string.h>

/* The items of a lane. */
struct section_lane {
    int begin, end;
    int first_event, events; // recorded in the section; the number of the first of them
};

struct tape_section {
    struct section_lane *lanes;
    int lane_count, item_count;
    int first_message, message_count;
};

/* ---- its extent ---- */

enum status tape_section_begin(const struct tape_recorder *recorder, struct tape_section **out)
{
    const struct tape *tape = recorder->tape;
    struct tape_section *section = calloc(1, sizeof *section);
    if (section != NULL)
        section->lanes = calloc((size_t)tape->lane_count + 1, sizeof *section->lanes);
    if (section == NULL || section->lanes == NULL) {
        free(section);
        return fail(NO_MEMORY, "no memory for a section of the tape of rank %d", tape->rank);
    }
    section->lane_count = tape->lane_count;
    for (int i = 0; i < tape->lane_count; i++)
        section->lanes[i].begin = tape->lanes[i].count;
    section->first_message = tape->message_count;
    *out = section;
    return OK;
}

void tape_section_destroy(struct tape_section *section)
{
    if (section == NULL)
        return;
    free(section->lanes);
    free(section);
}

/* Adds lanes that began within the section. */
static bool add_lanes(struct tape_section *section, int count)
{
    struct section_lane *lanes = realloc(section->lanes, ((size_t)count + 1) * sizeof *lanes);
    if (lanes == NULL)
        return false;
    for (int i = section->lane_count; i < count; i++)
        lanes[i] = (struct section_lane){.begin = 0};
    section->lanes = lanes;
    section->lane_count = count;
    return true;
}

static void count_events(const struct tape_lane *lane, struct section_lane *out)
{
    for (int i = out->begin; i < out->end; i++)
        if (lane->items[i].kind == TAPE_RECORD && out->events++ == 0)
            out->first_event = lane->items[i].index;
}

static bool waits_inside(const struct tape_section *section, const struct tape_lane *lane,
                         const struct section_lane *range)
{
    for (int i = range->begin; i < range->end; i++) {
        const struct tape_item *item = &lane->items[i];
        if (item->kind != TAPE_WAIT)
            continue;
        const struct section_lane *from = &section->lanes[item->lane];
        if (from->events == 0 || item->index < from->first_event)
            return false;
    }
    return true;
}

bool tape_section_end(const struct tape_recorder *recorder, struct tape_section *section)
{
    const struct tape *tape = recorder->tape;
    if (recorder->out_of_memory || !add_lanes(section, tape->lane_count))
        return false;
    section->message_count = tape->message_count - section->first_message;
    for (int i = 0; i < tape->lane_count; i++) {
        section->lanes[i].end = tape->lanes[i].count;
        section->item_count += section->lanes[i].end - section->lanes[i].begin;
        count_events(&tape->lanes[i], &section->lanes[i]);
    }
    for (int i = 0; i < tape->lane_count; i++)
        if (!waits_inside(section, &tape->lanes[i], &section->lanes[i]))
            return false;
    return true;
}

/* ---- repetition ---- */

static bool repeat_messages(struct tape_recorder *r, const struct tape_section *section)
{
    struct tape *tape = r->tape;
    if (!GROW(tape->messages, tape->message_count, section->message_count))
        return false;
    for (int i = 0; i < section->message_count; i++) {
        struct tape_message *message = &tape->messages[tape->message_count++];
        *message = tape->messages[section->first_message + i];
        message->number = tape_recorder_number(r, message);
    }
    r->last_sequence = 0; // the transport counts no repeated calls
    return !r->out_of_memory;
}

/* Records as many events as the section. Returns the difference between the new numbers and the old. */
static int repeat_events(struct stream *stream, const struct section_lane *range)
{
    int difference = 0;
    for (int i = 0; i < range->events; i++) {
        const struct event event = stream_record(stream);
        if (i == 0)
            difference = (int)event.at - range->first_event;
    }
    return difference;
}

static bool repeat_items(struct tape_recorder *r, const struct tape_section *section, int lane,
                         const int *event_difference, int message_difference, int action)
{
    struct tape_lane *to = &r->tape->lanes[lane];
    const struct section_lane *range = &section->lanes[lane];
    if (!GROW(to->items, to->count, range->end - range->begin))
        return false;
    for (int i = range->begin; i < range->end; i++) {
        struct tape_item item = to->items[i];
        item.action = action;
        if (item.kind == TAPE_MESSAGE)
            item.index += message_difference;
        else if (item.kind == TAPE_RECORD)
            item.index += event_difference[lane];
        else if (item.kind == TAPE_WAIT)
            item.index += event_difference[item.lane];
        to->items[to->count++] = item;
    }
    return true;
}

void tape_section_repeat(struct tape_recorder *r, const struct tape_section *section)
{
    int *event_difference = calloc((size_t)section->lane_count + 1, sizeof *event_difference);
    const int message_difference = r->tape->message_count - section->first_message;
    if (section->item_count == 0 || r->out_of_memory || event_difference == NULL) {
        r->out_of_memory = r->out_of_memory || event_difference == NULL;
        free(event_difference);
        return;
    }
    const int action = tape_recorder_action(r, who_am_i()->action);
    const bool on = r->on;
    r->on = false; // the new events are those of the items
    for (int lane = 0; lane < section->lane_count; lane++)
        event_difference[lane] = repeat_events(r->recorded[lane], &section->lanes[lane]);
    r->on = on;
    bool good = repeat_messages(r, section);
    for (int lane = 0; lane < section->lane_count && good; lane++)
        good = repeat_items(r, section, lane, event_difference, message_difference, action);
    r->out_of_memory = r->out_of_memory || !good;
    free(event_difference);
}
