// SPDX-License-Identifier: Apache-2.0
#include "schedules/peak.h"

#include "schedules/edges.h"

#include <stdlib.h>

struct walk {
    const struct schedule *s;
    int rank, slack;
    struct slot_life **lives; // [SLOT_CLASS_COUNT]; begin < 0: not alive yet
};

static int thing_of(const struct walk *w, int stage, int microbatch)
{
    return schedule_chunk(w->s, stage, microbatch) * w->s->m + microbatch;
}

static void begin(struct walk *w, enum slot_class class, int thing, int position)
{
    if (w->lives[class][thing].begin < 0)
        w->lives[class][thing].begin = position;
}

static void end(struct walk *w, enum slot_class class, int thing, int position)
{
    w->lives[class][thing].end = position;
}

/* Returns the position of the computing action `slack` before (direction -1) or after (+1) `position`; a pair
 * counts once. Returns `position` itself if slack is 0. */
static int slacken(const struct walk *w, int position, int direction)
{
    const struct action_list *list = &w->s->ranks[w->rank];
    int left = w->slack, reached = position;
    for (int i = position + direction; i >= 0 && i < list->count; i += direction) {
        if (!action_fact(list->actions[i].kind)->computes)
            continue;
        bool within_pair = direction < 0 ? list->actions[i].overlaps_next && i + 1 == reached
                                         : list->actions[i - 1].overlaps_next && i - 1 == reached;
        if (!within_pair && left-- == 0)
            break;
        reached = i;
    }
    return reached;
}

/* F reads its input and keeps it for the backward pass; its output may be the next chunk's input. */
static void live_forward(struct walk *w, struct action a, int i)
{
    const struct schedule *s = w->s;
    int thing = thing_of(w, a.stage, a.microbatch);
    begin(w, UNTIL_INPUT, thing, i); // only if it was neither received nor produced on this rank
    begin(w, UNTIL_WEIGHT, thing, i);
    begin(w, STASH_UNTIL_INPUT, thing, i);
    begin(w, STASH_UNTIL_WEIGHT, thing, i);
    if (a.stage + 1 == s->stages)
        return;
    if (crosses_ranks(s, a.stage + 1, a.microbatch, false)) {
        begin(w, ACTIVATION_OUT, thing, i);
        return;
    }
    int next = thing_of(w, a.stage + 1, a.microbatch);
    begin(w, UNTIL_INPUT, next, i);
    begin(w, UNTIL_WEIGHT, next, i);
}

static void live_backward_input(struct walk *w, struct action a, int i)
{
    int thing = thing_of(w, a.stage, a.microbatch);
    begin(w, GRADIENT_IN, thing, i);
    end(w, GRADIENT_IN, thing, i);
    end(w, UNTIL_INPUT, thing, i);
    end(w, STASH_UNTIL_INPUT, thing, i);
    begin(w, INPUT_TO_WEIGHT, thing, i);
    if (a.stage == 0)
        return;
    if (crosses_ranks(w->s, a.stage - 1, a.microbatch, true))
        begin(w, GRADIENT_OUT, thing, i);
    else
        begin(w, GRADIENT_IN, thing_of(w, a.stage - 1, a.microbatch), i);
}

static void live_backward_weight(struct walk *w, struct action a, int i)
{
    int thing = thing_of(w, a.stage, a.microbatch);
    end(w, UNTIL_WEIGHT, thing, i);
    end(w, STASH_UNTIL_WEIGHT, thing, i);
    end(w, INPUT_TO_WEIGHT, thing, i);
}

static void live(struct walk *w, struct action a, int i)
{
    int thing = thing_of(w, a.stage, a.microbatch);
    switch (a.kind) {
    case FORWARD:
        live_forward(w, a, i);
        return;
    case BACKWARD:
        live_backward_input(w, a, i);
        live_backward_weight(w, a, i);
        return;
    case BACKWARD_INPUT:
        live_backward_input(w, a, i);
        return;
    case BACKWARD_WEIGHT:
        live_backward_weight(w, a, i);
        return;
    case RECV_ACTIVATION:
        begin(w, UNTIL_INPUT, thing, slacken(w, i, -1));
        begin(w, UNTIL_WEIGHT, thing, slacken(w, i, -1));
        return;
    case RECV_GRADIENT:
        begin(w, GRADIENT_IN, thing, slacken(w, i, -1));
        return;
    case SEND_ACTIVATION:
        end(w, ACTIVATION_OUT, thing, slacken(w, i, +1));
        return;
    case SEND_GRADIENT:
        end(w, GRADIENT_OUT, thing, slacken(w, i, +1));
        return;
    case ACTION_KIND_COUNT:
        return;
    }
}

static int compare_begin(const void *a, const void *b)
{
    const struct slot_life *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : x->thing - y->thing;
}

static int compare_end(const void *a, const void *b)
{
    const struct slot_life *x = a, *y = b;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : x->thing - y->thing;
}

int slots_give(struct slot_life *lives, int count, struct slot_life *scratch, bool *taken, int *slot)
{
    for (int i = 0; i < count; i++) {
        scratch[i] = lives[i];
        taken[i] = false;
    }
    qsort(lives, (size_t)count, sizeof *lives, compare_begin);
    qsort(scratch, (size_t)count, sizeof *scratch, compare_end);
    int peak = 0, lowest = 0, ended = 0;
    for (int i = 0; i < count; i++) {
        if (lives[i].begin < 0)
            continue;
        for (; ended < count && scratch[ended].end < lives[i].begin; ended++) {
            if (scratch[ended].begin < 0)
                continue;
            int free_slot = slot[scratch[ended].thing];
            taken[free_slot] = false;
            lowest = free_slot < lowest ? free_slot : lowest;
        }
        while (taken[lowest])
            lowest++;
        taken[lowest] = true;
        slot[lives[i].thing] = lowest;
        peak = lowest + 1 > peak ? lowest + 1 : peak;
    }
    return peak;
}

static void plan_class(struct slot_plan *plan, enum slot_class class, struct slot_life *lives,
                       struct slot_life *scratch, bool *taken)
{
    for (int chunk = 0; chunk < plan->chunks; chunk++)
        plan->peak[class][chunk] =
            slots_give(lives + (size_t)chunk * (size_t)plan->m, plan->m, scratch, taken, plan->slot[class]);
    plan->rank_peak[class] =
        slots_give(lives, plan->chunks * plan->m, scratch, taken, plan->rank_slot[class]);
}

static enum status plan_create(const struct schedule *s, struct slot_plan **out)
{
    struct slot_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return fail(NO_MEMORY, "no memory for a slot plan");
    plan->m = s->m;
    plan->chunks = s->chunks;
    size_t things = (size_t)s->chunks * (size_t)s->m;
    bool good = true;
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++) {
        plan->slot[class] = malloc(things * sizeof *plan->slot[class]);
        plan->rank_slot[class] = malloc(things * sizeof *plan->rank_slot[class]);
        plan->peak[class] = calloc((size_t)s->chunks, sizeof *plan->peak[class]);
        good = good && plan->slot[class] && plan->rank_slot[class] && plan->peak[class];
        for (size_t i = 0; good && i < things; i++)
            plan->slot[class][i] = plan->rank_slot[class][i] = -1;
    }
    if (!good) {
        slot_plan_destroy(plan);
        return fail(NO_MEMORY, "no memory for the slots of %zu microbatches", things);
    }
    *out = plan;
    return OK;
}

void slot_plan_destroy(struct slot_plan *plan)
{
    if (plan == NULL)
        return;
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++) {
        free(plan->slot[class]);
        free(plan->rank_slot[class]);
        free(plan->peak[class]);
    }
    free(plan);
}

enum status slot_lives_create(const struct schedule *s, int rank, int slack, struct slot_lives *out)
{
    CHECK(s->has_transfers && rank >= 0 && rank < s->p && slack >= 0);
    size_t things = (size_t)s->chunks * (size_t)s->m;
    struct slot_life *all = malloc(SLOT_CLASS_COUNT * things * sizeof *all);
    if (all == NULL)
        return fail(NO_MEMORY, "no memory for the slots of rank %d", rank);
    for (size_t i = 0; i < SLOT_CLASS_COUNT * things; i++)
        all[i] = (struct slot_life){.begin = -1, .thing = (int)(i % things)};
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++)
        out->of[class] = all + (size_t) class * things;
    struct walk w = {.s = s, .rank = rank, .slack = slack, .lives = out->of};
    for (int i = 0; i < s->ranks[rank].count; i++)
        live(&w, s->ranks[rank].actions[i], i);
    return OK;
}

void slot_lives_destroy(struct slot_lives *lives)
{
    free(lives->of[0]);
    *lives = (struct slot_lives){.of = {NULL}};
}

enum status slot_plan_create(const struct schedule *s, int rank, int slack, struct slot_plan **out)
{
    struct slot_plan *plan = NULL;
    struct slot_lives lives;
    size_t things = (size_t)s->chunks * (size_t)s->m;
    TRY(slot_lives_create(s, rank, slack, &lives));
    struct slot_life *scratch = malloc(things * sizeof *scratch);
    bool *taken = malloc(things * sizeof *taken);
    enum status status = scratch != NULL && taken != NULL
                             ? plan_create(s, &plan)
                             : fail(NO_MEMORY, "no memory for the slots of rank %d", rank);
    for (int class = 0; status == OK && class < SLOT_CLASS_COUNT; class ++)
        plan_class(plan, (enum slot_class) class, lives.of[class], scratch, taken);
    free(taken);
    free(scratch);
    slot_lives_destroy(&lives);
    if (status == OK)
        *out = plan;
    return status;
}
