// SPDX-License-Identifier: Apache-2.0
#include "trainer/engine/step_clock.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>

struct step_clock {
    struct time_marks *marks; // [2 banks][actions][2]
    int actions;
    int bank;      // of the step that is being enqueued
    int64_t steps; // enqueued so far
};

enum status step_clock_create(struct device *device, int actions, struct step_clock **out)
{
    const struct device_traits *traits = device_traits(device_name(device));
    *out = NULL;
    if (traits->synchronous || !traits->computes)
        return OK;
    struct step_clock *clock = calloc(1, sizeof *clock);
    if (clock == NULL)
        return fail(NO_MEMORY, "no memory for the times of %d actions", actions);
    clock->actions = actions;
    enum status status = time_marks_create(device, 4 * actions, &clock->marks);
    if (status == OK)
        *out = clock;
    else
        free(clock);
    return status;
}

void step_clock_destroy(struct step_clock *clock)
{
    if (clock == NULL)
        return;
    time_marks_destroy(clock->marks);
    free(clock);
}

static int begin_of(const struct step_clock *clock, int bank, int position)
{
    CHECK(position >= 0 && position < clock->actions);
    return 2 * (bank * clock->actions + position);
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

struct step_times step_clock_previous(const struct step_clock *clock, const struct action_list *list)
{
    struct step_times times = {0};
    int first = -1, last = -1;
    for (int i = 0; i < list->count && clock->steps > 1; i++) {
        if (!action_traits(list->actions[i].kind)->computes)
            continue;
        const int begin = begin_of(clock, clock->bank, i);
        first = first < 0 ? begin : first;
        last = begin + 1;
        times.busy_s += between(clock, begin, last);
    }
    if (first >= 0)
        times.last_end_s = between(clock, first, last);
    return isfinite(times.busy_s) && isfinite(times.last_end_s) ? times : (struct step_times){0};
}

void step_clock_read(const struct step_clock *clock, const struct action_list *list,
                     const struct mark_clock *host, double *times)
{
    double before = 0.0;
    for (int i = 0; i < list->count; i++) {
        const int begin = begin_of(clock, 1 - clock->bank, i);
        const bool computes = action_traits(list->actions[i].kind)->computes;
        times[2 * i] = computes ? mark_clock_s(host, clock->marks, begin) : before;
        times[2 * i + 1] = computes ? mark_clock_s(host, clock->marks, begin + 1) : before;
        before = times[2 * i + 1];
    }
}
