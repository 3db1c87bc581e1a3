// SPDX-License-Identifier: Apache-2.0
/* Times of what a step does besides the ops of its actions: messages, copies between host and device, and
 * the parts of the optimizer. An observer of the device and the world sets a mark of time in the stream
 * before and after each. The host does not wait for them: they are read after the step.
 *
 *     compute   [step ...  0F0   [all_reduce tp]   1B3   [reduce ...] [update ...] ]
 *     buckets                         [reduce_scatter data]
 *     offload        [copy_to_host]
 *
 * A step is recorded from span_recorder_begin_step() to span_recorder_end_step(); also the look-ahead of the
 * next one, if that is inside. Nothing is recorded between steps.
 *
 * Caution: in a replayed CUDA graph an op cannot be marked. These have no messages and no copies. */
#pragma once

#include "parallel/comm.h"
#include "trainer/trace/mark_pairs.h"

/* In the order of rows. */
enum span_kind {
    SPAN_STEP,
    SPAN_OPTIMIZER,
    SPAN_REDUCTION,
    SPAN_GATHER,
    SPAN_TRANSFER,
    SPAN_COPY,
    SPAN_KINDS
};
const char *span_kind_name(enum span_kind kind);

enum { SPAN_CHARS = 48, SPAN_STREAM_CHARS = 24 };

/* A span, as it travels to rank 0. Spans of one stream and kind do not overlap. */
struct span {
    double begin_s, end_s; // on the host's clock
    int64_t bytes;         // 0: not a message, not a copy
    int32_t kind;          // enum span_kind
    int32_t stream;        // number of the stream
    char name[SPAN_CHARS]; // "reduce_scatter data", "copy_to_host", "update"
    char stream_name[SPAN_STREAM_CHARS];
};

/* Spans of one step. */
struct recorded_span;
struct span_bank {
    int64_t step;
    int capacity;
    struct recorded_span *spans; // [capacity]
    struct mark_pairs marks;     // of each span
};

enum { SPAN_BANKS = 2 }; // a step and the look-ahead of the next one

/* {0} records nothing. */
struct span_recorder {
    struct device *device;
    struct stream *compute;
    int64_t first, last;      // steps that are recorded
    bool active;              // inside a step
    int message, copy, range; // open span of a message, a copy, a part of the optimizer; -1: none
    struct span_bank *bank;   // of these
    struct span_bank banks[SPAN_BANKS];
    enum status status; // of the first mark that could not be set
};

/* Attaches to the device and to the comms that the world creates from now on. */
MUST_USE enum status span_recorder_attach(struct span_recorder *recorder, struct device *device,
                                          struct world *world, int64_t first, int64_t last);
/* Before the device is closed, when its streams have been synchronized; from then on nothing is recorded. */
void span_recorder_close(struct span_recorder *recorder);

/* Around everything that a step enqueues; `compute` is the stream of its actions. */
void span_recorder_begin_step(struct span_recorder *recorder, struct stream *compute);
void span_recorder_end_step(struct span_recorder *recorder, int64_t step);

/* Waits for the streams of the step's spans; then appends the spans to *out, which the caller frees. */
MUST_USE enum status span_recorder_read(struct span_recorder *recorder, int64_t step,
                                        const struct mark_clock *host, struct span **out, int *count);
