// SPDX-License-Identifier: Apache-2.0
#include "trainer/trace/mark_clock.h"

#include "base/clock.h"

#include <math.h>

static double after_first(const struct mark_clock *clock, const struct time_marks *marks, int index)
{
    return time_mark_between((struct time_mark){clock->marks, 0}, (struct time_mark){marks, index});
}

/* The host reads its clock before and after setting a mark, again if it was interrupted between. */
static enum status compare(struct mark_clock *clock, struct stream *stream)
{
    double least_s = INFINITY;
    TRY(stream_sync(stream));
    for (int i = 0; i < MARK_CLOCK_TRIES; i++) {
        const double before_s = clock_s();
        TRY(time_marks_set(clock->marks, i, stream));
        TRY(stream_sync(stream));
        const double after_s = clock_s();
        if (after_s - before_s < least_s) {
            least_s = after_s - before_s;
            clock->first_s = 0.5 * (before_s + after_s) - after_first(clock, clock->marks, i);
        }
    }
    return OK;
}

enum status mark_clock_create(struct stream *stream, struct mark_clock *out)
{
    struct mark_clock clock = {.marks = NULL};
    TRY(time_marks_create(stream_device(stream), MARK_CLOCK_TRIES, &clock.marks));
    enum status status = compare(&clock, stream);
    if (status == OK)
        *out = clock;
    else
        mark_clock_destroy(&clock);
    return status;
}

void mark_clock_destroy(struct mark_clock *clock)
{
    time_marks_destroy(clock->marks);
    *clock = (struct mark_clock){0};
}

double mark_clock_s(const struct mark_clock *clock, const struct time_marks *marks, int index)
{
    return clock->first_s + after_first(clock, marks, index);
}
