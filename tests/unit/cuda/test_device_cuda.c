// SPDX-License-Identifier: Apache-2.0
/* The cuda device on the emulated GPU, in late mode: memory, copies, events, messages, and error messages.
 * EMULATOR_FAIL names the failing call. */
#include "kernels/cuda/runtime/device_cuda.h"
#include "kernels/ops.h"
#include "tests/unit/kernels/fake_work.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct device *open_device(void)
{
    struct device *device;
    setenv("EMULATOR_STREAMS", "late", 1);
    cr_assert_eq(
        device_open_with(&device_cuda, &(struct device_options){.name = "cuda", .threads = 1}, &device), OK,
        "%s", fail_text());
    return device;
}

static struct stream *open_stream(struct device *device, const char *name)
{
    struct stream *stream;
    cr_assert_eq(stream_create(device, name, &stream), OK, "%s", fail_text());
    return stream;
}

static void expect_open_error(const char *failing, int index, const char *expected)
{
    struct device *device = NULL;
    setenv("EMULATOR_FAIL", failing, 1);
    struct device_options options = {.name = "cuda", .threads = 1, .index = index};
    cr_assert_neq(device_open_with(&device_cuda, &options, &device), OK);
    cr_expect_str_eq(fail_text(), expected);
    unsetenv("EMULATOR_FAIL");
}

Test(device_cuda, reports_missing_gpu_or_driver)
{
    expect_open_error(
        "cudaGetDeviceCount", 0,
        "cluster.device cuda: no GPU found: cudaGetDeviceCount returned \"no CUDA-capable device is "
        "detected\" (the driver supports CUDA 13.0, this build requires 13.0); it requires an NVIDIA GPU of "
        "compute capability 8.0 or newer and its driver; use cluster.device=cpu");
    setenv("EMULATOR_DRIVER", "0", 1);
    expect_open_error(
        "", 0,
        "cluster.device cuda: no NVIDIA driver found; it requires one, and an NVIDIA GPU of compute "
        "capability 8.0 or newer; use cluster.device=cpu");
    setenv("EMULATOR_DRIVER", "12040", 1);
    expect_open_error(
        "", 0,
        "cluster.device cuda: the driver is too old: it supports CUDA 12.4, and this build requires 13.0; "
        "install a newer driver, or use cluster.device=cpu");
    unsetenv("EMULATOR_DRIVER");
    expect_open_error(
        "cudaDeviceGetAttribute", 0,
        "cluster.device cuda: GPU 0, emulated GPU, has compute capability 7.7, and this build requires "
        "8.0 or newer; "
        "choose another with CUDA_VISIBLE_DEVICES, or use cluster.device=cpu");
    expect_open_error("", 3, "cluster.device cuda: this rank needs GPU 3, but this process sees only 1");
}

/* If host memory is exhausted, using less GPU memory would not help. */
Test(device_cuda, out_of_memory_names_host_or_gpu)
{
    struct device *device = NULL;
    struct device_options options = {.name = "cuda", .threads = 1};
    struct buffer buffer = {0};
    setenv("EMULATOR_FAIL", "cudaMallocHost", 1);
    cr_assert_eq(device_open(&options, &device), NO_MEMORY);
    cr_expect_eq(strncmp(fail_text(),
                         "cuda: cudaMallocHost of 128.00 KiB for copies to and from the GPU: out of ", 73),
                 0, "%s", fail_text());
    cr_expect_not_null(strstr(fail_text(), " of the host's memory are free"), "%s", fail_text());
    unsetenv("EMULATOR_FAIL");
    device = open_device();
    setenv("EMULATOR_FAIL", "cudaMallocHost", 1);
    cr_assert_eq(buffer_alloc(device, PART_HOST, 4096, &buffer), NO_MEMORY);
    cr_expect_eq(strncmp(fail_text(), "cuda: cudaMallocHost of 4.00 KiB for offloaded memory: out of ", 61),
                 0, "%s", fail_text());
    unsetenv("EMULATOR_FAIL");

    float row[8] = {0};
    struct stream *stream = open_stream(device, "compute");
    struct tensor sum = tensor_1d(row, F32, 4);
    setenv("EMULATOR_FAIL", "cudaMalloc", 1);
    cr_assert_eq(column_sum(stream, (struct column_sum){.in = tensor_2d(row, F32, 1, 4), .out = sum}),
                 NO_DEVICE_MEMORY);
    cr_expect_str_eq(fail_text(),
                     "device \"cuda\" has no memory for 16 B of workspace: cuda: cudaMalloc of 256 "
                     "B: out of memory; 1.00 GiB of the GPU's 1.00 GiB are free; stream compute, "
                     "column_sum(f32[1, 4])");
    setenv("EMULATOR_FAIL", "cudaMemGetInfo", 1);
    setenv("EMULATOR_LARGEST", "100000", 1);
    cr_assert_eq(buffer_alloc(device, PART_DATA, 100001, &buffer), NO_DEVICE_MEMORY);
    cr_expect_str_eq(fail_text(), "device \"cuda\" has no memory for 97.66 KiB of data: cuda: cudaMalloc of "
                                  "97.75 KiB: out of memory; free memory unknown (cudaMemGetInfo failed)");
    // A full segment is not available; a smaller allocation must still succeed.
    cr_assert_eq(buffer_alloc(device, PART_DATA, 99000, &buffer), OK, "%s", fail_text());
    unsetenv("EMULATOR_FAIL");
    unsetenv("EMULATOR_LARGEST");
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
}

Test(device_cuda, an_error_names_the_call_the_op_and_its_shape)
{
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "compute");
    struct buffer buffer;
    setenv("EMULATOR_FAIL", "cudaMalloc", 1);
    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 4000000000, &buffer), NO_DEVICE_MEMORY);
    cr_expect_not_null(strstr(fail_text(), "weights"), "%s", fail_text());
    unsetenv("EMULATOR_FAIL");

    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 1200, &buffer), OK);
    cr_assert_eq(fill(stream, (struct fill){.out = tensor_2d(buffer.data, F32, 30, 10), .value = 1.0F}), OK);
    setenv("EMULATOR_FAIL", "cudaEventSynchronize", 1);
    cr_assert_eq(stream_sync(stream), NOT_SUPPORTED);
    cr_expect_str_eq(fail_text(),
                     "cuda: cudaEventSynchronize: invalid argument; stream compute, fill(f32[30, 10])");
    unsetenv("EMULATOR_FAIL");

    float wide[300];
    struct attention_forward op = {.batch = 1, .sequence = 1, .head_dim = 300, .scale = 1.0F};
    op.q = op.k = op.v = op.out = tensor_2d(wide, F32, 1, 300);
    op.lse = tensor_2d(buffer.data, F32, 1, 1);
    cr_assert_eq(attention_forward(stream, op), NOT_SUPPORTED);
    cr_expect_str_eq(fail_text(),
                     "cuda: attention supports head dimensions up to 256, not 300 (model.kv_channels)");
    op.q = op.k = op.v = op.out = tensor_2d(wide, F32, 1, 64);
    op.head_dim = 64;
    op.query_begin = 1;
    cr_assert_eq(attention_forward(stream, op), NOT_SUPPORTED);
    cr_expect_not_null(strstr(fail_text(), "1 queries from key row 1 on to 1 keys"), "%s", fail_text());
    op.query_begin = 0;
    op.v = op.out = tensor_2d(wide, F32, 1, 32);
    cr_assert_eq(attention_forward(stream, op), NOT_SUPPORTED);
    cr_expect_not_null(strstr(fail_text(), "heads of 64 (q, k) and 32 (v)"), "%s", fail_text());
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
}

/* Blocks of odd sizes, freed and allocated again in another order: none overlap, all are aligned, and in the
 * end the pool is one free block again. */
Test(device_cuda, pool_blocks_do_not_overlap)
{
    enum { PIECES = 200, ROUNDS = 20 };
    struct device *device = open_device();
    struct buffer buffer[PIECES] = {{0}};
    struct philox random = philox_named(1, "pool");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PIECES; i++) {
            uint32_t word = philox_word(random, (uint64_t)round, (uint64_t)i);
            if (word % 3 == 0)
                buffer_free(&buffer[i]);
            if (buffer[i].data == NULL) {
                size_t bytes = word % 7 == 0 ? 300000 + word % 1000 : word % 5000;
                cr_assert_eq(buffer_alloc(device, PART_ACTIVATIONS, bytes, &buffer[i]), OK, "%s",
                             fail_text());
                cr_assert_eq((uintptr_t)buffer[i].data % 256, 0);
                memset(buffer[i].data, i, bytes);
            }
        }
        for (int i = 0; i < PIECES; i++)
            for (size_t b = 0; b < buffer[i].bytes; b++)
                cr_assert_eq(((unsigned char *)buffer[i].data)[b], (unsigned char)i);
    }
    for (int i = 0; i < PIECES; i++)
        buffer_free(&buffer[i]);
    device_close(device);
}

/* A copy larger than the ring of pinned slots, to the device and back, between two streams. */
Test(device_cuda, copies_use_the_pinned_ring_and_complete_on_synchronize)
{
    enum { COUNT = 100000 };
    struct device *device = open_device();
    struct stream *first = open_stream(device, "first"), *second = open_stream(device, "second");
    struct buffer there, copied;
    int32_t *sent = malloc(COUNT * sizeof *sent), *received = malloc(COUNT * sizeof *received), small = 0;
    cr_assert_eq(buffer_alloc(device, PART_DATA, COUNT * sizeof *sent, &there), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, COUNT * sizeof *sent, &copied), OK);
    for (int i = 0; i < COUNT; i++)
        sent[i] = i * 7;
    memset(received, 0, COUNT * sizeof *received);
    cr_assert_eq(copy_to_device(first, there.data, sent, COUNT * sizeof *sent), OK);
    struct event arrived = stream_record(first);
    cr_assert_eq(stream_wait(second, arrived), OK);
    struct tensor in = tensor_1d(there.data, I32, COUNT), out = tensor_1d(copied.data, I32, COUNT);
    cr_assert_eq(copy(second, (struct copy){.in = in, .out = out}), OK);
    cr_assert_eq(copy_to_host(second, &small, (int32_t *)copied.data + 5, sizeof small), OK);
    cr_expect_eq(small, 0, "nothing arrives before a synchronization");
    cr_assert_eq(copy_to_host(second, received, copied.data, COUNT * sizeof *sent), OK);
    cr_assert_eq(stream_sync(second), OK, "%s", fail_text());
    cr_expect_eq(small, 35);
    cr_expect_eq(memcmp(sent, received, COUNT * sizeof *sent), 0);
    buffer_free(&there);
    buffer_free(&copied);
    stream_destroy(first);
    stream_destroy(second);
    device_close(device);
    free(sent);
    free(received);
}

/* To CUDA "not ready" is an error like others, which cudaGetLastError() returns to the next caller: here a
 * launch, after the host has queried an incomplete copy. */
/* It is ordered after earlier ops of its stream. */
Test(device_cuda, vendor_copy_copies_in_device_memory)
{
    enum { COUNT = 1000 };
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "compute");
    struct buffer from, to;
    float got[COUNT];
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof got, &from), OK);
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof got, &to), OK);
    cr_assert_eq(fill(stream, (struct fill){.out = tensor_1d(from.data, F32, COUNT), .value = 3.0F}), OK);
    cr_assert_eq(stream_vendor_copy(stream, to.data, from.data, sizeof got), OK, "%s", fail_text());
    cr_assert_eq(copy_to_host(stream, got, to.data, sizeof got), OK);
    cr_assert_eq(stream_sync(stream), OK);
    for (int i = 0; i < COUNT; i++)
        cr_expect_eq(got[i], 3.0F);
    setenv("EMULATOR_FAIL", "cudaMemcpyAsync", 1);
    cr_expect_neq(stream_vendor_copy(stream, to.data, from.data, sizeof got), OK);
    cr_expect_not_null(strstr(fail_text(), "cudaMemcpyAsync"), "%s", fail_text());
    unsetenv("EMULATOR_FAIL");
    buffer_free(&from);
    buffer_free(&to);
    stream_destroy(stream);
    device_close(device);
}

Test(device_cuda, launch_errors_are_reported)
{
    struct device *device = open_device();
    struct stream *first = open_stream(device, "first"), *second = open_stream(device, "second");
    struct buffer there;
    int32_t received = 0;
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof received, &there), OK);
    struct fill seven = {.out = tensor_1d(there.data, I32, 1), .value = 7.0F};
    cr_assert_eq(fill(second, seven), OK, "%s", fail_text());
    cr_assert_eq(copy_to_host(second, &received, there.data, sizeof received), OK);
    cr_assert_eq(stream_sync(first), OK, "%s", fail_text()); // delivers completed copies: none
    cr_expect_eq(received, 0);
    cr_expect_eq(fill(first, seven), OK, "%s", fail_text());
    cr_expect_eq(stream_sync(second), OK, "%s", fail_text());
    cr_expect_eq(received, 7);
    cr_assert_eq(stream_sync(first), OK, "%s", fail_text());
    buffer_free(&there);
    stream_destroy(first);
    stream_destroy(second);
    device_close(device);
}

/* Under EMULATOR_MEMORY=guarded the host cannot dereference a device address, as on a GPU. */
Test(device_cuda, guards_are_device_memory, .signal = SIGSEGV)
{
    setenv("EMULATOR_MEMORY", "guarded", 1);
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "compute");
    struct buffer buffer;
    float out = 0.0F;
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof out, &buffer), OK);
    cr_assert_eq(fill(stream, (struct fill){.out = tensor_1d(buffer.data, F32, 1), .value = 2.0F}), OK);
    cr_assert_eq(copy_to_host(stream, &out, buffer.data, sizeof out), OK);
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert_eq(out, 2.0F);
    signal(SIGSEGV, SIG_DFL); // a sanitizer would turn it into a report and an exit
    out = *(volatile float *)buffer.data;
    cr_assert_fail("the host read %g from device memory", (double)out);
}

/* More records than the ring of CUDA events holds: old and new events keep their order. */
Test(device_cuda, waits_for_a_completed_event)
{
    struct device *device = open_device();
    struct stream *first = open_stream(device, "first"), *second = open_stream(device, "second");
    struct buffer buffer;
    float out = 0.0F;
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof(float), &buffer), OK);
    struct tensor x = tensor_1d(buffer.data, F32, 1);
    cr_assert_eq(fill(first, (struct fill){.out = x, .value = 3.0F}), OK);
    struct event old = stream_record(first);
    for (int i = 0; i < 300; i++)
        (void)stream_record(first);
    cr_assert_eq(stream_wait(second, old), OK);
    cr_assert_eq(add(second, (struct add){.in = x, .out = x}), OK);
    cr_assert_eq(copy_to_host(second, &out, buffer.data, sizeof out), OK);
    cr_assert_eq(event_sync(stream_record(second)), OK);
    cr_expect_eq(out, 6.0F);
    cr_assert_eq(event_sync(old), OK);
    buffer_free(&buffer);
    stream_destroy(first);
    stream_destroy(second);
    device_close(device);
}

/* A message starts when the GPU has completed everything before it, and everything after it waits. */
Test(device_cuda, messages_run_in_stream_order)
{
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "edge");
    struct buffer buffer;
    int log[FAKE_LOG] = {0};
    float out = 0.0F;
    cr_assert_eq(buffer_alloc(device, PART_DATA, sizeof(float), &buffer), OK);
    struct tensor x = tensor_1d(buffer.data, F32, 1);
    cr_assert_eq(fill(stream, (struct fill){.out = x, .value = 1.0F}), OK);
    cr_assert_eq(
        fake_submit(stream,
                    (struct fake_work){.log = log, .out = buffer.data, .value = 5.0F, .polls_needed = 3}),
        OK);
    cr_assert_eq(add(stream, (struct add){.in = x, .out = x}), OK);
    cr_expect_eq(log[FAKE_DONE], 1);
    cr_assert_eq(copy_to_host(stream, &out, buffer.data, sizeof out), OK);
    cr_assert_eq(stream_sync(stream), OK);
    cr_expect_eq(out, 10.0F);
    buffer_free(&buffer);
    stream_destroy(stream);
    device_close(device);
}

/* A mark after a message of a CPU transport is passed when the message is complete. */
Test(device_cuda, marks_of_time_wait_for_messages)
{
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "edge");
    struct time_marks *marks = NULL;
    int log[FAKE_LOG] = {0};
    cr_assert_eq(time_marks_create(device, 2, &marks), OK);
    const struct time_mark begin = {marks, 0}, end = {marks, 1};
    cr_assert_eq(time_marks_set(marks, 0, stream), OK);
    cr_assert_eq(fake_submit(stream, (struct fake_work){.log = log, .polls_needed = 4}), OK);
    cr_assert_eq(time_marks_set(marks, 1, stream), OK);
    for (int i = 0; i < 100 && log[FAKE_DONE] == 0; i++)
        cr_assert(isnan(time_mark_between(begin, end)), "the message is in flight");
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert_eq(log[FAKE_DONE], 1);
    cr_assert_geq(time_mark_between(begin, end), 0.0);
    time_marks_destroy(marks);
    stream_destroy(stream);
    device_close(device);
}

Test(device_cuda, a_blocking_wait_progresses_every_stream)
{
    struct device *device = open_device();
    fake_partner_needs_another_stream(device);
    device_close(device);
}

/* An event recorded before a message that never arrives waits only for work before it. */
Test(device_cuda, an_old_event_does_not_wait_for_later_messages)
{
    struct device *device = open_device();
    struct stream *edge = open_stream(device, "edge"), *compute = open_stream(device, "compute");
    int log[FAKE_LOG] = {0};
    bool never = false;
    struct event before = stream_record(edge);
    cr_assert_eq(fake_submit(edge, (struct fake_work){.log = log, .needs = &never}), OK);
    for (int i = 0; i < 200; i++)
        (void)stream_record(edge);
    cr_assert_eq(stream_wait(compute, before), OK);
    cr_assert_eq(event_sync(before), OK);
    cr_expect_eq(log[FAKE_DONE], 0);
    never = true;
    cr_assert_eq(stream_sync(edge), OK);
    cr_expect_eq(log[FAKE_DONE], 1);
    stream_destroy(edge);
    stream_destroy(compute);
    device_close(device);
}

Test(device_cuda, a_failed_message_fails_its_waiters)
{
    struct device *device = open_device();
    struct stream *stream = open_stream(device, "edge");
    int log[FAKE_LOG] = {0};
    cr_assert_eq(fake_submit(stream, (struct fake_work){.log = log, .polls_needed = 2, .outcome = PEER_LOST}),
                 OK);
    cr_assert_eq(stream_sync(stream), PEER_LOST);
    cr_expect_str_eq(fail_text(), "the fake message failed");
    stream_destroy(stream);
    device_close(device);
}
