// SPDX-License-Identifier: Apache-2.0
/* Checks an offload plan. A tensor that is offloaded is on the device twice: from its first action to at
 * least the action after its F, while it is copied to the host; and from the action before which it
 * returns to its last one. */
#include "schedules/offload_plan.h"

#include "base/memory.h"

#include <stdlib.h>

/* A slot in use, from action `begin` to action `end`, inclusive. */
struct use {
    int slot, begin, end, microbatch;
};

struct checker {
    const struct offload_plan *plan;
    const struct action_list *list;
    struct slot_lifetimes whole;
    int *forward, *backward; // [chunks·m] index of F, and of I or B; -1: not on this rank
    struct use *uses;        // [2·m]
};

static void find_actions(struct checker *c, const struct schedule *s)
{
    for (int cell = 0; cell < s->chunks * s->m; cell++)
        c->forward[cell] = c->backward[cell] = -1;
    for (int i = 0; i < c->list->count; i++) {
        struct action a = c->list->actions[i];
        int cell = schedule_chunk(s, a.stage, a.microbatch) * s->m + a.microbatch;
        if (a.kind == FORWARD)
            c->forward[cell] = i;
        if (action_traits(a.kind)->backward_input)
            c->backward[cell] = i;
    }
}

/* The next computing action after `position`; `position` if there is none. */
static int next_computing(const struct action_list *list, int position)
{
    for (int i = position + 1; i < list->count; i++)
        if (action_traits(list->actions[i].kind)->computes)
            return i;
    return position;
}

static enum status add_uses(struct checker *c, enum lifetime lifetime, int chunk, int microbatch, int *count)
{
    const struct offload_plan *plan = c->plan;
    const int cell = chunk * plan->m + microbatch, returns = plan->reload_at[cell];
    const struct slot_lifetime whole = c->whole.of[lifetime][cell];
    if (whole.begin < 0)
        return OK;
    for (int back = 0; back < 2; back++) {
        int slot = offload_slot(plan, lifetime, chunk, microbatch, back);
        if (slot < 0 || slot >= plan->peak[lifetime][chunk])
            return fail(BAD_SCHEDULE, "offload: chunk %d, microbatch %d has slot %d of %d", chunk, microbatch,
                        slot, plan->peak[lifetime][chunk]);
        c->uses[*count + back] = (struct use){slot, whole.begin, whole.end, microbatch};
    }
    if (returns < 0) {
        if (c->uses[*count].slot != c->uses[*count + 1].slot)
            return fail(BAD_SCHEDULE,
                        "offload: chunk %d, microbatch %d stays on the device, but has two slots", chunk,
                        microbatch);
        *count += 1;
        return OK;
    }
    int left = next_computing(c->list, c->forward[cell]);
    if (returns <= left || returns > c->backward[cell])
        return fail(
            BAD_SCHEDULE,
            "offload: chunk %d, microbatch %d returns before action %d; it leaves with action %d, and is "
            "read by action %d",
            chunk, microbatch, returns, left, c->backward[cell]);
    c->uses[*count].end = left;
    c->uses[*count + 1].begin = returns;
    *count += 2;
    return OK;
}

static int by_slot(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    if (x->slot != y->slot)
        return x->slot - y->slot;
    return x->begin != y->begin ? x->begin - y->begin : x->microbatch - y->microbatch;
}

static enum status check_chunk(struct checker *c, enum lifetime lifetime, int chunk)
{
    int count = 0;
    for (int j = 0; j < c->plan->m; j++)
        TRY(add_uses(c, lifetime, chunk, j, &count));
    qsort(c->uses, (size_t)count, sizeof *c->uses, by_slot);
    for (int i = 1; i < count; i++) {
        const struct use *before = &c->uses[i - 1], *use = &c->uses[i];
        if (before->slot == use->slot && use->begin <= before->end)
            return fail(BAD_SCHEDULE,
                        "offload: microbatches %d and %d of chunk %d are both in slot %d at action %d",
                        before->microbatch, use->microbatch, chunk, use->slot, use->begin);
    }
    return OK;
}

enum status offload_plan_check(const struct offload_plan *plan, const struct schedule *schedule, int rank)
{
    const size_t tensors = (size_t)schedule->chunks * (size_t)schedule->m;
    if (plan->m != schedule->m || plan->chunks != schedule->chunks)
        return fail(BAD_SCHEDULE, "offload: the plan is of %d chunks and %d microbatches, not of %d and %d",
                    plan->chunks, plan->m, schedule->chunks, schedule->m);
    struct checker c = {
        .plan = plan,
        .list = &schedule->ranks[rank],
        .forward = memory_zeroed(tensors, sizeof(int), "the check of an offload plan"),
        .backward = memory_zeroed(tensors, sizeof(int), "the check of an offload plan"),
        .uses = memory_zeroed(2 * (size_t)schedule->m, sizeof *c.uses, "the check of an offload plan")};
    enum status status = OK;
    slot_lifetimes_create(schedule, rank, &c.whole);
    find_actions(&c, schedule);
    for (int lifetime = 0; lifetime < OFFLOAD_LIFETIMES; lifetime++)
        for (int chunk = 0; status == OK && chunk < schedule->chunks; chunk++)
            status = check_chunk(&c, (enum lifetime)lifetime, chunk);
    slot_lifetimes_destroy(&c.whole);
    free(c.forward);
    free(c.backward);
    free(c.uses);
    return status;
}
