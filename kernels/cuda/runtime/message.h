// SPDX-License-Identifier: Apache-2.0
/* The cuda device's interface for GPU transports: enqueue messages on its streams, which the GPU then sends
 * on its own, and reduce received data.
 *
 *     TRY(cuda_message_begin(stream, &queue));
 *     ncclSend(..., queue->stream);
 *     return cuda_message_end(queue, "exchange pp 0>1", guard);
 *
 * Caution: a message whose peer has failed never completes and stalls the stream. The device therefore
 * tracks incomplete messages; a waiting host polls their guards for errors, and hang reports name the message
 * that it waits for. */
#pragma once

#include "kernels/cuda/runtime/cuda.h"

/* Embedded by the transport. check never blocks; the waiting host returns its status. */
struct cuda_guard {
    enum status (*check)(struct cuda_guard *guard);
};

/* For a stream of a cuda device. Afterwards, the message may be enqueued on (*out)->stream. */
MUST_USE enum status cuda_message_begin(struct stream *stream, struct cuda_queue **out);
/* `name` is copied. The guard must remain valid until the device is closed or every message is complete. */
MUST_USE enum status cuda_message_end(struct cuda_queue *queue, const char *name, struct cuda_guard *guard);

/* A buffer for the messages of this stream, counted as communication memory: at least `bytes`, uninitialized,
 * the same until a larger one is needed; its previous use is earlier on the same stream. */
MUST_USE enum status cuda_message_scratch(struct cuda_queue *queue, size_t bytes, void **out);

/* out[i] = the sum or the maximum (NaN propagates), in rank order, of parts[r * stride + i]; the part of
 * `rank` is `mine`, which may alias `out`. Floats only: integer order is irrelevant. */
struct cuda_combine {
    void *out;
    const void *parts, *mine;
    int64_t stride, count;
    int rank, ranks;
    enum dtype dtype;
    bool maximum;
};
MUST_USE enum status cuda_combine(struct cuda_queue *queue, const struct cuda_combine *args);

/* The properties of a GPU. */
struct cuda_gpu {
    char name[64];   // "NVIDIA H200"
    char bus_id[16]; // "0000:1b:00.0": unique on a machine
    int major, minor;
};
/* Counts the GPUs visible to this process; NOT_SUPPORTED as from device_open() if there is none. */
MUST_USE enum status cuda_gpu_count(int *out);
/* Makes a GPU current for the calling thread. NOT_SUPPORTED if it is absent or too old. */
MUST_USE enum status cuda_gpu_choose(int index, struct cuda_gpu *out);
