// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/step_clock.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct step_clock {
    struct time_marks *marks; // [2 banks][actions][2]
    const struct schedule *schedule;
    const struct action_list *list;         // of this rank
    double *stalled_s;                      // [actions], scratch
    double (*fastest_s)[ACTION_KIND_COUNT]; // [chunks], scratch
    int bank;                               // of the step that is being enqueued
    int64_t steps;                          // enqueued so far
};

static enum status create(struct device *device, struct step_clock *clock)
{
    const size_t actions = (size_t)clock->list->count, chunks = (size_t)clock->schedule->chunks;
    clock->stalled_s = calloc(actions + 1, sizeof *clock->stalled_s);
    clock->fastest_s = calloc(chunks, sizeof *clock->fastest_s);
    if (clock->stalled_s == NULL || clock->fastest_s == NULL)
        return fail(NO_MEMORY, "no memory for the times of %zu actions", actions);
    return time_marks_create(device, 4 * clock->list->count, &clock->marks);
}

enum status step_clock_create(struct device *device, const struct schedule *schedule, int pp_rank,
                              struct step_clock **out)
{
    const struct device_traits *traits = device_traits(device_name(device));
    *out = NULL;
    if (traits->synchronous || !traits->computes)
        return OK;
    struct step_clock *clock = calloc(1, sizeof *clock);
    if (clock == NULL)
        return fail(NO_MEMORY, "no memory for the times of a step");
    clock->schedule = schedule;
    clock->list = &schedule->ranks[pp_rank];
    enum status status = create(device, clock);
    if (status == OK)
        *out = clock;
    else
        step_clock_destroy(clock);
    return status;
}

void step_clock_destroy(struct step_clock *clock)
{
    if (clock == NULL)
        return;
    time_marks_destroy(clock->marks);
    free(clock->stalled_s);
    free(clock->fastest_s);
    free(clock);
}

static int begin_of(const struct step_clock *clock, int bank, int position)
{
    CHECK(position >= 0 && position < clock->list->count);
    return 2 * (bank * clock->list->count + position);
}

enum status step_clock_begin(struct step_clock *clock, int position, struct stream *stream)
{
    return time_marks_set(clock->marks, begin_of(clock, clock->bank, position), stream);
}

enum status step_clock_end(struct step_clock *clock, int position, struct stream *stream)
{
    return time_marks_set(clock->marks, begin_of(clock, clock->bank, position) + 1, stream);
}

void step_clock_end_step(struct step_clock *clock)
{
    clock->bank = 1 - clock->bank;
    clock->steps++;
}

static double between(const struct step_clock *clock, int from, int to)
{
    return time_mark_between((struct time_mark){clock->marks, from}, (struct time_mark){clock->marks, to});
}

/* Of the actions of a stage and kind, the fastest one counts. */
static void keep_fastest(const struct step_clock *clock, struct action action, double seconds)
{
    const int chunk = schedule_chunk(clock->schedule, action.stage, action.microbatch);
    double *fastest_s = &clock->fastest_s[chunk][action.kind];
    if (!(*fastest_s > 0.0) || seconds < *fastest_s)
        *fastest_s = seconds;
}

static double sum_of_fastest(const struct step_clock *clock)
{
    double sum = 0.0;
    for (int chunk = 0; chunk < clock->schedule->chunks; chunk++)
        for (int kind = 0; kind < ACTION_KIND_COUNT; kind++)
            sum += clock->fastest_s[chunk][kind];
    return sum;
}

struct step_times step_clock_previous(const struct step_clock *clock, const struct stall_recorder *stalls)
{
    struct step_times times = {0};
    int first = -1, last = -1;
    if (clock->steps < 2)
        return times;
    memset(clock->stalled_s, 0, (size_t)clock->list->count * sizeof *clock->stalled_s);
    memset(clock->fastest_s, 0, (size_t)clock->schedule->chunks * sizeof *clock->fastest_s);
    stall_recorder_previous(stalls, clock->stalled_s);
    for (int i = 0; i < clock->list->count; i++) {
        if (!action_traits(clock->list->actions[i].kind)->computes)
            continue;
        const int begin = begin_of(clock, clock->bank, i);
        const double busy_s = between(clock, begin, begin + 1), stalled_s = clock->stalled_s[i];
        first = first < 0 ? begin : first;
        last = begin + 1;
        times.busy_s += busy_s;
        times.waited_s += stalled_s;
        keep_fastest(clock, clock->list->actions[i], busy_s - stalled_s);
    }
    if (first >= 0)
        times.last_end_s = between(clock, first, last);
    if (!isfinite(times.busy_s) || !isfinite(times.last_end_s) || !isfinite(times.waited_s))
        return (struct step_times){0};
    times.compute_ns = (int64_t)(1e9 * sum_of_fastest(clock));
    return times;
}

void step_clock_read(const struct step_clock *clock, const struct mark_clock *host, double *times)
{
    const struct action_list *list = clock->list;
    double before = 0.0;
    for (int i = 0; i < list->count; i++) {
        const int begin = begin_of(clock, 1 - clock->bank, i);
        const bool computes = action_traits(list->actions[i].kind)->computes;
        times[2 * i] = computes ? mark_clock_s(host, clock->marks, begin) : before;
        times[2 * i + 1] = computes ? mark_clock_s(host, clock->marks, begin + 1) : before;
        before = times[2 * i + 1];
    }
}
