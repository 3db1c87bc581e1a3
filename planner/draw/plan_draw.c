// SPDX-License-Identifier: Apache-2.0
#include "planner/draw/plan_draw.h"

#include "base/memory.h"
#include "schedules/draw/draw_lanes.h"

#include <stdio.h>
#include <stdlib.h>

/* Names of a rank's messages, by group and call. */
struct names {
    char (*list)[64]; // [groups][CALL_COUNT]
};

struct rows {
    const struct step_plan *plan;
    struct lane_row *list; // those of rank r begin at first[r]
    int *first;            // [plan->count + 1]
    struct names *names;   // [plan->count]
};

static const struct tape_item *items_of(const struct rows *rows, const struct predicted_span *span)
{
    return &rows->plan->tapes[span->rank]->lanes[span->lane].items[span->first];
}

/* A slice for the ops, or one for each message of the exchange. */
static int slices_of(const struct rows *rows, const struct predicted_span *span)
{
    return items_of(rows, span)->kind == TAPE_MESSAGE ? span->count : 1;
}

/* The pipeline rank of a world rank; -1: it has no tape. */
static int row_of_rank(const struct step_plan *plan, int rank)
{
    for (int i = 0; i < plan->count; i++)
        if (plan->tapes[i]->rank == rank)
            return i;
    return -1;
}

static void set_message(const struct rows *rows, int rank, int index, struct lane_slice *slice)
{
    const struct tape *tape = rows->plan->tapes[rank];
    const struct tape_message *message = &tape->messages[index];
    const bool sends = message->call == CALL_SEND, receives = message->call == CALL_RECEIVE;
    const int peer = sends || receives ? row_of_rank(rows->plan, message->peer) : -1;
    slice->message = rows->names[rank].list[message->group * CALL_COUNT + (int)message->call];
    slice->group = tape->groups[message->group].name;
    slice->bytes = message->bytes;
    slice->number = message->number;
    slice->from = peer < 0 ? -1 : sends ? rank : peer;
    slice->to = peer < 0 ? -1 : sends ? peer : rank;
}

static bool has_copy(const struct tape *tape, const struct tape_item *items, int count)
{
    for (int i = 0; i < count; i++) {
        const enum op_kind kind = tape->ops[items[i].index].kind;
        if (kind == OP_TO_DEVICE || kind == OP_TO_HOST)
            return true;
    }
    return false;
}

static void add_span(struct rows *rows, const struct predicted_span *span)
{
    const struct tape *tape = rows->plan->tapes[span->rank];
    struct lane_row *row = &rows->list[rows->first[span->rank] + span->lane];
    const struct tape_item *items = items_of(rows, span);
    for (int i = 0; i < slices_of(rows, span); i++) {
        struct lane_slice *slice = &row->slices[row->count++];
        *slice = (struct lane_slice){.begin_s = span->begin_s,
                                     .end_s = span->end_s,
                                     .action = tape->actions[items[i].action].name,
                                     .from = -1,
                                     .to = -1,
                                     .critical = span->critical};
        if (items[i].kind == TAPE_MESSAGE) {
            set_message(rows, span->rank, items[i].index, slice);
        } else {
            slice->is_copy = has_copy(tape, items, span->count);
        }
    }
}

/* ---- memory ---- */

static void name_messages(const struct tape *tape, struct names *names)
{
    names->list = memory_zeroed((size_t)tape->group_count * CALL_COUNT + 1, sizeof *names->list,
                                "the names of messages");
    for (int g = 0; g < tape->group_count; g++)
        for (int call = 0; call < CALL_COUNT; call++)
            snprintf(names->list[g * CALL_COUNT + call], sizeof *names->list, "%s %s",
                     call_name((enum call)call), tape->groups[g].name);
}

static void allocate(struct rows *rows)
{
    const struct step_plan *plan = rows->plan;
    const struct prediction *step = plan->step;
    rows->first = memory_zeroed((size_t)plan->count + 1, sizeof *rows->first, "the rows of a drawing");
    rows->names = memory_zeroed((size_t)plan->count, sizeof *rows->names, "the rows of a drawing");
    for (int r = 0; r < plan->count; r++) {
        rows->first[r + 1] = rows->first[r] + plan->tapes[r]->lane_count;
        name_messages(plan->tapes[r], &rows->names[r]);
    }
    rows->list =
        memory_zeroed((size_t)rows->first[plan->count] + 1, sizeof *rows->list, "the rows of a drawing");
    for (int64_t i = 0; i < step->span_count; i++)
        rows->list[rows->first[step->spans[i].rank] + step->spans[i].lane].count +=
            slices_of(rows, &step->spans[i]);
    for (int i = 0; i < rows->first[plan->count]; i++) {
        rows->list[i].slices = memory_zeroed((size_t)rows->list[i].count + 1, sizeof *rows->list->slices,
                                             "the slices of a drawing");
        rows->list[i].count = 0;
    }
}

static void destroy(struct rows *rows)
{
    const int count = rows->plan->count;
    for (int i = 0; i < rows->first[count]; i++)
        free(rows->list[i].slices);
    for (int r = 0; r < count; r++)
        free(rows->names[r].list);
    free(rows->list);
    free(rows->first);
    free(rows->names);
}

/* ---- the drawing ---- */

static void fill_rows(struct rows *rows)
{
    const struct step_plan *plan = rows->plan;
    for (int r = 0; r < plan->count; r++)
        for (int l = 0; l < plan->tapes[r]->lane_count; l++) {
            struct lane_row *row = &rows->list[rows->first[r] + l];
            row->rank = r;
            row->name = plan->tapes[r]->lanes[l].name;
        }
    for (int64_t i = 0; i < plan->step->span_count; i++)
        add_span(rows, &plan->step->spans[i]);
}

static void describe(const struct step_plan *plan, struct text *out)
{
    const struct degrees *d = &plan->run->mesh.degrees;
    text_add(out, "tp %d, pp %d, dp %d on %s: step %.6g ms, bubble %.1f %%; one rank of each stage", d->tp,
             d->pp, d->dp, plan->profile->name, 1e3 * plan->step->step_s, 100.0 * plan->bubble_fraction);
}

static void draw(const struct step_plan *plan, const char *name,
                 void (*draw_lanes)(const struct lane_drawing *drawing, struct text *out), struct text *out)
{
    struct rows rows = {.plan = plan};
    struct text note = {0};
    CHECK(plan->step != NULL);
    allocate(&rows);
    fill_rows(&rows);
    describe(plan, &note);
    draw_lanes(&(struct lane_drawing){.title = name,
                                      .note = text_chars(&note),
                                      .step_s = plan->step->step_s + plan->step->overlap_s,
                                      .rows = rows.list,
                                      .count = rows.first[plan->count]},
               out);
    destroy(&rows);
    text_free(&note);
}

void plan_draw_svg(const struct step_plan *plan, const char *name, struct text *out)
{
    draw(plan, name, draw_lanes_svg, out);
}

void plan_draw_trace(const struct step_plan *plan, const char *name, struct text *out)
{
    draw(plan, name, draw_lanes_trace, out);
}
