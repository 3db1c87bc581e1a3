// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/time_marks.h"

#include "kernels/cuda/runtime/cuda.h"

#include <math.h>
#include <stdlib.h>

struct cuda_marks {
    int count;
    struct cuda_mark {
        cudaEvent_t event;
        bool is_set;
    } mark[];
};

static void marks_close(void *state)
{
    struct cuda_marks *marks = state;
    for (int i = 0; i < marks->count; i++)
        if (marks->mark[i].event != NULL)
            cudaEventDestroy(marks->mark[i].event);
    free(marks);
}

static enum status marks_open(struct device *device, int count, void **out)
{
    (void)device;
    struct cuda_marks *marks = calloc(1, sizeof *marks + (size_t)count * sizeof *marks->mark);
    if (marks == NULL)
        return fail(NO_MEMORY, "no memory for %d marks of time", count);
    enum status status = OK;
    for (; status == OK && marks->count < count; marks->count++)
        status =
            cuda_check(NULL, cudaEventCreateWithFlags(&marks->mark[marks->count].event, cudaEventDefault),
                       "cudaEventCreateWithFlags");
    if (status == OK)
        *out = marks;
    else
        marks_close(marks);
    return status;
}

static enum status marks_set(void *state, int index, struct stream *stream)
{
    struct cuda_marks *marks = state;
    const struct cuda_queue *queue = stream->state; // its first member
    marks->mark[index].is_set = true;
    return cuda_check(queue, cudaEventRecord(marks->mark[index].event, queue->stream), "cudaEventRecord");
}

static double marks_between(const void *state, int from, int to)
{
    const struct cuda_marks *marks = state;
    float ms = 0.0F;
    if (!marks->mark[from].is_set || !marks->mark[to].is_set)
        return NAN;
    if (cudaEventElapsedTime(&ms, marks->mark[from].event, marks->mark[to].event) == cudaSuccess)
        return 1e-3 * (double)ms;
    (void)cudaGetLastError(); // clear it: the check after the next launch would report it
    return NAN;
}

const struct time_mark_ops cuda_time_marks = {
    .open = marks_open,
    .close = marks_close,
    .set = marks_set,
    .between = marks_between,
};
