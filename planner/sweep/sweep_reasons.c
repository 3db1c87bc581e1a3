// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep/sweep.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static int find(const struct sweep *sweep, enum sweep_state state, const char *what)
{
    for (int i = 0; i < sweep->reason_count; i++)
        if (sweep->reasons[i].state == state && strcmp(sweep->reasons[i].what, what) == 0)
            return i;
    return -1;
}

bool sweep_has_reason(const struct sweep *sweep, enum sweep_state state, const char *what)
{
    return find(sweep, state, what) >= 0;
}

int sweep_add_reason(struct sweep *sweep, enum sweep_state state, const char *what, const char *example,
                     int64_t number)
{
    int at = find(sweep, state, what);
    if (at < 0) {
        at = sweep->reason_count;
        sweep->reasons = memory_resized(sweep->reasons, (size_t)(at + 1), sizeof *sweep->reasons,
                                        "the reasons of a sweep");
        sweep->reasons[at] = (struct sweep_reason){
            .state = state, .what = text_copy(what), .example = text_copy(example), .first = number};
        sweep->reason_count++;
    }
    sweep->reasons[at].count++;
    return at;
}

int sweep_add_failed(struct sweep *sweep, int64_t number)
{
    return sweep_add_reason(sweep, SWEEP_FAILED, "error of the plan", fail_text(), number);
}

/* Most frequent first; ties by first layout. */
static int compare(const void *a, const void *b)
{
    const struct sweep_reason *one = a, *other = b;
    if (one->count != other->count)
        return one->count < other->count ? 1 : -1;
    return (one->first > other->first) - (one->first < other->first);
}

void sweep_sort_reasons(struct sweep *sweep)
{
    const size_t count = (size_t)sweep->reason_count;
    int *renumbered = memory_zeroed(count + 1, sizeof *renumbered, "the reasons of a sweep");
    struct sweep_reason *before = memory_zeroed(count + 1, sizeof *before, "the reasons of a sweep");
    if (count > 0) {
        memcpy(before, sweep->reasons, count * sizeof *before);
        qsort(sweep->reasons, count, sizeof *sweep->reasons, compare);
    }
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count; k++)
            if (sweep->reasons[k].what == before[i].what)
                renumbered[i] = (int)k;
    for (size_t i = 0; i < sweep->count; i++)
        if (sweep->layouts[i].reason >= 0)
            sweep->layouts[i].reason = renumbered[sweep->layouts[i].reason];
    free(before);
    free(renumbered);
}

void sweep_free_reasons(struct sweep *sweep)
{
    for (int i = 0; i < sweep->reason_count; i++) {
        free(sweep->reasons[i].what);
        free(sweep->reasons[i].example);
    }
    free(sweep->reasons);
}
