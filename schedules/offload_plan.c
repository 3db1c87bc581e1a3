// SPDX-License-Identifier: Apache-2.0
#include "schedules/offload_plan.h"

#include "base/memory.h"
#include "schedules/edges.h"

#include <stdlib.h>

/* Returns the next computing action from `position` in one direction; `position` itself at the ends of the
 * list. */
static int neighbour(const struct action_list *list, int position, int direction)
{
    for (int i = position + direction; i >= 0 && i < list->count; i += direction)
        if (action_traits(list->actions[i].kind)->computes)
            return i;
    return position;
}

/* When the offload of each tensor of a rank may begin, and when it must return. */
struct offload_window {
    int *begins, *reload_at; // [chunks][m] indices in the list
};

static void add_action(const struct schedule *s, int rank, int position, struct offload_window *out)
{
    const struct action_list *list = &s->ranks[rank];
    struct action a = list->actions[position];
    const struct action_traits *traits = action_traits(a.kind);
    int cell = schedule_chunk(s, a.stage, a.microbatch) * s->m + a.microbatch;
    int *begins = &out->begins[cell];
    if (a.kind == FORWARD) {
        *begins = neighbour(list, position, +1);
        if (a.stage > 0 && !crosses_ranks(s, a.stage, a.microbatch, false)) {
            int before = schedule_chunk(s, a.stage - 1, a.microbatch) * s->m + a.microbatch;
            if (out->begins[before] < position)
                out->begins[before] = position;
        }
    } else if (a.kind == SEND_ACTIVATION && *begins < position) {
        *begins = position;
    } else if (traits->backward_input) {
        out->reload_at[cell] = neighbour(list, position, -1);
    }
}

/* Splits each lifetime in two; the second one is unset if the tensor is not offloaded. */
static void split_lifetimes(const struct slot_lifetime *whole, const struct offload_window *window,
                            int chunks, int m, struct slot_lifetime *out)
{
    for (int cell = 0; cell < chunks * m; cell++) {
        int chunk = cell / m, at = (2 * chunk) * m + cell % m;
        out[at] = (struct slot_lifetime){whole[cell].begin, whole[cell].end, at};
        out[at + m] = (struct slot_lifetime){-1, -1, at + m};
        if (whole[cell].begin < 0 || window->reload_at[cell] < 0)
            continue;
        out[at].end = window->begins[cell];
        out[at + m].begin = window->reload_at[cell];
        out[at + m].end = whole[cell].end;
    }
}

static void assign_slots(struct offload_plan *plan, const struct slot_lifetimes *whole,
                         const struct offload_window *window, struct slot_lifetime *buffer, bool *used)
{
    int m = plan->m;
    struct slot_lifetime *lifetimes = buffer, *scratch = buffer + 2 * plan->chunks * m;
    for (int lifetime = 0; lifetime < OFFLOAD_LIFETIMES; lifetime++) {
        split_lifetimes(whole->of[lifetime], window, plan->chunks, m, lifetimes);
        for (int chunk = 0; chunk < plan->chunks; chunk++)
            plan->peak[lifetime][chunk] =
                slots_assign(lifetimes + 2 * chunk * m, 2 * m, scratch, used, plan->slot[lifetime]);
        for (int cell = 0; cell < plan->chunks * m; cell++) {
            int at = 2 * (cell / m) * m + cell % m;
            if (window->reload_at[cell] < 0)
                plan->slot[lifetime][at + m] = plan->slot[lifetime][at];
        }
    }
}

static void allocate(struct offload_plan *plan, size_t tensors)
{
    static const char what[] = "an offload plan";
    for (int lifetime = 0; lifetime < OFFLOAD_LIFETIMES; lifetime++) {
        plan->slot[lifetime] = memory_zeroed(2 * tensors, sizeof(int), what);
        plan->peak[lifetime] = memory_zeroed((size_t)plan->chunks, sizeof(int), what);
        for (size_t i = 0; i < 2 * tensors; i++)
            plan->slot[lifetime][i] = -1;
    }
    plan->reload_at = memory_zeroed(tensors, sizeof(int), what);
}

static void find_windows(const struct schedule *s, int rank, struct offload_plan *plan,
                         struct offload_window *window)
{
    size_t tensors = (size_t)s->chunks * (size_t)s->m;
    window->reload_at = plan->reload_at;
    for (size_t i = 0; i < tensors; i++)
        window->begins[i] = window->reload_at[i] = -1;
    for (int i = 0; i < s->ranks[rank].count; i++)
        add_action(s, rank, i, window);
    for (size_t i = 0; i < tensors; i++) {
        if (window->reload_at[i] <= window->begins[i])
            window->reload_at[i] = -1;
        plan->any = plan->any || window->reload_at[i] >= 0;
    }
}

enum status offload_plan_create(const struct schedule *schedule, int rank, struct offload_plan **out)
{
    CHECK(schedule->has_transfers && rank >= 0 && rank < schedule->p);
    size_t tensors = (size_t)schedule->chunks * (size_t)schedule->m;
    struct offload_plan *plan = memory_zeroed(1, sizeof *plan, "an offload plan");
    *plan = (struct offload_plan){.m = schedule->m, .chunks = schedule->chunks};
    allocate(plan, tensors);
    struct offload_window window = {.begins = memory_zeroed(tensors, sizeof(int), "an offload plan")};
    AUTO_FREE struct slot_lifetime *buffer = memory_zeroed(4 * tensors, sizeof *buffer, "an offload plan");
    AUTO_FREE bool *used = memory_zeroed(2 * tensors, sizeof *used, "an offload plan");
    struct slot_lifetimes whole;
    slot_lifetimes_create(schedule, rank, &whole);
    find_windows(schedule, rank, plan, &window);
    assign_slots(plan, &whole, &window, buffer, used);
    enum status status = offload_plan_check(plan, schedule, rank);
    if (status == OK)
        *out = plan;
    else
        offload_plan_destroy(plan);
    slot_lifetimes_destroy(&whole);
    free(window.begins);
    return status;
}

void offload_plan_destroy(struct offload_plan *plan)
{
    if (plan == NULL)
        return;
    for (int lifetime = 0; lifetime < OFFLOAD_LIFETIMES; lifetime++) {
        free(plan->slot[lifetime]);
        free(plan->peak[lifetime]);
    }
    free(plan->reload_at);
    free(plan);
}
