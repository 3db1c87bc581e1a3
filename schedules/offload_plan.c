// SPDX-License-Identifier: Apache-2.0
#include "schedules/offload_plan.h"

#include "schedules/edges.h"

#include <stdlib.h>

static const enum slot_class classes[] = {UNTIL_INPUT, STASH_UNTIL_INPUT, STASH_UNTIL_WEIGHT};
enum { CLASSES = sizeof classes / sizeof *classes };

/* Returns the next computing action from `position` in one direction; `position` itself at the ends of the
 * list. */
static int neighbour(const struct action_list *list, int position, int direction)
{
    for (int i = position + direction; i >= 0 && i < list->count; i += direction)
        if (action_fact(list->actions[i].kind)->computes)
            return i;
    return position;
}

/* When each tensor of a rank may be offloaded, and when it must be back. */
struct absence {
    int *leaves, *returns; // [chunks][m] indices in the list
};

static void look_at(const struct schedule *s, int rank, int position, struct absence *out)
{
    const struct action_list *list = &s->ranks[rank];
    struct action a = list->actions[position];
    const struct action_fact *fact = action_fact(a.kind);
    int cell = schedule_chunk(s, a.stage, a.microbatch) * s->m + a.microbatch;
    int *leaves = &out->leaves[cell];
    if (a.kind == FORWARD) {
        *leaves = neighbour(list, position, +1);
        if (a.stage > 0 && !crosses_ranks(s, a.stage, a.microbatch, false)) {
            int before = schedule_chunk(s, a.stage - 1, a.microbatch) * s->m + a.microbatch;
            if (out->leaves[before] < position)
                out->leaves[before] = position;
        }
    } else if (a.kind == SEND_ACTIVATION && *leaves < position) {
        *leaves = position;
    } else if (fact->backs_input) {
        out->returns[cell] = neighbour(list, position, -1);
    }
}

/* Splits each lifetime in two; the second one is unset if the tensor is not offloaded. */
static void split_lives(const struct slot_life *whole, const struct absence *absence, int chunks, int m,
                        struct slot_life *out)
{
    for (int cell = 0; cell < chunks * m; cell++) {
        int chunk = cell / m, at = (2 * chunk) * m + cell % m;
        out[at] = (struct slot_life){whole[cell].begin, whole[cell].end, at};
        out[at + m] = (struct slot_life){-1, -1, at + m};
        if (whole[cell].begin < 0 || absence->returns[cell] < 0)
            continue;
        out[at].end = absence->leaves[cell];
        out[at + m].begin = absence->returns[cell];
        out[at + m].end = whole[cell].end;
    }
}

static void give(struct offload_plan *plan, const struct slot_lives *whole, const struct absence *absence,
                 struct slot_life *room, bool *taken)
{
    int m = plan->m;
    struct slot_life *lives = room, *scratch = room + 2 * plan->chunks * m;
    for (int k = 0; k < CLASSES; k++) {
        enum slot_class class = classes[k];
        split_lives(whole->of[class], absence, plan->chunks, m, lives);
        for (int chunk = 0; chunk < plan->chunks; chunk++)
            plan->peak[class][chunk] =
                slots_give(lives + 2 * chunk * m, 2 * m, scratch, taken, plan->slot[class]);
        for (int cell = 0; cell < plan->chunks * m; cell++) {
            int at = 2 * (cell / m) * m + cell % m;
            if (absence->returns[cell] < 0)
                plan->slot[class][at + m] = plan->slot[class][at];
        }
    }
}

static bool allocate(struct offload_plan *plan, size_t things)
{
    bool good = true;
    for (int k = 0; k < CLASSES; k++) {
        plan->slot[classes[k]] = malloc(2 * things * sizeof(int));
        plan->peak[classes[k]] = calloc((size_t)plan->chunks, sizeof(int));
        good = good && plan->slot[classes[k]] != NULL && plan->peak[classes[k]] != NULL;
        for (size_t i = 0; good && i < 2 * things; i++)
            plan->slot[classes[k]][i] = -1;
    }
    plan->returns = malloc(things * sizeof(int));
    return good && plan->returns != NULL;
}

static void find_absence(const struct schedule *s, int rank, struct offload_plan *plan,
                         struct absence *absence)
{
    size_t things = (size_t)s->chunks * (size_t)s->m;
    absence->returns = plan->returns;
    for (size_t i = 0; i < things; i++)
        absence->leaves[i] = absence->returns[i] = -1;
    for (int i = 0; i < s->ranks[rank].count; i++)
        look_at(s, rank, i, absence);
    for (size_t i = 0; i < things; i++) {
        if (absence->returns[i] <= absence->leaves[i])
            absence->returns[i] = -1;
        plan->any = plan->any || absence->returns[i] >= 0;
    }
}

enum status offload_plan_create(const struct schedule *s, int rank, struct offload_plan **out)
{
    CHECK(s->has_transfers && rank >= 0 && rank < s->p);
    size_t things = (size_t)s->chunks * (size_t)s->m;
    struct offload_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return fail(NO_MEMORY, "no memory for an offload plan");
    *plan = (struct offload_plan){.m = s->m, .chunks = s->chunks};
    struct absence absence = {.leaves = malloc(things * sizeof(int))};
    struct slot_life *room = malloc(4 * things * sizeof *room);
    bool *taken = malloc(2 * things * sizeof *taken);
    struct slot_lives whole = {.of = {NULL}};
    enum status status = allocate(plan, things) && absence.leaves != NULL && room != NULL && taken != NULL
                             ? slot_lives_create(s, rank, 0, &whole)
                             : fail(NO_MEMORY, "no memory for the offload plan of %zu microbatches", things);
    if (status == OK) {
        find_absence(s, rank, plan, &absence);
        give(plan, &whole, &absence, room, taken);
        *out = plan;
    } else {
        offload_plan_destroy(plan);
    }
    slot_lives_destroy(&whole);
    free(absence.leaves);
    free(room);
    free(taken);
    return status;
}

void offload_plan_destroy(struct offload_plan *plan)
{
    if (plan == NULL)
        return;
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++) {
        free(plan->slot[class]);
        free(plan->peak[class]);
    }
    free(plan->returns);
    free(plan);
}
