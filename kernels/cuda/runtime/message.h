// SPDX-License-Identifier: Apache-2.0
/* What a transport between GPUs needs of the cuda device: to put messages on its streams, which the GPU then
 * sends by itself, and to add up what came.
 *
 *     TRY(cuda_message_begin(stream, &queue));
 *     ncclSend(..., queue->stream);
 *     return cuda_message_end(queue, "exchange pp 0>1", guard);
 *
 * The trap: a message whose partner is gone never ends, and the GPU behind it stands still. So a device keeps
 * in mind which messages it has not passed yet, and a host that waits for it asks their guard, again and
 * again, whether anything is wrong, and says which message it waits for. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

/* Embedded by the transport. check never blocks; what it returns is what the waiting host gets. */
struct cuda_guard {
    enum status (*check)(struct cuda_guard *guard);
};

/* Of a stream of a cuda device. The message may be put on (*out)->stream from now on. */
MUST_USE enum status cuda_message_begin(struct stream *stream, struct cuda_queue **out);
/* `name` is copied. The guard must stay until the device is closed or every message waited for. */
MUST_USE enum status cuda_message_end(struct cuda_queue *queue, const char *name, struct cuda_guard *guard);

/* Memory for the messages of this stream, counted as communication: at least `bytes`, unset, the same as long
 * as that is enough; whoever put it to use last is on the same stream. */
MUST_USE enum status cuda_message_scratch(struct cuda_queue *queue, size_t bytes, void **out);

/* out[i] = the sum or the maximum (which keeps a NaN), in rank order, of parts[r * stride + i]; the part of
 * `rank` lies at `mine`, which may be `out`. Floats: the order of integers does not matter. */
struct cuda_combine {
    void *out;
    const void *parts, *mine;
    int64_t stride, count;
    int rank, ranks;
    enum dtype dtype;
    bool maximum;
};
MUST_USE enum status cuda_combine(struct cuda_queue *queue, const struct cuda_combine *args);

/* A GPU as a program finds it. */
struct cuda_gpu {
    char name[64];   // "NVIDIA H200"
    char bus_id[16]; // "0000:1b:00.0": another for each on a machine
    int major, minor;
};
/* How many this process sees; NOT_SUPPORTED as device_open() would say it where there is none. */
MUST_USE enum status cuda_gpu_count(int *out);
/* From here on the calling thread's. NOT_SUPPORTED for one that is not there or too old. */
MUST_USE enum status cuda_gpu_choose(int index, struct cuda_gpu *out);
