// SPDX-License-Identifier: Apache-2.0
#include "planner/tape/tape.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { COMPUTE = 0 };

static bool is_gather(const struct tape *tape, const struct tape_item *item)
{
    const struct tape_message *message = item->kind == TAPE_MESSAGE ? &tape->messages[item->index] : NULL;
    return message != NULL && message->call == CALL_ALL_GATHER &&
           tape_group_is_data(&tape->groups[message->group]);
}

/* Whether the item belongs to the first forward pass of a chunk: "3F0". */
static bool is_first_pass(const struct tape *tape, const struct tape_item *item)
{
    const struct tape_action *action = &tape->actions[item->action];
    return tape_action_is_forward(action) && action->scheduled.microbatch == 0;
}

struct gathers {
    int count;     // of gathers
    int64_t bytes; // of all of them
    int passes;    // items of first forward passes
    int moved;     // gathers whose wait is in the new list
    int64_t moved_bytes;
};

static struct gathers count_gathers(const struct tape *tape)
{
    const struct tape_lane *lane = &tape->lanes[COMPUTE];
    struct gathers found = {.count = 0};
    for (int i = 0; i < lane->count; i++) {
        const struct tape_item *item = &lane->items[i];
        found.passes += is_first_pass(tape, item);
        if (is_gather(tape, item)) {
            found.count++;
            found.bytes += tape->messages[item->index].bytes;
        }
    }
    return found;
}

/* The gathers, each with an event, numbered from 1. */
static void fill_lane(const struct tape *tape, const struct tape_lane *compute, struct tape_lane *out)
{
    for (int i = 0; i < compute->count; i++) {
        const struct tape_item *item = &compute->items[i];
        if (!is_gather(tape, item))
            continue;
        out->items[out->count++] = *item;
        out->items[out->count] = (struct tape_item){
            .kind = TAPE_RECORD, .index = out->count / 2 + 1, .action = item->action, .layer = item->layer};
        out->count++;
    }
}

/* Adds the waits for the gathers of weights that item `pass` of the first passes is the first to read. */
static void add_waits(const struct tape *tape, const struct tape_lane *gathers, struct gathers *g, int pass,
                      const struct tape_item *next, struct tape_lane *out)
{
    while (g->moved < g->count && (double)g->moved_bytes * g->passes <= (double)g->bytes * pass) {
        const struct tape_item *gather = &gathers->items[2 * (size_t)g->moved];
        g->moved_bytes += tape->messages[gather->index].bytes;
        out->items[out->count++] = (struct tape_item){.kind = TAPE_WAIT,
                                                      .lane = (int16_t)(tape->lane_count - 1),
                                                      .index = ++g->moved,
                                                      .action = next->action,
                                                      .layer = next->layer};
    }
}

static void fill_compute(const struct tape *tape, struct gathers *g, const struct tape_lane *gathers,
                         struct tape_lane *out)
{
    const struct tape_lane *old = &tape->lanes[COMPUTE];
    int pass = 0;
    for (int i = 0; i < old->count; i++) {
        const struct tape_item *item = &old->items[i];
        if (is_gather(tape, item))
            continue;
        if (is_first_pass(tape, item))
            add_waits(tape, gathers, g, pass++, item, out);
        out->items[out->count++] = *item;
    }
}

void tape_overlap_gathers(struct tape *tape)
{
    struct gathers g = tape->lane_count > 0 ? count_gathers(tape) : (struct gathers){.count = 0};
    if (g.count == 0 || g.passes == 0)
        return;
    struct tape_lane gathers = {.name = "gathers"}, compute = tape->lanes[COMPUTE];
    tape->lanes = memory_resized(tape->lanes, (size_t)tape->lane_count + 1, sizeof *tape->lanes,
                                 "the gathers of a rank");
    gathers.items = memory_zeroed(2 * (size_t)g.count, sizeof *gathers.items, "the gathers of a rank");
    // A wait for each gather.
    compute.items = memory_zeroed((size_t)compute.count, sizeof *compute.items, "the gathers of a rank");
    compute.count = 0;
    fill_lane(tape, &tape->lanes[COMPUTE], &gathers);
    tape->lanes[tape->lane_count++] = gathers;
    fill_compute(tape, &g, &gathers, &compute);
    free(tape->lanes[COMPUTE].items);
    tape->lanes[COMPUTE] = compute;
}
