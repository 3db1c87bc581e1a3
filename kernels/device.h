// SPDX-License-Identifier: Apache-2.0
/* A device is one const ops table (struct device_ops): cpu, cuda, strict, dry. Compute code names none of
 * them: it allocates buffers, submits ops (kernels/ops.h) to streams, and orders streams with events.
 *
 *     compute:  F3 ──record e──> F4 ...
 *     edge:            wait e ──> send            the host never blocks, except in *_sync
 *
 * On cpu a stream is synchronous: an op is complete when the call returns, and only messages (struct work)
 * can still be in flight. strict defers everything for as long as permitted and fills fresh memory with NaN,
 * so a missing wait reads NaN. A correct program cannot tell them apart.
 *
 * Caution: a buffer submitted to a stream must not be accessed by another stream, or freed, before an event
 * has ordered it. */
#pragma once

#include "base/progress.h"
#include "kernels/device_traits.h"
#include "kernels/kernel_options.h"
#include "kernels/tensor.h"

struct device;
struct stream;
struct op;
struct text;

/* The purpose of an allocation, for memory reports. */
enum part {
    PART_WEIGHTS,
    PART_MASTERS, // fp32 master weights, if the working weights are narrower
    PART_GRADIENTS,
    PART_MOMENTS,       // Adam's; if they are offloaded to the host, the window through which they are staged
    PART_ACTIVATIONS,   // of microbatches in flight, each in its slots (trainer/engine/activations/stash.h)
    PART_BUCKETS,       // full weights and gradients of a layer, if sharded over data-parallel ranks
    PART_COMMUNICATION, // buffers of the transports, and packed messages
    PART_WORKSPACE,     // of layers and kernels, within one action
    PART_DATA,          // tokens, labels, losses, scalars of a step
    PART_SNAPSHOT,      // copy of the state for checkpoint.async_save: host memory. Not in the total
    PART_HOST,          // offloaded: host memory; on a CPU, a file. Not in the total
    PART_COUNT
};
const char *part_name(enum part part);
/* Host memory, which is not in the total of a device. */
bool part_is_on_host(enum part part);

struct device_options {
    const char *name;      // "cpu", "strict", "dry", "cuda"
    int threads;           // compute threads of this rank, including the caller; >= 1
    int index;             // index among identical devices; 0 on a CPU
    bool nondeterministic; // nondeterministic: reduction order may vary between runs, kernels may be chosen
                           // by timing
    const char *simulated_device; // dry only: the device whose memory it accounts for; NULL: the CPU
    size_t reserve_bytes;         // pooled memory: size of the first segment, allocated at once; 0: on demand
    struct kernel_options kernels;
    // Upper limit on the grid of kernels whose blocks loop over tiles; 0: one block per multiprocessor. For
    // tests, so that few tiles need many iterations. Results do not depend on it.
    int max_blocks;
};

/* Opens the device of one rank. NOT_SUPPORTED lists the devices of this build. A device, its streams and its
 * buffers belong to one thread at a time: the rank's. */
MUST_USE enum status device_open(const struct device_options *options, struct device **out);
void device_close(struct device *device); // accepts NULL; all buffers and streams must be gone

/* OK if `path` is valid for kernel_options.matmul_algorithms of the named device, as far as can be checked
 * before it is open; else an error that names the recipe's key. */
MUST_USE enum status device_check_algorithms(const char *name, const char *path);

const char *device_name(const struct device *device);
/* False on dry: its buffers cannot be read. */
bool device_computes(const struct device *device);

/* Appends the kernels that this device has chosen so far by timing or from a file: one line each, followed by
 * lines with a two-space indent that only a record needs. Appends nothing if there was no choice. */
void device_choices(const struct device *device, struct text *out);

/* Current and peak allocations of a device, by part. */
struct memory_use {
    int64_t now_bytes[PART_COUNT];
    int64_t peak_bytes[PART_COUNT]; // each part's own peak
    int64_t peak_total_bytes;       // of the device: without the parts on the host
};
struct memory_use device_memory(const struct device *device);

/* Owns device memory: buffer_free, once. Aligned to 64 bytes and rounded up to a multiple of 64. Not zeroed:
 * uninitialized, NaN on strict. A buffer of 0 bytes still has an address, so that a view without rows is
 * distinct from an absent tensor. */
struct buffer {
    struct device *device;
    void *data;
    size_t bytes;
    enum part part;
};
MUST_USE enum status buffer_alloc(struct device *device, enum part part, size_t bytes, struct buffer *out);
void buffer_free(struct buffer *buffer); // accepts {0}

/* For PART_HOST with copy_to_host() and copy_to_device() only: a hint that these bytes are not accessed until
 * they are copied back, so that their pages may be reclaimed. Their contents are preserved, even if the write
 * is still in flight on a stream. */
void buffer_page_out(const struct buffer *buffer, size_t offset, size_t bytes);

/* Compute time of this rank so far, excluding time spent waiting for communication. On cpu it is the
 * processor time of all its threads, so that other processes on the same cores do not change it; elsewhere
 * the host's clock. Only differences have a meaning. Call it from the rank's thread. */
int64_t device_compute_ns(const struct device *device);

/* A profiler range: everything this thread submits from now on is part of `name`, until the end. Ranges
 * nest. */
void device_range_begin(struct device *device, const char *name);
void device_range_end(struct device *device);

/* An in-order queue of ops and messages. `name` is a literal, for traces. */
MUST_USE enum status stream_create(struct device *device, const char *name, struct stream **out);
void stream_destroy(struct stream *stream); // accepts NULL; synchronizes first

struct device *stream_device(const struct stream *stream);

/* A point in a stream: complete when everything submitted before it is complete. It may outlive its stream
 * only inside another stream that waits for it. */
struct event {
    struct stream *stream; // NULL: already complete
    uint64_t at;
};
struct event stream_record(struct stream *stream);
/* Work submitted to `stream` from now on runs after `event`. Does not block the host (except on a synchronous
 * stream, which has no queue to defer to). */
MUST_USE enum status stream_wait(struct stream *stream, struct event event);
/* These two block the host. */
MUST_USE enum status event_sync(struct event event);
MUST_USE enum status stream_sync(struct stream *stream);

/* Enqueues a copy in device memory by the vendor's function (cudaMemcpyAsync), to compare the copy op with.
 * NOT_SUPPORTED if the device has none. */
MUST_USE enum status stream_vendor_copy(struct stream *stream, void *to, const void *from, size_t bytes);

/* Timing events: record when a stream reaches a point, on the device's clock. The host does not wait.
 *
 *     stream:   ops ─ mark 0 ─ ops ─ mark 1 ─ ...        later: time_marks_between(marks, 0, 1)
 *
 * A mark completes once all earlier work on its stream has; setting it again replaces it.
 * On cuda marks are CUDA events with timing; where the host computes, they are readings of its clock. */
struct time_marks;
/* NOT_SUPPORTED on dry. */
MUST_USE enum status time_marks_create(struct device *device, int count, struct time_marks **out);
void time_marks_destroy(struct time_marks *marks); // accepts NULL; streams with marks have been synchronized
MUST_USE enum status time_marks_set(struct time_marks *marks, int index, struct stream *stream);
/* Seconds from one mark to another of the same device; NAN if one of them is not set or not complete. */
struct time_mark {
    const struct time_marks *marks;
    int index;
};
double time_mark_between(struct time_mark from, struct time_mark to);

/* Copies between host and device memory, in stream order. `host` must stay untouched until synchronized. On
 * dry, reading gives zeros. */
MUST_USE enum status copy_to_device(struct stream *stream, void *device_data, const void *host, size_t bytes);
MUST_USE enum status copy_to_host(struct stream *stream, void *host, const void *device_data, size_t bytes);

/* External work that takes its turn on a stream: a message of a CPU transport, embedded as the first member
 * of the transport's request. The device calls start once, when everything before it on its stream is
 * complete; then poll until it reports completion, which also frees it. After a status other than OK it is
 * never accessed again: the job is about to end.
 *
 * A blocked host (*_sync, or a cpu stream whose next op must wait) serves *all* streams of its device: it
 * loops over them, starts ready work, polls started work, and after a round without progress calls sleep
 * of any started work. Serving only the awaited stream would deadlock: two sends queue on one edge, the
 * first is complete, and the peer needs the second before it can send the data we wait for. sleep returns
 * when polling may succeed again: when any message of this rank has progressed since the last sleep
 * returned. It may return early. */
struct work {
    enum status (*start)(struct work *work);            // posts it; never blocks
    enum status (*poll)(struct work *work, bool *done); // makes progress, perhaps by computing; never blocks
    void (*sleep)(struct work *work);                   // sleeps until a message of this rank progresses
    const char *name;                                   // "all_reduce tp", for traces and hang reports
    struct progress_range recorded; // by stream_submit_work(): its messages in the flight recorder
};
/* Takes ownership of `work`. */
MUST_USE enum status stream_submit_work(struct stream *stream, struct work *work);

/* For backends: call the functions of a work, and record what happens (base/progress.h). */
MUST_USE enum status work_start(struct work *work);
MUST_USE enum status work_poll(struct work *work, bool *done);
void work_sleep(struct work *work);

/* Replays work that is submitted repeatedly with identical ops and arguments, including every pointer and
 * count: values that change between submissions are read from device memory. body() submits it. A device with
 * graphs (cuda, as a CUDA graph) captures it the second time and from then on launches the graph without
 * calling body; the others call body each time. *graph is NULL at first.
 *
 * body must only submit ops to this stream: no copy from or to the host, no event, no message, no other
 * stream, no change of its own variables. A violation is BAD_ARGUMENT with its name, on every device. */
struct graph;
MUST_USE enum status stream_replay(struct stream *stream, struct graph **graph,
                                   enum status (*body)(void *context), void *context);
void graph_destroy(struct graph *graph); // accepts NULL; the launched graph may still be in flight

/* The state belongs to the backend. */
struct time_mark_ops {
    enum status (*open)(struct device *device, int count, void **out);
    void (*close)(void *state);
    enum status (*set)(void *state, int index, struct stream *stream);
    double (*between)(const void *from_state, int from, const void *to_state, int to);
};

/* The interface of a backend; opening rejects a table with a NULL entry by name. Callers use the functions
 * above and kernels/ops.h, which validate first: a backend may rely on that. */
struct device_ops {
    const struct device_traits *traits; // its entry in the registry
    enum status (*open)(struct device *device, const struct device_options *options);
    void (*close)(struct device *device);
    // NO_DEVICE_MEMORY: reports why
    enum status (*alloc)(struct device *device, enum part part, size_t bytes, void **out);
    void (*free)(struct device *device, enum part part, void *data, size_t bytes);
    enum status (*host_alloc)(struct device *device, size_t bytes, void **out); // reports its own errors
    void (*host_free)(struct device *device, void *data, size_t bytes);
    void (*host_page_out)(void *data, size_t bytes); // buffer_page_out()
    enum status (*stream_open)(struct stream *stream);
    void (*stream_close)(struct stream *stream);
    enum status (*submit)(struct stream *stream, const struct op *op);    // copies `op`
    enum status (*submit_work)(struct stream *stream, struct work *work); // takes ownership, also on failure
    uint64_t (*record)(struct stream *stream);
    enum status (*wait)(struct stream *stream, struct event event);
    enum status (*sync)(struct event event);
    enum status (*check_algorithms)(const char *path);
    void (*choices)(const struct device *device, struct text *out);
    enum status (*vendor_copy)(struct stream *stream, void *to, const void *from, size_t bytes);
    int64_t (*compute_ns)(const struct device *device); // device_compute_ns()
    const struct time_mark_ops *time_marks;
    void (*range)(struct device *device, const char *name); // begins a range, or ends it with NULL
    // stream_replay() from the second time on; *state belongs to the backend, NULL at first.
    enum status (*replay)(struct stream *stream, void **state, enum status (*body)(void *context),
                          void *context);
    void (*replay_end)(void *state);
};

/* Entries of a backend without such a thing: no algorithms, choices, copy, clock or ranges; the host's clock
 * without waits for messages; and body() called every time. */
enum status device_no_algorithms(const char *path);
void device_no_choices(const struct device *device, struct text *out);
enum status device_no_vendor_copy(struct stream *stream, void *to, const void *from, size_t bytes);
int64_t device_host_ns(const struct device *device);
extern const struct time_mark_ops device_no_time_marks;
void device_no_range(struct device *device, const char *name);
enum status device_call_body(struct stream *stream, void **state, enum status (*body)(void *context),
                             void *context);
void device_no_replay_end(void *state);

/* Opens a device with this ops table, registered or not: tests pass their own. */
MUST_USE enum status device_open_with(const struct device_ops *ops, const struct device_options *options,
                                      struct device **out);

/* Internals, visible to backends. */
struct device {
    const struct device_ops *ops;     // replaced while the device is observed (observe.h)
    struct observed_device *observed; // NULL: no observer
    int threads;
    int streams;  // currently open
    bool poisons; // poison() writes NaN, as on the device that a dry one simulates; else it has no effect
    bool has_epilogues; // runs a gemm with its epilogue as one op; else it is split into two
    struct memory_use memory;
    struct stream *replaying;     // the stream whose body is running; NULL: none
    const char *replay_violation; // the violation of that body, or NULL
    void *state;                  // owned by the backend
};
struct stream {
    struct device *device;
    const char *name;
    void *state; // owned by the backend
};
