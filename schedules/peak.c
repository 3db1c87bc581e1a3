// SPDX-License-Identifier: Apache-2.0
#include "schedules/peak.h"

#include "schedules/edges.h"

#include <stdlib.h>

struct walk {
    const struct schedule *s;
    int rank, slack;
    struct slot_lifetime **lifetimes; // [SLOT_CLASS_COUNT]; begin < 0: not alive yet
};

static int tensor_index(const struct walk *w, int stage, int microbatch)
{
    return schedule_chunk(w->s, stage, microbatch) * w->s->m + microbatch;
}

static void begin(struct walk *w, enum slot_class class, int tensor, int position)
{
    if (w->lifetimes[class][tensor].begin < 0)
        w->lifetimes[class][tensor].begin = position;
}

static void end(struct walk *w, enum slot_class class, int tensor, int position)
{
    w->lifetimes[class][tensor].end = position;
}

/* Returns the position of the computing action `slack` before (direction -1) or after (+1) `position`; a pair
 * counts once. Returns `position` itself if slack is 0. */
static int extend(const struct walk *w, int position, int direction)
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
static void record_forward(struct walk *w, struct action a, int i)
{
    const struct schedule *s = w->s;
    int tensor = tensor_index(w, a.stage, a.microbatch);
    begin(w, UNTIL_INPUT, tensor, i); // only if it was neither received nor produced on this rank
    begin(w, UNTIL_WEIGHT, tensor, i);
    begin(w, STASH_UNTIL_INPUT, tensor, i);
    begin(w, STASH_UNTIL_WEIGHT, tensor, i);
    if (a.stage + 1 == s->stages)
        return;
    if (crosses_ranks(s, a.stage + 1, a.microbatch, false)) {
        begin(w, ACTIVATION_OUT, tensor, i);
        return;
    }
    int next = tensor_index(w, a.stage + 1, a.microbatch);
    begin(w, UNTIL_INPUT, next, i);
    begin(w, UNTIL_WEIGHT, next, i);
}

static void record_backward_input(struct walk *w, struct action a, int i)
{
    int tensor = tensor_index(w, a.stage, a.microbatch);
    begin(w, GRADIENT_IN, tensor, i);
    end(w, GRADIENT_IN, tensor, i);
    end(w, UNTIL_INPUT, tensor, i);
    end(w, STASH_UNTIL_INPUT, tensor, i);
    begin(w, INPUT_TO_WEIGHT, tensor, i);
    if (a.stage == 0)
        return;
    if (crosses_ranks(w->s, a.stage - 1, a.microbatch, true))
        begin(w, GRADIENT_OUT, tensor, i);
    else
        begin(w, GRADIENT_IN, tensor_index(w, a.stage - 1, a.microbatch), i);
}

static void record_backward_weight(struct walk *w, struct action a, int i)
{
    int tensor = tensor_index(w, a.stage, a.microbatch);
    end(w, UNTIL_WEIGHT, tensor, i);
    end(w, STASH_UNTIL_WEIGHT, tensor, i);
    end(w, INPUT_TO_WEIGHT, tensor, i);
}

static void record(struct walk *w, struct action a, int i)
{
    int tensor = tensor_index(w, a.stage, a.microbatch);
    switch (a.kind) {
    case FORWARD:
        record_forward(w, a, i);
        return;
    case BACKWARD:
        record_backward_input(w, a, i);
        record_backward_weight(w, a, i);
        return;
    case BACKWARD_INPUT:
        record_backward_input(w, a, i);
        return;
    case BACKWARD_WEIGHT:
        record_backward_weight(w, a, i);
        return;
    case RECV_ACTIVATION:
        begin(w, UNTIL_INPUT, tensor, extend(w, i, -1));
        begin(w, UNTIL_WEIGHT, tensor, extend(w, i, -1));
        return;
    case RECV_GRADIENT:
        begin(w, GRADIENT_IN, tensor, extend(w, i, -1));
        return;
    case SEND_ACTIVATION:
        end(w, ACTIVATION_OUT, tensor, extend(w, i, +1));
        return;
    case SEND_GRADIENT:
        end(w, GRADIENT_OUT, tensor, extend(w, i, +1));
        return;
    case ACTION_KIND_COUNT:
        return;
    }
}

static int compare_begin(const void *a, const void *b)
{
    const struct slot_lifetime *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : x->tensor - y->tensor;
}

static int compare_end(const void *a, const void *b)
{
    const struct slot_lifetime *x = a, *y = b;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : x->tensor - y->tensor;
}

int slots_assign(struct slot_lifetime *lifetimes, int count, struct slot_lifetime *scratch, bool *used,
                 int *slot)
{
    for (int i = 0; i < count; i++) {
        scratch[i] = lifetimes[i];
        used[i] = false;
    }
    qsort(lifetimes, (size_t)count, sizeof *lifetimes, compare_begin);
    qsort(scratch, (size_t)count, sizeof *scratch, compare_end);
    int peak = 0, lowest = 0, ended = 0;
    for (int i = 0; i < count; i++) {
        if (lifetimes[i].begin < 0)
            continue;
        for (; ended < count && scratch[ended].end < lifetimes[i].begin; ended++) {
            if (scratch[ended].begin < 0)
                continue;
            int free_slot = slot[scratch[ended].tensor];
            used[free_slot] = false;
            lowest = free_slot < lowest ? free_slot : lowest;
        }
        while (used[lowest])
            lowest++;
        used[lowest] = true;
        slot[lifetimes[i].tensor] = lowest;
        peak = lowest + 1 > peak ? lowest + 1 : peak;
    }
    return peak;
}

static void plan_class(struct slot_plan *plan, enum slot_class class, struct slot_lifetime *lifetimes,
                       struct slot_lifetime *scratch, bool *used)
{
    for (int chunk = 0; chunk < plan->chunks; chunk++)
        plan->peak[class][chunk] = slots_assign(lifetimes + (size_t)chunk * (size_t)plan->m, plan->m, scratch,
                                                used, plan->slot[class]);
    plan->rank_peak[class] =
        slots_assign(lifetimes, plan->chunks * plan->m, scratch, used, plan->rank_slot[class]);
}

static enum status plan_create(const struct schedule *s, struct slot_plan **out)
{
    struct slot_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return fail(NO_MEMORY, "no memory for a slot plan");
    plan->m = s->m;
    plan->chunks = s->chunks;
    size_t tensors = (size_t)s->chunks * (size_t)s->m;
    bool good = true;
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++) {
        plan->slot[class] = malloc(tensors * sizeof *plan->slot[class]);
        plan->rank_slot[class] = malloc(tensors * sizeof *plan->rank_slot[class]);
        plan->peak[class] = calloc((size_t)s->chunks, sizeof *plan->peak[class]);
        good = good && plan->slot[class] && plan->rank_slot[class] && plan->peak[class];
        for (size_t i = 0; good && i < tensors; i++)
            plan->slot[class][i] = plan->rank_slot[class][i] = -1;
    }
    if (!good) {
        slot_plan_destroy(plan);
        return fail(NO_MEMORY, "no memory for the slots of %zu microbatches", tensors);
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

enum status slot_lifetimes_create(const struct schedule *s, int rank, int slack, struct slot_lifetimes *out)
{
    CHECK(s->has_transfers && rank >= 0 && rank < s->p && slack >= 0);
    size_t tensors = (size_t)s->chunks * (size_t)s->m;
    struct slot_lifetime *all = malloc(SLOT_CLASS_COUNT * tensors * sizeof *all);
    if (all == NULL)
        return fail(NO_MEMORY, "no memory for the slots of rank %d", rank);
    for (size_t i = 0; i < SLOT_CLASS_COUNT * tensors; i++)
        all[i] = (struct slot_lifetime){.begin = -1, .tensor = (int)(i % tensors)};
    for (int class = 0; class < SLOT_CLASS_COUNT; class ++)
        out->of[class] = all + (size_t) class * tensors;
    struct walk w = {.s = s, .rank = rank, .slack = slack, .lifetimes = out->of};
    for (int i = 0; i < s->ranks[rank].count; i++)
        record(&w, s->ranks[rank].actions[i], i);
    return OK;
}

void slot_lifetimes_destroy(struct slot_lifetimes *lifetimes)
{
    free(lifetimes->of[0]);
    *lifetimes = (struct slot_lifetimes){.of = {NULL}};
}

enum status slot_plan_create(const struct schedule *s, int rank, int slack, struct slot_plan **out)
{
    struct slot_plan *plan = NULL;
    struct slot_lifetimes lifetimes;
    size_t tensors = (size_t)s->chunks * (size_t)s->m;
    TRY(slot_lifetimes_create(s, rank, slack, &lifetimes));
    struct slot_lifetime *scratch = malloc(tensors * sizeof *scratch);
    bool *used = malloc(tensors * sizeof *used);
    enum status status = scratch != NULL && used != NULL
                             ? plan_create(s, &plan)
                             : fail(NO_MEMORY, "no memory for the slots of rank %d", rank);
    for (int class = 0; status == OK && class < SLOT_CLASS_COUNT; class ++)
        plan_class(plan, (enum slot_class) class, lifetimes.of[class], scratch, used);
    free(used);
    free(scratch);
    slot_lifetimes_destroy(&lifetimes);
    if (status == OK)
        *out = plan;
    return status;
}
