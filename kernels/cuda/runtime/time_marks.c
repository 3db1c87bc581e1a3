// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/time_marks.h"

#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/device_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_mark {
    cudaEvent_t event;
    uint32_t setting; // number of the last one, from 1; 0: not set
    char action[PROGRESS_ACTION_CHARS];
};

struct cuda_marks {
    struct device *device;
    int count;
    uint32_t settings, passed; // settings so far; those that are known to be passed
    int *order;                // [count] the mark of setting n at n % count
    struct cuda_mark mark[];
};

static void marks_close(void *state)
{
    struct cuda_marks *marks = state;
    cuda_follow(marks->device, marks, NULL);
    for (int i = 0; i < marks->count; i++)
        if (marks->mark[i].event != NULL)
            cudaEventDestroy(marks->mark[i].event);
    free(marks->order);
    free(marks);
}

static enum status create_events(struct cuda_marks *marks)
{
    for (int i = 0; i < marks->count; i++)
        TRY(cuda_check(NULL, cudaEventCreateWithFlags(&marks->mark[i].event, cudaEventDefault),
                       "cudaEventCreateWithFlags"));
    return OK;
}

static enum status marks_open(struct device *device, int count, void **out)
{
    struct cuda_marks *marks = calloc(1, sizeof *marks + (size_t)count * sizeof *marks->mark);
    if (marks == NULL)
        return fail(NO_MEMORY, "no memory for %d marks of time", count);
    *marks = (struct cuda_marks){.device = device, .count = count};
    marks->order = calloc((size_t)count, sizeof *marks->order);
    enum status status = marks->order != NULL ? create_events(marks)
                                              : fail(NO_MEMORY, "no memory for %d marks of time", count);
    if (status != OK) {
        marks_close(marks);
        return status;
    }
    cuda_follow(device, NULL, marks);
    *out = marks;
    return OK;
}

static enum status marks_set(void *state, int index, struct stream *stream)
{
    struct cuda_marks *marks = state;
    struct cuda_mark *mark = &marks->mark[index];
    const struct cuda_queue *queue = stream->state; // its first member
    mark->setting = ++marks->settings;
    marks->order[mark->setting % (uint32_t)marks->count] = index;
    snprintf(mark->action, sizeof mark->action, "%.*s", (int)sizeof mark->action - 1, rank_context()->action);
    return cuda_check(queue, cudaEventRecord(mark->event, queue->stream), "cudaEventRecord");
}

static double marks_between(const void *state, int from, int to)
{
    const struct cuda_marks *marks = state;
    float ms = 0.0F;
    if (marks->mark[from].setting == 0 || marks->mark[to].setting == 0)
        return NAN;
    if (cudaEventElapsedTime(&ms, marks->mark[from].event, marks->mark[to].event) == cudaSuccess)
        return 1e-3 * (double)ms;
    (void)cudaGetLastError(); // clear it: the check after the next launch would report it
    return NAN;
}

static const struct cuda_mark *mark_of(const struct cuda_marks *marks, uint32_t setting)
{
    const struct cuda_mark *mark = &marks->mark[marks->order[setting % (uint32_t)marks->count]];
    return mark->setting == setting ? mark : NULL; // NULL: set again since, or none
}

void cuda_marks_progress(struct cuda_marks *marks, struct progress_gpu *out)
{
    memset(out, 0, sizeof *out);
    if (marks->settings - marks->passed > (uint32_t)marks->count)
        marks->passed = marks->settings - (uint32_t)marks->count;
    while (marks->passed != marks->settings) {
        const struct cuda_mark *next = mark_of(marks, marks->passed + 1);
        if (next != NULL && cudaEventQuery(next->event) != cudaSuccess)
            break;
        marks->passed++;
    }
    const struct cuda_mark *last = marks->passed > 0 ? mark_of(marks, marks->passed) : NULL;
    const struct cuda_mark *next =
        marks->passed != marks->settings ? mark_of(marks, marks->passed + 1) : NULL;
    const bool inside = last != NULL && next != NULL && strcmp(last->action, next->action) == 0;
    const struct cuda_mark *completed = !inside             ? last
                                        : marks->passed > 1 ? mark_of(marks, marks->passed - 1)
                                                            : NULL;
    if (inside)
        memcpy(out->current, last->action, sizeof out->current);
    if (completed != NULL)
        memcpy(out->completed, completed->action, sizeof out->completed);
}

const struct time_mark_ops cuda_time_marks = {
    .open = marks_open,
    .close = marks_close,
    .set = marks_set,
    .between = marks_between,
};
