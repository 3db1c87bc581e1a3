// SPDX-License-Identifier: Apache-2.0
/* stream_replay(): the rules for a body are the same on every device; and on the emulated GPU, in late mode,
 * the captured work is what runs, even if the scratch memory has moved. */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/emulator/include/cuda_runtime_api.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, COLUMNS = 24, MORE_ROWS = 4000 };

struct fixture {
    struct device *device;
    struct stream *stream, *other;
    struct buffer in, out;
    struct graph *graph;
    struct event event; // on the other stream
    float host[COLUMNS];
    int calls;
    size_t bytes; // allocated by a body
};

static void open_fixture(struct fixture *d, const char *device)
{
    const struct device_options options = {.name = device, .threads = 1};
    *d = (struct fixture){0};
    setenv("EMULATOR_STREAMS", "late", 1);
    cr_assert_eq(device_open(&options, &d->device), OK, "%s", fail_text());
    cr_assert_eq(stream_create(d->device, "compute", &d->stream), OK);
    cr_assert_eq(stream_create(d->device, "other", &d->other), OK);
    cr_assert_eq(buffer_alloc(d->device, PART_DATA, MORE_ROWS * COLUMNS * sizeof(float), &d->in), OK);
    cr_assert_eq(buffer_alloc(d->device, PART_DATA, COLUMNS * sizeof(float), &d->out), OK);
    const struct fill ones = {.out = tensor_1d(d->in.data, F32, MORE_ROWS * COLUMNS), .value = 1.0F};
    const struct fill zeros = {.out = tensor_1d(d->out.data, F32, COLUMNS), .value = 0.0F};
    cr_assert_eq(fill(d->stream, ones), OK);
    cr_assert_eq(fill(d->stream, zeros), OK);
    d->event = stream_record(d->other);
}

static void close_fixture(struct fixture *d)
{
    graph_destroy(d->graph);
    stream_destroy(d->other);
    stream_destroy(d->stream);
    buffer_free(&d->in);
    buffer_free(&d->out);
    device_close(d->device);
}

static enum status sum_rows(struct fixture *d, struct stream *stream, int64_t rows)
{
    return column_sum(stream, (struct column_sum){.in = tensor_2d(d->in.data, F32, rows, COLUMNS),
                                                  .out = tensor_1d(d->out.data, F32, COLUMNS)});
}

/* out += ROWS, using scratch memory. */
static enum status adds(void *context)
{
    struct fixture *d = context;
    d->calls++;
    return sum_rows(d, d->stream, ROWS);
}

static enum status records(void *context)
{
    struct fixture *d = context;
    (void)stream_record(d->stream);
    return adds(context);
}

static enum status waits(void *context)
{
    struct fixture *d = context;
    TRY(stream_wait(d->stream, d->event));
    return adds(context);
}

static enum status sends(void *context)
{
    struct fixture *d = context;
    return copy_to_device(d->stream, d->out.data, d->host, sizeof d->host);
}

static enum status strays(void *context)
{
    struct fixture *d = context;
    return sum_rows(d, d->other, ROWS);
}

static enum status nests(void *context)
{
    struct fixture *d = context;
    struct graph *inner = NULL;
    enum status status = stream_replay(d->stream, &inner, adds, d);
    graph_destroy(inner);
    return status;
}

static void expect_rejected(struct fixture *d, enum status (*body)(void *context), const char *why)
{
    struct graph *graph = NULL;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(stream_replay(d->stream, &graph, body, d), BAD_ARGUMENT);
        cr_expect_str_eq(fail_text(), why, "on %s, attempt %d: %s", device_name(d->device), i + 1,
                         fail_text());
    }
    graph_destroy(graph);
}

static void expect_capture_rules(const char *device)
{
    struct fixture d;
    open_fixture(&d, device);
    expect_rejected(&d, records,
                    "stream compute: the body to be replayed has an event, which a replay would skip");
    expect_rejected(&d, waits,
                    "stream compute: the body to be replayed has a wait, which a replay would skip");
    expect_rejected(&d, sends,
                    "stream compute: the body to be replayed has copy_to_device, which a replay would skip");
    expect_rejected(
        &d, strays,
        "stream compute: the body to be replayed has an op on another stream, which a replay would skip");
    close_fixture(&d);
}

static float sum_of(struct fixture *d)
{
    cr_assert_eq(copy_to_host(d->stream, d->host, d->out.data, sizeof d->host), OK);
    cr_assert_eq(stream_sync(d->stream), OK, "%s", fail_text());
    for (int i = 1; i < COLUMNS; i++)
        cr_expect_eq(d->host[i], d->host[0]);
    return d->host[0];
}

Test(graphs, capture_rules_are_the_same_on_every_device)
{
    expect_capture_rules("cpu");
    expect_capture_rules("strict");
    expect_capture_rules("cuda");
}

Test(graphs, rejects_nested_captures)
{
    struct fixture d;
    open_fixture(&d, "cuda");
    cr_expect_eq(stream_replay(d.stream, &d.graph, nests, &d), BAD_ARGUMENT);
    cr_expect_str_eq(fail_text(), "stream compute: a replay inside one of stream compute");
    close_fixture(&d);
}

/* From the third launch on, the emulator also runs the body, and compares. */
Test(graphs, every_launch_repeats_the_work)
{
    const char *const devices[] = {"cpu", "strict", "cuda"};
    for (int k = 0; k < 3; k++) {
        struct fixture d;
        open_fixture(&d, devices[k]);
        struct emulator_calls before = emulator_calls();
        for (int i = 1; i <= 5; i++) {
            cr_assert_eq(stream_replay(d.stream, &d.graph, adds, &d), OK, "%s", fail_text());
            if (i != 4) // two launches are in flight at once
                cr_expect_float_eq(sum_of(&d), (float)(i * ROWS), 0.0F, "%s, launch %d", devices[k], i);
        }
        cr_expect_eq(d.calls, 5);
        cr_expect_eq(emulator_calls().graphs - before.graphs, k == 2 ? 4 : 0);
        close_fixture(&d);
    }
}

Test(graphs, detects_moved_temporary_memory)
{
    struct fixture d;
    open_fixture(&d, "cuda");
    for (int i = 0; i < 3; i++)
        cr_assert_eq(stream_replay(d.stream, &d.graph, adds, &d), OK);
    cr_assert_eq(sum_rows(&d, d.stream, MORE_ROWS), OK);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(stream_replay(d.stream, &d.graph, adds, &d), OK, "%s", fail_text());
    cr_expect_float_eq(sum_of(&d), (float)(5 * ROWS + MORE_ROWS), 0.0F);
    close_fixture(&d);
}

/* Uses more scratch memory the second time than the first. */
static enum status grows(void *context)
{
    struct fixture *d = context;
    return sum_rows(d, d->stream, d->calls++ == 0 ? ROWS : MORE_ROWS);
}

static enum status allocates(void *context)
{
    struct fixture *d = context;
    struct buffer buffer = {0};
    if (d->calls++ > 0)
        TRY(buffer_alloc(d->device, PART_DATA, d->bytes, &buffer));
    buffer_free(&buffer);
    return sum_rows(d, d->stream, ROWS);
}

static enum status changes(void *context)
{
    struct fixture *d = context;
    return sum_rows(d, d->stream, d->calls++ < 2 ? ROWS : ROWS - 1);
}

static void fails_at(enum status (*body)(void *context), int time, const char *first)
{
    struct fixture d;
    open_fixture(&d, "cuda");
    d.bytes = (size_t)64 << 20; // the pool has no block of this size
    for (int i = 1; i < time; i++)
        cr_assert_eq(stream_replay(d.stream, &d.graph, body, &d), OK, "%s", fail_text());
    cr_expect_neq(stream_replay(d.stream, &d.graph, body, &d), OK);
    cr_expect_eq(strncmp(fail_text(), first, strlen(first)), 0, "%s", fail_text());
    cr_expect_not_null(strstr(fail_text(), "; use cluster.cuda_graphs false"), "%s", fail_text());
    // The stream is no longer capturing.
    cr_expect_eq(fill(d.stream, (struct fill){.out = tensor_1d(d.out.data, F32, COLUMNS), .value = 2.0F}),
                 OK);
    cr_expect_float_eq(sum_of(&d), 2.0F, 0.0F);
    close_fixture(&d);
}

Test(graphs, reports_ops_that_cannot_be_captured)
{
    fails_at(grows, 2,
             "cluster.cuda_graphs true: cuda: column_sum needs more scratch memory than in its first "
             "run");
    fails_at(allocates, 2, "cluster.cuda_graphs true: device \"cuda\" has no memory for 64.00 MiB of data");
    if (EMULATOR_COMPARES)
        fails_at(changes, 3,
                 "cluster.cuda_graphs true: a replay differs from the captured graph: call 1 of 2: ");
}

/* The emulator is as strict as CUDA about the capturing thread. */
Test(graphs, forbidden_calls_invalidate_a_capture)
{
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaGraph_t graph;
    void *memory = NULL;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cr_assert_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    cr_assert_eq(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    cr_assert_eq(cudaEventRecord(event, other), cudaSuccess);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        cudaError_t errors[] = {
            i == 0 ? cudaMalloc(&memory, 1) : cudaSuccess,
            i == 1 ? cudaStreamSynchronize(other) : cudaSuccess,
            i == 2 ? cudaEventQuery(event) : cudaSuccess,
            i == 3 ? cudaEventSynchronize(event) : cudaSuccess,
            i == 4 ? cudaFree(NULL) : cudaSuccess,
            i == 5 ? cudaStreamWaitEvent(stream, event, 0) : cudaSuccess,
        };
        cr_expect_eq(errors[i], i == 5 ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureUnsupported);
        cr_expect_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        cr_expect_null(graph);
    }
    // Recorded during capture, it is not valid outside.
    cr_assert_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cr_expect_eq(cudaEventRecord(event, stream), cudaSuccess);
    cr_expect_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cr_expect_eq(cudaStreamWaitEvent(other, event, 0), cudaErrorCapturedEvent);
    cr_expect_eq(cudaGraphDestroy(graph), cudaSuccess);
    cr_expect_eq(cudaEventDestroy(event), cudaSuccess);
    cr_expect_eq(cudaStreamDestroy(other), cudaSuccess);
    cr_expect_eq(cudaStreamDestroy(stream), cudaSuccess);
}
