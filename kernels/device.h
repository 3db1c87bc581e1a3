// SPDX-License-Identifier: Apache-2.0
/* A device is one const table (struct device_ops), and there are four: cpu, cuda, strict, dry. Code
 * that computes names none of them: it allocates buffers, puts ops (kernels/ops.h) on streams, and
 * orders streams with events.
 *
 *     compute:  F3 ──record e──> F4 ...
 *     edge:            wait e ──> send            the host never blocks; only *_sync does
 *
 * On cpu a stream runs at once: when a call returns, the op is done, and only messages (struct work)
 * can still be under way. On strict everything is put off as long as it is allowed to be, and fresh
 * memory is NaN, so a forgotten wait is read as NaN. A program that is right cannot tell them apart.
 *
 * The trap: a buffer handed to a stream may not be touched by another stream, or freed, before an
 * event says so. */
#pragma once

#include "kernels/tensor.h"

struct device;
struct stream;
struct op;
struct text;

/* Every allocation belongs to a part, so that a run can say what its memory is for. */
enum part {
    PART_WEIGHTS,
    PART_MASTERS, // weights in fp32 that the optimizer changes, where those that multiply are narrower
    PART_GRADIENTS,
    PART_MOMENTS,       // Adam's; where they are the host's, the window that they pass through
    PART_ACTIVATIONS,   // of microbatches in flight, each in its slots (trainer/engine/stash.h)
    PART_BUCKETS,       // whole weights and gradients of a layer, where data ranks share them out
    PART_COMMUNICATION, // what transports work in, and what is packed for a message
    PART_WORKSPACE,     // of layers and kernels, within one action
    PART_DATA,          // tokens, labels, losses, the scalars of a step
    PART_HOST,          // beside the device: in the host's memory; on a CPU, in a file. Not in the total
    PART_COUNT
};
const char *part_name(enum part part);

/* Whose kernels attention takes, where a library has some too; elsewhere it changes nothing. */
enum attention_backend {
    ATTENTION_AUTO, // the faster, if any_order; else the device's own
    ATTENTION_OWN,
    ATTENTION_CUDNN,
    ATTENTION_OWN_MMA // own, with mma.sync on every GPU: to compare with; no recipe asks for it
};

/* Whether what comes behind a product (struct epilogue, ops.h) is done where that is made. */
enum matmul_epilogues {
    EPILOGUES_APART, // by ops of their own
    EPILOGUES_FUSED, // wherever the device can
    EPILOGUES_AUTO, // wherever that is faster: timed for each shape, if any_order or matmul_algorithms is set
};

struct device_options {
    const char *name; // "cpu", "strict", "dry", "cuda"
    int threads;      // compute threads of this rank, the caller among them; >= 1
    int index;        // which of several equal devices; 0 on a CPU
    enum attention_backend attention;
    bool any_order;         // sums may run in another order from run to run, and kernels be chosen by timing
    const char *stands_for; // of dry: whose kernels' temporary memory it counts; NULL: the CPU's
    size_t reserve_bytes;   // where memory is taken in pieces: of the first, at once; 0: as it comes
    // Products of matrices, where the device says that it has these:
    bool tf32;                     // of fp32 may round their operands to TF32 (10 bits of fraction)
    const char *matmul_algorithms; // a file that keeps which algorithm was the fastest; "auto"; NULL: none
    enum matmul_epilogues epilogues;
    // Of a kernel whose blocks each loop over tiles of work: at most so many blocks; 0: one for each
    // multiprocessor. Only tests set it, so that few tiles make many iterations. Results do not depend on it.
    int most_blocks;
};

/* Opens the device of one rank. NOT_SUPPORTED names the devices of this build. A device, its streams and
 * its buffers belong to one thread at a time: the rank's. */
MUST_USE enum status device_open(const struct device_options *options, struct device **out);
void device_close(struct device *device); // takes NULL; every buffer and stream must be gone

/* The devices of this build, for help and doctor: index 0, 1, ... ; NULL past the last. */
const struct device_ops *device_kind(size_t index);

/* Whether the device of this name computes; true for an unknown one, which device_open() refuses. */
bool device_named_computes(const char *name);

/* Whether this build has a device of this name. */
bool device_is_built(const char *name);

/* Whether the host can follow the addresses of this device's buffers, as the transports for CPUs do; true for
 * an unknown one. */
bool device_named_is_of_host(const char *name);

/* Whether an op of this device is done when the call that asked for it returns, so that the host's clock can
 * time it; true for an unknown one. */
bool device_named_runs_at_once(const char *name);

/* Whether it looks at the options of matrix multiplications; true for an unknown one. */
bool device_named_has_matmul_options(const char *name);

/* Whether its kernels are a GPU's, also where this build is without it. */
bool device_named_is_gpu(const char *name);

/* Whether it looks at reserve_bytes; false for an unknown one. */
bool device_named_reserves(const char *name);

/* OK where device_options.matmul_algorithms may be `path`, as far as can be seen before the device is open;
 * else what is wrong with it, by the recipe's key. OK for an unknown one. */
MUST_USE enum status device_named_check_algorithms(const char *name, const char *path);

/* Whether ATTENTION_CUDNN can be asked of it; true for an unknown one. */
bool device_named_takes_cudnn(const char *name);

const char *device_name(const struct device *device);
/* False on dry: nothing it holds can be read. */
bool device_computes(const struct device *device);

/* Adds which kernels this device has chosen so far where it had a choice, by timing or from a file: a line
 * for each, and lines that begin with two spaces for what only a record needs. Nothing: it had none. */
void device_choices(const struct device *device, struct text *out);

/* What this device has handed out, now and at most, by part. */
struct memory_use {
    int64_t now_bytes[PART_COUNT];
    int64_t peak_bytes[PART_COUNT]; // each part's own peak
    int64_t peak_total_bytes;       // of the device: without PART_HOST
};
struct memory_use device_memory(const struct device *device);

/* Owns device memory: buffer_free, once. Aligned to 64 bytes, and counted in multiples of them. Not
 * zeroed: unset, NaN on strict. Of 0 bytes it still has an address, so that a view of no rows is not
 * taken for no tensor. */
struct buffer {
    struct device *device;
    void *data;
    size_t bytes;
    enum part part;
};
MUST_USE enum status buffer_alloc(struct device *device, enum part part, size_t bytes, struct buffer *out);
void buffer_free(struct buffer *buffer); // takes {0}

/* Of PART_HOST, for copy_to_host() and copy_to_device() only: nobody looks at these bytes until they are
 * copied back. They stay what they are, also when what writes them is still on a stream. */
void buffer_rest(const struct buffer *buffer, size_t offset, size_t bytes);

/* For a profiler that watches: what this thread puts on the device from now on is part of `name`, until the
 * end; one may lie in another. */
void device_range_begin(struct device *device, const char *name);
void device_range_end(struct device *device);

/* An in-order queue of ops and messages. `name` is a literal, for traces. */
MUST_USE enum status stream_create(struct device *device, const char *name, struct stream **out);
void stream_destroy(struct stream *stream); // takes NULL; synchronises first

struct device *stream_device(const struct stream *stream);

/* A point in a stream: done when everything put on it before is done. It may outlive its stream only
 * inside another stream that waits for it. */
struct event {
    struct stream *stream; // NULL: an event that is long past
    uint64_t at;
};
struct event stream_record(struct stream *stream);
/* What is put on `stream` from now on runs after `event`. Does not block the host (a stream that
 * runs at once may have to wait right here: its queue is the caller). */
MUST_USE enum status stream_wait(struct stream *stream, struct event event);
/* These two block the host. */
MUST_USE enum status event_sync(struct event event);
MUST_USE enum status stream_sync(struct stream *stream);

/* Host memory to device and back, in stream order. `host` must stay untouched until synchronised. On dry,
 * reading gives zeros. */
MUST_USE enum status copy_to_device(struct stream *stream, void *device_data, const void *host, size_t bytes);
MUST_USE enum status copy_to_host(struct stream *stream, void *host, const void *device_data, size_t bytes);

/* Something outside the device that takes its turn on a stream: a message of a CPU transport. The
 * transport embeds it first in its own request. The device calls start once, when everything before it on
 * its stream is done; then poll until that says done, which also frees it. After a status that is not OK
 * it is never touched again: the job is about to end.
 *
 * A host that blocks (*_sync, or a cpu stream whose next op must wait) serves *all* streams of its device:
 * it goes round them, starts what may start, polls what was started, and when a whole round has moved
 * nothing it calls rest of any started work. Serving only the stream it waits for would deadlock: two sends
 * queue on one edge, the first is done, and the peer needs the second before it can send what we wait
 * for. rest sleeps until polling can be of use again: until something has happened to any message of this
 * rank since its last rest returned. It may return early. */
struct work {
    enum status (*start)(struct work *work);            // posts it; never blocks
    enum status (*poll)(struct work *work, bool *done); // moves it on, perhaps by computing; never blocks
    void (*rest)(struct work *work);                    // sleeps while no message of this rank moves
    const char *name;                                   // "all_reduce tp", for traces and hang reports
};
/* Takes ownership of `work`. */
MUST_USE enum status stream_submit_work(struct stream *stream, struct work *work);

/* Work that is put on a stream again and again, each time the same ops with the same arguments, down to every
 * pointer and number: what changes from one time to the next is read from the device's memory. body() puts it
 * there. A device that can (cuda, as a CUDA graph) keeps it when it comes for the second time, and from then
 * on puts it there whole without calling body; the others call body each time. *graph is NULL at first.
 *
 * Body puts ops on this stream, and does nothing else that another time would miss: no copy from or to the
 * host, no event, no message, nothing on another stream, no change of its own variables. BAD_ARGUMENT says
 * what of these it did, on every device. */
struct graph;
MUST_USE enum status stream_replay(struct stream *stream, struct graph **graph,
                                   enum status (*body)(void *context), void *context);
void graph_destroy(struct graph *graph); // takes NULL; what was launched may still be under way

/* Whether the device keeps what is replayed; false for an unknown one. */
bool device_named_keeps_graphs(const char *name);

/* Everything a backend must provide; a table with a NULL is refused by name when it is opened. Callers use
 * the functions above and kernels/ops.h, which check first: a backend may rely on what they checked. */
struct device_ops {
    const char *name;
    const char *what; // one sentence for help and doctor
    bool computes;
    bool of_host;            // its memory is the host's
    bool runs_at_once;       // an op is done when its call returns
    bool has_matmul_options; // looks at device_options.tf32 and matmul_algorithms
    bool takes_cudnn;        // ATTENTION_CUDNN means something to it
    bool reserves;           // looks at device_options.reserve_bytes
    enum status (*open)(struct device *device, const struct device_options *options);
    void (*close)(struct device *device);
    enum status (*alloc)(struct device *device, size_t bytes, void **out); // NO_DEVICE_MEMORY: says why
    void (*free)(struct device *device, void *data, size_t bytes);
    enum status (*host_alloc)(struct device *device, size_t bytes, void **out); // says itself why not
    void (*host_free)(struct device *device, void *data, size_t bytes);
    void (*host_rest)(void *data, size_t bytes); // buffer_rest()
    enum status (*stream_open)(struct stream *stream);
    void (*stream_close)(struct stream *stream);
    enum status (*submit)(struct stream *stream, const struct op *op);    // copies `op`
    enum status (*submit_work)(struct stream *stream, struct work *work); // takes it, also on failure
    uint64_t (*record)(struct stream *stream);
    enum status (*wait)(struct stream *stream, struct event event);
    enum status (*sync)(struct event event);
    enum status (*check_algorithms)(const char *path);              // NULL: it keeps none
    void (*choices)(const struct device *device, struct text *out); // NULL: it never has one
    void (*range)(const char *name); // begins one, or with NULL ends it. NULL: no profiler knows the device
    // Of stream_replay() from the second time on; *state is the backend's, NULL at first. NULL: body is
    // called.
    enum status (*replay)(struct stream *stream, void **state, enum status (*body)(void *context),
                          void *context);
    void (*replay_end)(void *state);
};

/* Opens a device of this table, registered or not: tests bring their own. */
MUST_USE enum status device_open_with(const struct device_ops *ops, const struct device_options *options,
                                      struct device **out);

/* The insides that a backend may see. */
struct device {
    const struct device_ops *ops;
    int threads;
    int streams;        // open now
    bool has_epilogues; // takes a gemm with an epilogue as one op; else the doors make two of it
    struct memory_use memory;
    struct stream *replaying;   // whose body is running; NULL: none
    const char *not_replayable; // what that did, or NULL
    void *state;                // the backend's
};
struct stream {
    struct device *device;
    const char *name;
    void *state; // the backend's
};
