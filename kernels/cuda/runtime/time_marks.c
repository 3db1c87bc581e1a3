// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/time_marks.h"

#include "base/memory.h"
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
    struct cuda_marks *marks =
        memory_zeroed(1, sizeof *marks + (size_t)count * sizeof *marks->mark, "marks of time");
    *marks = (struct cuda_marks){.device = device, .count = count};
    marks->order = memory_zeroed((size_t)count, sizeof *marks->order, "marks of time");
    const enum status status = create_events(marks);
    if (status != OK) {
        marks_close(marks);
        return status;
    }
    cuda_follow(device, NULL, marks);
    *out = marks;
    return OK;
}

static enum status record(struct cuda_marks *marks, int index, const struct cuda_queue *queue)
{
    struct cuda_mark *mark = &marks->mark[index];
    mark->setting = ++marks->settings;
    marks->order[mark->setting % (uint32_t)marks->count] = index;
    return cuda_check(queue, cudaEventRecord(mark->event, queue->stream), "cudaEventRecord");
}

/* A mark after messages that the host carries out: takes its turn like one. */
struct mark_work {
    struct work work; // first
    struct cuda_marks *marks;
    int index;
    const struct cuda_queue *queue;
};

static enum status start_mark(struct work *work)
{
    const struct mark_work *mark = (const struct mark_work *)work;
    return record(mark->marks, mark->index, mark->queue);
}

static enum status poll_mark(struct work *work, bool *done)
{
    const struct mark_work *mark = (const struct mark_work *)work;
    const cudaError_t error = cudaEventQuery(mark->marks->mark[mark->index].event);
    if (error == cudaErrorNotReady)
        return OK;
    TRY(cuda_check(mark->queue, error, "cudaEventQuery"));
    free(work);
    *done = true;
    return OK;
}

static void never_sleep(struct work *work)
{
    (void)work;
}

static enum status set_later(struct cuda_marks *marks, int index, struct stream *stream)
{
    struct mark_work *mark = memory_zeroed(1, sizeof *mark, "a mark of time");
    *mark = (struct mark_work){
        .work = {.start = start_mark, .poll = poll_mark, .sleep = never_sleep, .name = "mark of time"},
        .marks = marks,
        .index = index,
        .queue = stream->state, // its first member
    };
    return device_cuda.submit_work(stream, &mark->work);
}

static enum status marks_set(void *state, int index, struct stream *stream)
{
    struct cuda_marks *marks = state;
    struct cuda_mark *mark = &marks->mark[index];
    mark->setting = 0;
    snprintf(mark->action, sizeof mark->action, "%.*s", (int)sizeof mark->action - 1, rank_context()->action);
    return cuda_has_works(stream) ? set_later(marks, index, stream) : record(marks, index, stream->state);
}

static double marks_between(const void *from_state, int from, const void *to_state, int to)
{
    const struct cuda_mark *begin = &((const struct cuda_marks *)from_state)->mark[from];
    const struct cuda_mark *end = &((const struct cuda_marks *)to_state)->mark[to];
    float ms = 0.0F;
    if (begin->setting == 0 || end->setting == 0)
        return NAN;
    if (cudaEventElapsedTime(&ms, begin->event, end->event) == cudaSuccess)
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
