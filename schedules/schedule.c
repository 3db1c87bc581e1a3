// SPDX-License-Identifier: Apache-2.0
/* Placement of stages, and the action lists. */
#include "schedules/schedule.h"

#include "base/memory.h"
#include "schedules/families/family.h"

#include <limits.h>
#include <stdlib.h>

bool schedule_rank_has_kind(const struct schedule *schedule, int rank, enum action_kind kind)
{
    for (int i = 0; i < schedule->ranks[rank].count; i++)
        if (schedule->ranks[rank].actions[i].kind == kind)
            return true;
    return false;
}

bool schedule_splits_backward(const struct schedule *schedule, int rank)
{
    return schedule_rank_has_kind(schedule, rank, BACKWARD_WEIGHT);
}

bool schedule_has_kind(const struct schedule *schedule, enum action_kind kind)
{
    for (int rank = 0; rank < schedule->p; rank++)
        if (schedule_rank_has_kind(schedule, rank, kind))
            return true;
    return false;
}

bool schedule_has_replicas(const struct schedule *schedule)
{
    return schedule->chunks > schedule->v;
}

bool schedule_holds(const struct schedule *schedule, int rank, int stage)
{
    return schedule->rank_of[0][stage] == rank || schedule->rank_of[1][stage] == rank;
}

bool schedule_is_last(const struct schedule *schedule, int microbatch)
{
    return microbatch == schedule->second_from - 1 || microbatch == schedule->m - 1;
}

void action_list_add(struct action_list *list, struct action action)
{
    if (list->count == list->capacity) {
        CHECK(list->capacity <= INT_MAX / 2);
        list->capacity = list->capacity < 16 ? 16 : 2 * list->capacity;
        list->actions = memory_resized(list->actions, (size_t)list->capacity, sizeof *list->actions,
                                       "the actions of a schedule");
    }
    list->actions[list->count++] = action;
}

static void add(struct schedule *s, struct action action)
{
    if (action.microbatch >= s->m)
        return;
    int rank = schedule_rank(s, action.stage, action.microbatch);
    action_list_add(&s->ranks[rank], action);
}

void schedule_add(struct schedule *schedule, enum action_kind kind, int stage, int microbatch)
{
    add(schedule, (struct action){.kind = kind, .stage = stage, .microbatch = microbatch, .peer = -1});
}

void schedule_add_overlapping(struct schedule *schedule, enum action_kind kind, int stage, int microbatch)
{
    add(schedule,
        (struct action){
            .kind = kind, .stage = stage, .microbatch = microbatch, .peer = -1, .overlaps_next = true});
}

/* Sets the rank of a stage for one direction, and the index of the chunk on that rank. */
static void place(struct schedule *s, enum placement placement, int direction, int stage)
{
    int round = stage / s->p, at = stage % s->p;
    bool backwards = placement == PLACE_V         ? round % 2 == 1
                     : placement == PLACE_TWO_WAY ? direction == 1
                                                  : false;
    int rank = backwards ? s->p - 1 - at : at;
    int chunk = placement == PLACE_TWO_WAY ? 2 * round + direction : round;
    s->rank_of[direction][stage] = rank;
    s->chunk_of[direction][stage] = chunk;
    s->stage_of[(size_t)rank * (size_t)s->chunks + (size_t)chunk] = stage;
}

/* Allocates and sets everything but the placement. */
static struct schedule *allocate(const struct schedule *shape)
{
    static const char what[] = "the stages of a schedule";
    struct schedule *s = memory_zeroed(1, sizeof *s, "a schedule");
    *s = *shape;
    const size_t stages = (size_t)s->stages;
    for (int direction = 0; direction < 2; direction++) {
        s->rank_of[direction] = memory_zeroed(stages, sizeof *s->rank_of[direction], what);
        s->chunk_of[direction] = memory_zeroed(stages, sizeof *s->chunk_of[direction], what);
    }
    s->stage_of = memory_zeroed((size_t)s->p * (size_t)s->chunks, sizeof *s->stage_of, what);
    s->ranks = memory_zeroed((size_t)s->p, sizeof *s->ranks, what);
    return s;
}

struct schedule *schedule_create(const struct family *family, const struct schedule_options *options)
{
    bool two_way = family->placement == PLACE_TWO_WAY;
    struct schedule shape = {.family = family,
                             .p = options->p,
                             .m = options->m,
                             .v = options->v,
                             .stages = options->p * options->v};
    shape.chunks = two_way ? 2 * options->v : options->v;
    shape.group = options->microbatch_group_size;
    shape.second_from = two_way ? (options->m + 1) / 2 : options->m;
    struct schedule *s = allocate(&shape);
    for (int direction = 0; direction < 2; direction++)
        for (int stage = 0; stage < s->stages; stage++)
            place(s, family->placement, direction, stage);
    return s;
}

static const struct family family_file = {.about = {.name = "file"}, .placement = PLACE_CUSTOM};

struct schedule *schedule_create_custom(const struct custom_placement *given)
{
    bool two_way = given->second_from < given->m;
    struct schedule shape = {.family = &family_file, .p = given->p, .m = given->m, .stages = given->stages};
    shape.v = given->stages / given->p;
    shape.chunks = two_way ? 2 * shape.v : shape.v;
    shape.second_from = given->second_from;
    AUTO_FREE int *held = memory_zeroed((size_t)given->p, sizeof *held, "the stages of a schedule");
    struct schedule *s = allocate(&shape);

    // The chunks of a rank are its stages in ascending order; those of two directions alternate.
    for (int direction = 0; direction < 2; direction++) {
        for (int rank = 0; rank < s->p; rank++)
            held[rank] = 0;
        for (int stage = 0; stage < s->stages; stage++) {
            int rank = given->rank_of[direction][stage], chunk = held[rank]++;
            chunk = two_way ? 2 * chunk + direction : chunk;
            s->rank_of[direction][stage] = rank;
            s->chunk_of[direction][stage] = chunk;
            s->stage_of[(size_t)rank * (size_t)s->chunks + (size_t)chunk] = stage;
        }
    }
    return s;
}

void schedule_destroy(struct schedule *schedule)
{
    if (schedule == NULL)
        return;
    for (int direction = 0; direction < 2; direction++) {
        free(schedule->rank_of[direction]);
        free(schedule->chunk_of[direction]);
    }
    free(schedule->stage_of);
    for (int rank = 0; schedule->ranks != NULL && rank < schedule->p; rank++)
        free(schedule->ranks[rank].actions);
    free(schedule->ranks);
    free(schedule);
}
