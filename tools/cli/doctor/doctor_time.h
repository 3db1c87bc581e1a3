// SPDX-License-Identifier: Apache-2.0
/* Timing of ops and messages: the best of several tries, each long enough for the clock's resolution. Other
 * load can only make a try slower. */
#pragma once

#include "kernels/ops.h"
#include "parallel/group.h"

/* Enqueues some work on the stream. */
struct task {
    enum status (*enqueue)(struct stream *stream, const void *context);
    const void *context;
};

/* Returns the seconds of one run of the task; a try takes about try_s. */
MUST_USE enum status doctor_time(struct stream *stream, const struct task *task, double try_s, int tries,
                                 double *out);

/* Returns the median of values, at least one, and sorts them. */
MUST_USE double doctor_median(double *values, size_t count);

/* Replaces values by the nearest sequence (least squares) in which none is less than the one before it:
 * neighbors that fall are replaced by their mean. */
void doctor_make_rising(double *values, int count);

/* Fills a rows x columns matrix with normal random numbers: a GPU multiplies zeros or constants faster than
 * real data. */
MUST_USE enum status doctor_fill(struct stream *stream, struct buffer *buffer, enum dtype dtype, int64_t rows,
                                 int64_t columns);

/* Tasks of one op; context: struct gemm, struct copy. */
MUST_USE enum status doctor_enqueue_gemm(struct stream *stream, const void *context);
MUST_USE enum status doctor_enqueue_copy(struct stream *stream, const void *context);

/* Messages of a group of all ranks; context: struct message_task. */
struct message_task {
    struct group *all;
    struct tensor data; // fp32, in one dimension; its length is a multiple of 2 and of the number of ranks
};
/* Sends the first half of data to the next rank, and receives the second half from the previous one. */
MUST_USE enum status doctor_enqueue_exchange(struct stream *stream, const void *context);
MUST_USE enum status doctor_enqueue_all_reduce(struct stream *stream, const void *context);
MUST_USE enum status doctor_enqueue_all_gather(struct stream *stream, const void *context);
MUST_USE enum status doctor_enqueue_reduce_scatter(struct stream *stream, const void *context);

/* Returns the seconds of one message; all ranks run the same number, so that every receive has its send. */
MUST_USE enum status doctor_time_messages(struct stream *stream, const struct message_task *task,
                                          enum status (*enqueue)(struct stream *, const void *), int times,
                                          int tries, double *best);
