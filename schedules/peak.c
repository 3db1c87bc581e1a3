// SPDX-License-Identifier: Apache-2.0
#include "schedules/peak.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <stdlib.h>

struct walk {
    const struct schedule *s;
    int rank;
    struct slot_lifetime **lifetimes; // [PLANNED_LIFETIMES]; begin < 0: not alive yet
};

static int tensor_index(const struct walk *w, int stage, int microbatch)
{
    return schedule_chunk(w->s, stage, microbatch) * w->s->m + microbatch;
}

static void begin(struct walk *w, enum lifetime lifetime, int tensor, int position)
{
    if (w->lifetimes[lifetime][tensor].begin < 0)
        w->lifetimes[lifetime][tensor].begin = position;
}

static void end(struct walk *w, enum lifetime lifetime, int tensor, int position)
{
    w->lifetimes[lifetime][tensor].end = position;
}

/* F reads its input and keeps it for the backward pass; its output may be the next chunk's input. */
static void record_forward(struct walk *w, struct action a, int i)
{
    const struct schedule *s = w->s;
    int tensor = tensor_index(w, a.stage, a.microbatch);
    begin(w, KEEP_INPUT, tensor, i); // only if it was neither received nor produced on this rank
    begin(w, KEEP_UNTIL_BACKWARD_INPUT, tensor, i);
    begin(w, KEEP_UNTIL_BACKWARD_WEIGHT, tensor, i);
    if (a.stage + 1 < s->stages && !crosses_ranks(s, a.stage + 1, a.microbatch, false))
        begin(w, KEEP_INPUT, tensor_index(w, a.stage + 1, a.microbatch), i);
}

static void record_backward_input(struct walk *w, struct action a, int i)
{
    int tensor = tensor_index(w, a.stage, a.microbatch);
    end(w, KEEP_INPUT, tensor, i);
    end(w, KEEP_UNTIL_BACKWARD_INPUT, tensor, i);
    begin(w, KEEP_INPUT_TO_WEIGHT, tensor, i);
}

static void record_backward_weight(struct walk *w, struct action a, int i)
{
    int tensor = tensor_index(w, a.stage, a.microbatch);
    end(w, KEEP_UNTIL_BACKWARD_WEIGHT, tensor, i);
    end(w, KEEP_INPUT_TO_WEIGHT, tensor, i);
}

static void record(struct walk *w, struct action a, int i)
{
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
        begin(w, KEEP_INPUT, tensor_index(w, a.stage, a.microbatch), i);
        return;
    case SEND_ACTIVATION:
    case RECV_GRADIENT:
    case SEND_GRADIENT:
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

/* Most schedules run the microbatches of a chunk in order, so their lifetimes are sorted already. */
static void sort(struct slot_lifetime *list, int count, int (*compare)(const void *a, const void *b))
{
    for (int i = 1; i < count; i++)
        if (compare(&list[i - 1], &list[i]) > 0) {
            qsort(list, (size_t)count, sizeof *list, compare);
            return;
        }
}

int slots_assign(struct slot_lifetime *lifetimes, int count, struct slot_lifetime *scratch, bool *used,
                 int *slot)
{
    for (int i = 0; i < count; i++) {
        scratch[i] = lifetimes[i];
        used[i] = false;
    }
    sort(lifetimes, count, compare_begin);
    sort(scratch, count, compare_end);
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

static void plan_lifetime(struct slot_plan *plan, enum lifetime lifetime, struct slot_lifetime *lifetimes,
                          struct slot_lifetime *scratch, bool *used)
{
    for (int chunk = 0; chunk < plan->chunks; chunk++)
        plan->peak[lifetime][chunk] = slots_assign(lifetimes + (size_t)chunk * (size_t)plan->m, plan->m,
                                                   scratch, used, plan->slot[lifetime]);
}

static struct slot_plan *plan_create(const struct schedule *s)
{
    struct slot_plan *plan = memory_zeroed(1, sizeof *plan, "a slot plan");
    const size_t tensors = (size_t)s->chunks * (size_t)s->m;
    plan->m = s->m;
    plan->chunks = s->chunks;
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++) {
        plan->slot[lifetime] = memory_zeroed(tensors, sizeof(int), "the slots of microbatches");
        plan->peak[lifetime] = memory_zeroed((size_t)s->chunks, sizeof(int), "the slots of chunks");
        for (size_t i = 0; i < tensors; i++)
            plan->slot[lifetime][i] = -1;
    }
    return plan;
}

void slot_plan_destroy(struct slot_plan *plan)
{
    if (plan == NULL)
        return;
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++) {
        free(plan->slot[lifetime]);
        free(plan->peak[lifetime]);
    }
    free(plan);
}

void slot_lifetimes_create(const struct schedule *schedule, int rank, struct slot_lifetimes *out)
{
    CHECK(schedule->has_transfers && rank >= 0 && rank < schedule->p);
    size_t tensors = (size_t)schedule->chunks * (size_t)schedule->m;
    struct slot_lifetime *all =
        memory_zeroed(PLANNED_LIFETIMES * tensors, sizeof *all, "the lifetimes of microbatches");
    for (size_t i = 0; i < PLANNED_LIFETIMES * tensors; i++)
        all[i] = (struct slot_lifetime){.begin = -1, .tensor = (int)(i % tensors)};
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        out->of[lifetime] = all + (size_t)lifetime * tensors;
    struct walk w = {.s = schedule, .rank = rank, .lifetimes = out->of};
    for (int i = 0; i < schedule->ranks[rank].count; i++)
        record(&w, schedule->ranks[rank].actions[i], i);
}

void slot_lifetimes_destroy(struct slot_lifetimes *lifetimes)
{
    free(lifetimes->of[0]);
    *lifetimes = (struct slot_lifetimes){.of = {NULL}};
}

struct slot_plan *slot_plan_create(const struct schedule *schedule, int rank)
{
    struct slot_plan *plan = plan_create(schedule);
    struct slot_lifetimes lifetimes;
    size_t tensors = (size_t)schedule->chunks * (size_t)schedule->m;
    slot_lifetimes_create(schedule, rank, &lifetimes);
    AUTO_FREE struct slot_lifetime *scratch = memory_zeroed(tensors, sizeof *scratch, "a slot plan");
    AUTO_FREE bool *used = memory_zeroed(tensors, sizeof *used, "a slot plan");
    for (int lifetime = 0; lifetime < PLANNED_LIFETIMES; lifetime++)
        plan_lifetime(plan, (enum lifetime)lifetime, lifetimes.of[lifetime], scratch, used);
    slot_lifetimes_destroy(&lifetimes);
    return plan;
}
