// SPDX-License-Identifier: Apache-2.0
/* The event log of a rank: what its steps did, and when. The statistics of a step (busy, waiting, bubble,
 * stragglers) and timelines are queries on it.
 *
 *     actions   0F0    0F1      1B3             begun and ended by the executor
 *     events    step 7 [all_reduce tp]  [wait]  [copy_to_host]  [reduce]  [update]      seen by an observer
 *
 * Actions are timed by the host's clock if ops are complete when their calls return (cpu), else by timing
 * events in the streams of the device (kernels/device.h: marks), like everything else. The host never waits
 * for a mark: the times of a step are known when the next one has been enqueued, or after a synchronization.
 * The log therefore holds two steps.
 *
 * Recorded are messages and waits inside actions if the device waits without its host, and in the steps of
 * profile.timeline all messages, copies between host and device, and parts of the optimizer.
 *
 * Caution: in a replayed CUDA graph an op cannot be marked. These have no messages and no copies. */
#pragma once

#include "kernels/observe.h"

/* In the order of the rows of a timeline. */
enum event_kind {
    EVENT_STEP,
    EVENT_OPTIMIZER,
    EVENT_REDUCTION,
    EVENT_GATHER,
    EVENT_TRANSFER,
    EVENT_COPY,
    EVENT_WAIT, // of the compute stream for an event of another one; not in timelines
    EVENT_KINDS
};
const char *event_kind_name(enum event_kind kind);

/* An action, in seconds after the begin of the first one. */
struct timed_action {
    double begin_s, end_s;
    double waited_s;  // of these: for messages and other streams
    double compute_s; // without waits; on cpu, of processor time
};

struct event_bank;
struct open_event {
    struct event_bank *bank;
    int index; // -1: none
};

/* {0} records nothing. */
struct event_log {
    struct device *device;
    struct stream *compute;
    bool on_host;                    // actions are timed by the host's clock
    int actions;                     // of this rank's list
    struct time_marks *action_marks; // [2 banks][actions][begin, end]; NULL on the host's clock
    struct event_bank *bank;         // [2] of step n: n % 2
    struct timed_action *timed;      // [actions] of the last query
    int64_t first, last;             // steps of which all events are recorded
    bool in_step;
    int position;                     // of the action in progress; -1: none
    struct open_event event, section; // in progress: message, copy or wait; part of the optimizer
    enum observed what;               // of `event`
    struct time_marks *clock;         // compares the clocks of device and host
    double clock_s;                   // host time of its first mark
    enum status status;               // of the first mark that could not be set
};

/* Attaches to the device and to the comms that the world creates from now on. actions: length of this rank's
 * list; all events of steps first .. last are recorded. */
struct world;
struct event_log_config {
    struct device *device;
    struct world *world;
    int actions;
    int64_t first, last;
};
MUST_USE enum status event_log_attach(const struct event_log_config *config, struct event_log *log);
/* Before the device is closed, when its streams have been synchronized; from then on nothing is recorded. */
void event_log_close(struct event_log *log);

/* ---- recording, in the step of rank_context() ---- */

/* Around everything that a step enqueues; `compute` is the stream of its actions. */
void event_log_begin_step(struct event_log *log, struct stream *compute);
void event_log_end_step(struct event_log *log, int64_t step);

/* Around the ops of the action at this position of the list. */
void event_log_begin(struct event_log *log, int position, struct stream *compute);
void event_log_end(struct event_log *log);
/* The actions of `step` so far will be repeated. */
void event_log_drop(struct event_log *log, int64_t step);

/* ---- queries ---- */

/* The actions of a step whose marks are complete: [actions], until the next query; one without ops has the
 * end of the one before. *lost_s: time before them, of dropped ones. NULL: unknown. */
const struct timed_action *event_log_actions(struct event_log *log, int64_t step, double *lost_s);

/* Compares the clocks of device and host, for the queries below; waits for the compute stream. */
MUST_USE enum status event_log_compare_clocks(struct event_log *log);
/* When the first action of event_log_actions() began, on the host's clock. */
double event_log_begin_s(const struct event_log *log, int64_t step);

enum { SPAN_CHARS = 48, SPAN_STREAM_CHARS = 24 };

/* An event, as it travels to rank 0. Spans of one stream and kind do not overlap. */
struct span {
    double begin_s, end_s; // on the host's clock
    int64_t bytes;         // 0: not a message, not a copy
    int32_t kind;          // enum event_kind
    int32_t stream;        // number of the stream
    char name[SPAN_CHARS]; // "reduce_scatter data", "copy_to_host", "update"
    char stream_name[SPAN_STREAM_CHARS];
};
/* Waits for the streams of the step's events; then appends them to *out, which the caller frees. */
MUST_USE enum status event_log_spans(const struct event_log *log, int64_t step, struct span **out,
                                     int *count);
