// SPDX-License-Identifier: Apache-2.0
/* Tensors, the registry, memory accounting, and streams of the cpu device. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/unit/kernels/fake_work.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static struct device *open_device(const char *name, int threads)
{
    struct device *device = NULL;
    cr_assert_eq(device_open(&(struct device_options){.name = name, .threads = threads}, &device), OK, "%s",
                 fail_text());
    return device;
}

static struct stream *open_stream(struct device *device, const char *name)
{
    struct stream *stream = NULL;
    cr_assert_eq(stream_create(device, name, &stream), OK);
    return stream;
}

Test(tensor, views)
{
    float data[12];
    char text[TENSOR_TEXT_CHARS];
    struct tensor t = tensor_2d(data, F32, 3, 4);
    cr_assert(tensor_is_dense(t) && tensor_count(t) == 12 && tensor_bytes(t) == 48);
    cr_assert_str_eq(tensor_text(t, text), "f32[3, 4]");

    struct tensor columns = tensor_columns(t, 1, 3);
    cr_assert(columns.data == data + 1 && columns.dim[1] == 2 && columns.stride[0] == 4);
    cr_assert(!tensor_is_dense(columns));
    cr_assert(tensor_is_dense(tensor_rows(columns, 2, 3)), "one row of a view is dense");
    cr_assert(tensor_rows(t, 1, 3).data == data + 4 && tensor_is_dense(tensor_rows(t, 1, 3)));
    cr_assert(tensor_is_dense(tensor_rows(columns, 1, 1)), "an empty tensor is dense");

    cr_assert(tensor_same_shape(columns, tensor_2d(data, I32, 3, 2)));
    cr_assert(!tensor_same_shape(columns, t) && !tensor_same_shape(t, tensor_1d(data, F32, 3)));
    cr_assert_eq(tensor_count((struct tensor){0}), 0);
    cr_assert_str_eq(tensor_text((struct tensor){0}, text), "none");

    struct tensor long_text = {.data = data, .dtype = F64, .ndim = 4};
    for (int d = 0; d < 4; d++)
        long_text.dim[d] = INT64_MAX;
    cr_assert_lt(strlen(tensor_text(long_text, text)), TENSOR_TEXT_CHARS);
}

Test(device, an_unknown_name_lists_the_devices)
{
    struct device *device = NULL;
    cr_assert_eq(device_open(&(struct device_options){.name = "strikt", .threads = 1}, &device),
                 NOT_SUPPORTED);
    cr_assert_not_null(strstr(fail_text(), "did you mean \"strict\"?"), "%s", fail_text());
    cr_assert_not_null(strstr(fail_text(), "cpu, strict, dry"), "%s", fail_text());
    cr_assert_eq(device_open(&(struct device_options){.name = "cpu", .threads = 0}, &device), BAD_ARGUMENT);
    cr_assert_null(device);
    cr_assert_str_eq(device_at(0)->name, "cpu");
    cr_assert_null(device_at(100));
}

Test(device, rejects_an_incomplete_table)
{
    struct device *device = NULL;
    struct device_ops table = *device_at(0)->ops;
    const struct device_traits half = {.name = "half", .summary = "a part of a device"};
    table.traits = &half;
    table.wait = NULL;
    cr_assert_eq(device_open_with(&table, &(struct device_options){.name = "half", .threads = 1}, &device),
                 BAD_ARGUMENT);
    cr_assert_str_eq(fail_text(), "device \"half\" does not provide wait");

    table.wait = device_at(0)->ops->wait;
    table.range = NULL;
    cr_assert_eq(device_open_with(&table, &(struct device_options){.name = "half", .threads = 1}, &device),
                 BAD_ARGUMENT);
    cr_assert_str_eq(fail_text(), "device \"half\" does not provide range");

    table.range = device_at(0)->ops->range;
    cr_assert_eq(device_open_with(&table, &(struct device_options){.name = "half", .threads = 1}, &device),
                 OK);
    cr_assert_str_eq(device_name(device), "half");
    device_close(device);
}

/* Recipes, rules and plans name devices that this build may lack. */
Test(device, every_device_has_its_traits_in_every_build)
{
    const char *const names[] = {"cpu", "strict", "dry", "cuda"};
    for (size_t i = 0; i < 4; i++) {
        const struct device_traits *traits = device_at(i);
        cr_assert_str_eq(traits->name, names[i]);
        cr_assert_eq(device_traits(names[i]), traits);
        cr_assert_eq(device_is_built(names[i]), traits->ops != NULL);
        cr_assert(traits->ops == NULL || traits->ops->traits == traits, "%s", names[i]);
        cr_assert(traits->ops == NULL || traits->supports_graphs == (traits->ops->replay != device_call_body),
                  "%s", names[i]);
    }
    cr_assert_null(device_at(4));
    cr_assert(device_traits("cuda")->is_gpu && device_traits("cuda")->computes);
    cr_assert_eq(device_traits("no such device"), device_at(0));
    cr_assert(!device_is_built("no such device"));
}

Test(device, memory_use_has_current_and_peak_bytes_by_part)
{
    const char *const names[] = {"cpu", "strict", "dry"};
    for (int i = 0; i < 3; i++) {
        struct device *device = open_device(names[i], 1);
        struct buffer weights = {0}, first = {0}, second = {0}, empty = {0};
        cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 1000, &weights), OK);
        cr_assert_eq(buffer_alloc(device, PART_ACTIVATIONS, 640, &first), OK);
        buffer_free(&first);
        cr_assert_null(first.data);
        cr_assert_eq(buffer_alloc(device, PART_ACTIVATIONS, 64, &second), OK);
        cr_assert_eq(buffer_alloc(device, PART_DATA, 0, &empty), OK);
        cr_assert_not_null(empty.data);
        cr_assert_eq((uintptr_t)weights.data % 64, 0);

        struct memory_use use = device_memory(device);
        cr_assert_eq(use.now_bytes[PART_WEIGHTS], 1024, "in multiples of 64");
        cr_assert_eq(use.now_bytes[PART_ACTIVATIONS], 64);
        cr_assert_eq(use.peak_bytes[PART_ACTIVATIONS], 640);
        cr_assert_eq(use.peak_total_bytes, 1664);
        cr_assert_eq(use.now_bytes[PART_GRADIENTS], 0);

        cr_assert_eq(buffer_alloc(device, PART_MOMENTS, SIZE_MAX - 10, &first), NO_MEMORY);
        cr_assert_not_null(strstr(fail_text(), "moments"), "%s", fail_text());
        cr_assert_eq(buffer_alloc(device, PART_COUNT, 1, &first), BAD_ARGUMENT);
        buffer_free(&weights);
        buffer_free(&second);
        buffer_free(&empty);
        buffer_free(&(struct buffer){0});
        cr_assert_eq(device_memory(device).now_bytes[PART_WEIGHTS], 0);
        device_close(device);
    }
}

Test(device, closing_with_a_live_buffer_aborts, .exit_code = 1)
{
    struct device *device = open_device("cpu", 1);
    struct buffer kept;
    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 64, &kept), OK);
    device_close(device);
}

/* The elementary ops, on rows with gaps, against loops. */
Test(device, plain_ops_respect_strides)
{
    struct device *device = open_device("cpu", 3);
    struct stream *stream = open_stream(device, "compute");
    enum { ROWS = 700, WIDE = 150, COLUMNS = 101 };
    float *x = malloc(ROWS * WIDE * sizeof *x), *y = malloc(ROWS * WIDE * sizeof *y);
    for (int i = 0; i < ROWS * WIDE; i++) {
        x[i] = (float)i;
        y[i] = -1.0F;
    }
    struct tensor in = tensor_columns(tensor_2d(x, F32, ROWS, WIDE), 7, 7 + COLUMNS);
    struct tensor out = tensor_columns(tensor_2d(y, F32, ROWS, WIDE), 3, 3 + COLUMNS);
    cr_assert_eq(fill(stream, (struct fill){.out = out, .value = 0.5F}), OK);
    cr_assert_eq(add(stream, (struct add){.in = in, .out = out}), OK);
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < WIDE; c++) {
            bool inside = c >= 3 && c < 3 + COLUMNS;
            cr_assert_eq(y[r * WIDE + c], inside ? x[r * WIDE + c + 4] + 0.5F : -1.0F);
        }
    }
    cr_assert_eq(copy(stream, (struct copy){.in = in, .out = out}), OK);
    cr_assert_eq(y[5 * WIDE + 3], x[5 * WIDE + 7]);
    cr_assert_eq(y[5 * WIDE + 2], -1.0F);

    double sums[3] = {1, 2, 3}, more[3] = {10, 20, 30};
    cr_assert_eq(add(stream, (struct add){.in = tensor_1d(more, F64, 3), .out = tensor_1d(sums, F64, 3)}),
                 OK);
    cr_assert(sums[0] == 11.0 && sums[2] == 33.0);
    int64_t whole[2] = {0, 0};
    cr_assert_eq(fill(stream, (struct fill){.out = tensor_1d(whole, I64, 2), .value = 7.0F}), OK);
    cr_assert_eq(whole[1], 7);
    free(x);
    free(y);
    stream_destroy(stream);
    device_close(device);
}

/* A slice draws the same values as the full tensor, for any number of threads; a row longer than a task is
 * divided. */
Test(device, init_normal_is_layout_invariant)
{
    struct device *device = open_device("cpu", 2);
    struct stream *stream = open_stream(device, "compute");
    enum { ROWS = 5, COLUMNS = 70001 };
    float *whole = malloc(ROWS * COLUMNS * sizeof *whole), *part = malloc(ROWS * COLUMNS * sizeof *part);
    float *row = malloc(COLUMNS * sizeof *row);
    struct init_normal args = {.out = tensor_2d(whole, F32, ROWS, COLUMNS),
                               .generator = philox_named(1, "w"),
                               .std = 0.02F,
                               .columns = COLUMNS};
    cr_assert_eq(init_normal(stream, args), OK);
    philox_normal(args.generator, 0, COLUMNS, COLUMNS, row);
    for (int c = 0; c < COLUMNS; c++)
        cr_assert_eq(whole[COLUMNS + c], row[c] * 0.02F);

    args.out = tensor_2d(part, F32, 2, 333);
    args.row_begin = 3;
    args.column_begin = 1001;
    cr_assert_eq(init_normal(stream, args), OK);
    for (int r = 0; r < 2; r++)
        cr_assert_eq(memcmp(part + r * 333, whole + (r + 3) * COLUMNS + 1001, 333 * sizeof *part), 0);
    args.column_begin = COLUMNS - 332;
    cr_assert_eq(init_normal(stream, args), BAD_ARGUMENT);
    free(whole);
    free(part);
    free(row);
    stream_destroy(stream);
    device_close(device);
}

struct tally {
    int64_t done[5000];
};

static void count_task(void *context, int64_t task)
{
    ((struct tally *)context)->done[task]++;
}

Test(pool, every_task_runs_once)
{
    for (int threads = 1; threads <= 4; threads++) {
        struct device *device = open_device("cpu", threads);
        struct tally *tally = calloc(1, sizeof *tally);
        for (int round = 0; round < 300; round++)
            cpu_parallel(device, round % 7 == 0 ? 5000 : round % 5, count_task, tally);
        int64_t large = 43;
        cr_assert_eq(tally->done[4999], large);
        cr_assert_eq(tally->done[4], large);
        int64_t small = 0;
        for (int round = 0; round < 300; round++)
            small += round % 7 != 0 && round % 5 > 0 ? 1 : 0;
        cr_assert_eq(tally->done[0], large + small);
        free(tally);
        device_close(device);
    }
}

/* ---- streams of the cpu device ---- */

Test(stream, an_op_after_a_message_waits_for_it)
{
    struct device *device = open_device("cpu", 1);
    struct stream *stream = open_stream(device, "edge");
    int log[FAKE_LOG] = {0};
    float x = 0.0F, y = 0.0F;
    cr_assert_eq(
        fake_submit(stream, (struct fake_work){.log = log, .out = &x, .value = 3.0F, .polls_needed = 4}), OK);
    cr_assert_eq(log[FAKE_STARTED], 1);
    cr_assert_eq(log[FAKE_DONE], 0);
    cr_assert_eq(copy(stream, (struct copy){.in = tensor_1d(&x, F32, 1), .out = tensor_1d(&y, F32, 1)}), OK);
    cr_assert_eq(y, 3.0F);
    cr_assert_gt(log[FAKE_RESTED], 0);
    stream_destroy(stream);
    device_close(device);
}

Test(stream, messages_of_a_stream_start_in_order)
{
    struct device *device = open_device("cpu", 1);
    struct stream *stream = open_stream(device, "edge");
    int log[FAKE_LOG] = {0};
    for (int i = 0; i < 40; i++)
        cr_assert_eq(fake_submit(stream, (struct fake_work){.log = log, .polls_needed = 3}), OK);
    cr_assert_leq(log[FAKE_STARTED] - log[FAKE_DONE], 1);
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert(log[FAKE_STARTED] == 40 && log[FAKE_DONE] == 40);
    stream_destroy(stream);
    device_close(device);
}

static void expect_all_streams_progress(const char *name)
{
    struct device *device = open_device(name, 1);
    fake_partner_needs_another_stream(device);
    device_close(device);
}

Test(stream, a_blocking_wait_progresses_every_stream_cpu)
{
    expect_all_streams_progress("cpu");
}

Test(stream, a_blocking_wait_progresses_every_stream_strict)
{
    expect_all_streams_progress("strict");
}

static double seconds(const struct time_marks *marks, int from, int to)
{
    return time_mark_between((struct time_mark){marks, from}, (struct time_mark){marks, to});
}

/* A mark after a message is passed when the message is complete. */
static void expect_marks(const char *name)
{
    struct device *device = open_device(name, 1);
    struct stream *stream = open_stream(device, "edge");
    struct time_marks *marks = NULL, *later = NULL;
    int log[FAKE_LOG] = {0};
    cr_assert_eq(time_marks_create(device, 3, &marks), OK);
    cr_assert_eq(time_marks_create(device, 1, &later), OK);
    cr_assert_eq(time_marks_set(marks, 0, stream), OK);
    cr_assert(isnan(seconds(marks, 0, 2)), "the last mark is not set");
    cr_assert_eq(fake_submit(stream, (struct fake_work){.log = log, .polls_needed = 4}), OK);
    cr_assert_eq(time_marks_set(marks, 1, stream), OK);
    cr_assert(isnan(seconds(marks, 0, 1)), "the message is in flight");
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert_gt(seconds(marks, 0, 1), 0.0);
    cr_assert_eq(time_marks_set(marks, 0, stream), OK);
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert_leq(seconds(marks, 0, 1), 0.0, "set again, it is later");
    cr_assert_eq(time_marks_set(later, 0, stream), OK);
    cr_assert_eq(stream_sync(stream), OK);
    cr_assert_gt(time_mark_between((struct time_mark){marks, 1}, (struct time_mark){later, 0}), 0.0);
    time_marks_destroy(later);
    time_marks_destroy(marks);
    stream_destroy(stream);
    device_close(device);
}

Test(stream, marks_of_time_wait_for_messages_cpu)
{
    expect_marks("cpu");
}

Test(stream, marks_of_time_wait_for_messages_strict)
{
    expect_marks("strict");
}

Test(stream, a_wait_orders_two_streams)
{
    struct device *device = open_device("cpu", 1);
    struct stream *edge = open_stream(device, "edge"), *compute = open_stream(device, "compute");
    int log[FAKE_LOG] = {0};
    float x = 0.0F, y = 0.0F;
    cr_assert_eq(
        fake_submit(edge, (struct fake_work){.log = log, .out = &x, .value = 2.0F, .polls_needed = 3}), OK);
    struct event arrived = stream_record(edge);
    cr_assert_eq(stream_wait(compute, arrived), OK);
    cr_assert_eq(copy(compute, (struct copy){.in = tensor_1d(&x, F32, 1), .out = tensor_1d(&y, F32, 1)}), OK);
    cr_assert_eq(y, 2.0F);
    cr_assert_eq(stream_wait(compute, (struct event){0}), OK);
    cr_assert_eq(event_sync((struct event){0}), OK);
    cr_assert_eq(event_sync(arrived), OK);
    stream_destroy(edge);
    stream_destroy(compute);
    device_close(device);
}

Test(stream, a_failed_message_fails_its_waiters)
{
    const char *const names[] = {"cpu", "strict"};
    for (int i = 0; i < 2; i++) {
        struct device *device = open_device(names[i], 1);
        struct stream *stream = open_stream(device, "edge");
        int log[FAKE_LOG] = {0};
        cr_assert_eq(
            fake_submit(stream, (struct fake_work){.log = log, .polls_needed = 2, .outcome = PEER_LOST}), OK);
        cr_assert_eq(stream_sync(stream), PEER_LOST);
        cr_assert_str_eq(fail_text(), "the fake message failed");
        stream_destroy(stream);
        device_close(device);
    }
}

Test(stream, rejects_incomplete_work_tables)
{
    struct device *device = open_device("cpu", 1);
    struct stream *stream = open_stream(device, "edge");
    struct work work = {.start = fake_start, .poll = fake_poll, .name = "no rest"};
    cr_assert_eq(stream_submit_work(stream, &work), BAD_ARGUMENT);
    cr_assert_eq(stream_submit_work(stream, NULL), BAD_ARGUMENT);
    stream_destroy(stream);
    device_close(device);
}
