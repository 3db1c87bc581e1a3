// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/doctor/doctor_time.h"

#include "base/clock.h"
#include "base/philox.h"

#include <stdlib.h>

/* Returns the seconds of `times` runs of the task. */
static enum status time_of(struct stream *stream, const struct task *task, int times, double *out)
{
    TRY(stream_sync(stream));
    double begin = clock_s();
    for (int i = 0; i < times; i++)
        TRY(task->enqueue(stream, task->context));
    TRY(stream_sync(stream));
    *out = clock_s() - begin;
    return OK;
}

enum status doctor_time(struct stream *stream, const struct task *task, double try_s, int tries, double *out)
{
    double best = 1e30, once;
    TRY(time_of(stream, task, 1, &once)); // the first one allocates memory and creates plans
    TRY(time_of(stream, task, 1, &once));
    int times = once < try_s ? (int)(try_s / (once + 1e-7)) + 1 : 1;
    for (int i = 0; i < tries; i++) {
        double all;
        TRY(time_of(stream, task, times, &all));
        best = all / times < best ? all / times : best;
    }
    *out = best;
    return OK;
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double doctor_median(double *values, size_t count)
{
    CHECK(count > 0);
    qsort(values, count, sizeof *values, in_order);
    return values[count / 2];
}

static double mean_of(const double *values, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

/* Pools adjacent violators: values before `at` rise already. */
void doctor_make_rising(double *values, int count)
{
    for (int at = 1; at < count; at++) {
        int begin = at;
        double mean = values[at];
        while (begin > 0 && values[begin - 1] > mean) {
            const double pooled = values[begin - 1];
            while (begin > 0 && values[begin - 1] >= pooled) // all of one pool
                begin--;
            mean = mean_of(values + begin, at - begin + 1);
        }
        for (int i = begin; i <= at; i++)
            values[i] = mean;
    }
}

enum status doctor_fill(struct stream *stream, struct buffer *buffer, enum dtype dtype, int64_t rows,
                        int64_t columns)
{
    return init_normal(stream, (struct init_normal){.out = tensor_2d(buffer->data, dtype, rows, columns),
                                                    .generator = philox_named(1, "doctor"),
                                                    .std = 1.0F,
                                                    .columns = columns});
}

enum status doctor_enqueue_gemm(struct stream *stream, const void *context)
{
    return gemm(stream, *(const struct gemm *)context);
}

enum status doctor_enqueue_copy(struct stream *stream, const void *context)
{
    return copy(stream, *(const struct copy *)context);
}

/* ---- messages ---- */

enum status doctor_enqueue_exchange(struct stream *stream, const void *context)
{
    const struct message_task *t = context;
    int n = t->all->size, rank = t->all->rank;
    int64_t half = tensor_count(t->data) / 2;
    float *data = t->data.data;
    struct message both[] = {
        {.data = tensor_1d(data, F32, half), .peer = (rank + 1) % n, .send = true},
        {.data = tensor_1d(data + half, F32, half), .peer = (rank + n - 1) % n, .send = false},
    };
    return group_exchange(t->all, stream, both, 2);
}

enum status doctor_enqueue_all_reduce(struct stream *stream, const void *context)
{
    const struct message_task *t = context;
    return group_all_reduce(t->all, stream, t->data, REDUCE_SUM);
}

/* The slice of this rank. */
static struct tensor slice_of(const struct message_task *t)
{
    int64_t count = tensor_count(t->data) / t->all->size;
    return tensor_1d((float *)t->data.data + count * t->all->rank, F32, count);
}

enum status doctor_enqueue_all_gather(struct stream *stream, const void *context)
{
    const struct message_task *t = context;
    return group_all_gather(t->all, stream, slice_of(t), t->data);
}

enum status doctor_enqueue_reduce_scatter(struct stream *stream, const void *context)
{
    const struct message_task *t = context;
    return group_reduce_scatter(t->all, stream, t->data, slice_of(t));
}

enum status doctor_time_messages(struct stream *stream, const struct message_task *task,
                                 enum status (*enqueue)(struct stream *, const void *), int times, int tries,
                                 double *best)
{
    *best = 1e30;
    for (int i = 0; i <= tries; i++) {
        double all;
        TRY(group_barrier(task->all, stream));
        TRY(time_of(stream, &(struct task){enqueue, task}, times, &all));
        *best = i > 0 && all / times < *best ? all / times : *best;
    }
    return OK;
}
