// SPDX-License-Identifier: Apache-2.0
/* The strict device must detect errors that a GPU shows only sometimes. Each test injects one fault, and
 * shows that the correct program passes. */
#include "kernels/ops.h"
#include "tests/unit/kernels/fake_work.h"

#include <criterion/criterion.h>
#include <math.h>

struct fixture {
    struct device *device;
    struct stream *compute, *edge;
    struct buffer x, y;
};
enum { COUNT = 6 };

static struct fixture fixture_open(void)
{
    struct fixture b = {0};
    cr_assert_eq(device_open(&(struct device_options){.name = "strict", .threads = 2}, &b.device), OK);
    cr_assert_eq(stream_create(b.device, "compute", &b.compute), OK);
    cr_assert_eq(stream_create(b.device, "edge", &b.edge), OK);
    cr_assert_eq(buffer_alloc(b.device, PART_ACTIVATIONS, COUNT * sizeof(float), &b.x), OK);
    cr_assert_eq(buffer_alloc(b.device, PART_ACTIVATIONS, COUNT * sizeof(float), &b.y), OK);
    return b;
}

static void fixture_close(struct fixture *b)
{
    stream_destroy(b->compute);
    stream_destroy(b->edge);
    buffer_free(&b->x);
    buffer_free(&b->y);
    device_close(b->device);
}

static struct tensor vector_of(const struct buffer *buffer)
{
    return tensor_1d(buffer->data, F32, COUNT);
}

/* The first element, read as a host must. */
static float read_back(struct stream *stream, const struct buffer *buffer)
{
    float host = 0.0F;
    cr_assert_eq(copy_to_host(stream, &host, buffer->data, sizeof host), OK);
    cr_assert_eq(host, 0.0F, "the copy has not run yet");
    cr_assert_eq(stream_sync(stream), OK);
    return host;
}

Test(strict, unset_memory_is_nan)
{
    struct fixture b = fixture_open();
    cr_assert(isnan(read_back(b.compute, &b.x)));
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = 1.0F}), OK);
    cr_assert_eq(read_back(b.compute, &b.x), 1.0F);
    fixture_close(&b);
}

Test(strict, poisoned_memory_is_nan)
{
    struct fixture b = fixture_open();
    struct tensor x = tensor_2d(b.x.data, F32, 2, 3);
    cr_assert_eq(fill(b.compute, (struct fill){.out = x, .value = 1.0F}), OK);
    cr_assert_eq(copy(b.compute, (struct copy){.in = vector_of(&b.x), .out = vector_of(&b.y)}), OK);
    cr_assert_eq(poison(b.compute, (struct poison){.out = tensor_columns(x, 0, 2)}), OK);
    cr_assert_eq(read_back(b.compute, &b.y), 1.0F, "used before it was poisoned");
    cr_assert(isnan(read_back(b.compute, &b.x)), "used after");
    const float *data = b.x.data;
    cr_assert(isnan(data[1]) && data[2] == 1.0F && isnan(data[3]) && data[5] == 1.0F, "columns 0 and 1 only");
    fixture_close(&b);
}

Test(strict, nothing_runs_before_a_host_wait)
{
    struct fixture b = fixture_open();
    const float *x = b.x.data;
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = 1.0F}), OK);
    struct event one = stream_record(b.compute);
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = 2.0F}), OK);
    cr_assert(isnan(x[0]));
    cr_assert_eq(event_sync(one), OK);
    cr_assert_eq(x[0], 1.0F, "only ops before the event have run");
    cr_assert_eq(stream_sync(b.compute), OK);
    cr_assert_eq(x[0], 2.0F);
    fixture_close(&b);
}

/* compute must wait for the message before it reads the received data. */
static float receive_then_read(bool wait)
{
    struct fixture b = fixture_open();
    int log[FAKE_LOG] = {0};
    cr_assert_eq(
        fake_submit(b.edge,
                    (struct fake_work){.log = log, .out = b.x.data, .value = 5.0F, .polls_needed = 2}),
        OK);
    cr_assert_eq(log[FAKE_STARTED], 0);
    if (wait)
        cr_assert_eq(stream_wait(b.compute, stream_record(b.edge)), OK);
    cr_assert_eq(copy(b.compute, (struct copy){.in = vector_of(&b.x), .out = vector_of(&b.y)}), OK);
    float got = read_back(b.compute, &b.y);
    fixture_close(&b);
    return got;
}

Test(strict, a_missing_wait_before_a_read_gives_nan)
{
    cr_assert_eq(receive_then_read(true), 5.0F);
    cr_assert(isnan(receive_then_read(false)));
}

/* A message must wait for the op that computes its data. The fake message "sends" by reading when it
 * starts. */
struct sender {
    struct work work;
    const float *from;
    float *to;
};

static enum status sender_start(struct work *work)
{
    struct sender *sender = (struct sender *)(void *)work;
    *sender->to = *sender->from;
    return OK;
}

static enum status sender_poll(struct work *work, bool *done)
{
    *done = true;
    free(work);
    return OK;
}

static float compute_then_send(bool wait)
{
    struct fixture b = fixture_open();
    float sent = 0.0F;
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = 4.0F}), OK);
    if (wait)
        cr_assert_eq(stream_wait(b.edge, stream_record(b.compute)), OK);
    struct sender *sender = malloc(sizeof *sender);
    *sender = (struct sender){
        .work = {.start = sender_start, .poll = sender_poll, .sleep = fake_sleep, .name = "send"},
        .from = b.x.data,
        .to = &sent};
    cr_assert_eq(stream_submit_work(b.edge, &sender->work), OK);
    cr_assert_eq(stream_sync(b.edge), OK);
    fixture_close(&b);
    return sent;
}

Test(strict, a_missing_wait_before_a_send_sends_nan)
{
    cr_assert_eq(compute_then_send(true), 4.0F);
    cr_assert(isnan(compute_then_send(false)));
}

Test(strict, detects_early_reuse_of_a_host_buffer)
{
    struct fixture b = fixture_open();
    float host = 1.0F;
    cr_assert_eq(copy_to_device(b.compute, b.x.data, &host, sizeof host), OK);
    cr_assert_eq(stream_sync(b.compute), OK);
    host = 2.0F;
    cr_assert_eq(read_back(b.compute, &b.x), 1.0F);
    cr_assert_eq(copy_to_device(b.compute, b.x.data, &host, sizeof host), OK);
    host = 3.0F; // too early
    cr_assert_eq(read_back(b.compute, &b.x), 3.0F);
    fixture_close(&b);
}

Test(strict, memory_freed_too_early_reads_nan)
{
    struct fixture b = fixture_open();
    struct buffer short_lived;
    cr_assert_eq(buffer_alloc(b.device, PART_WORKSPACE, COUNT * sizeof(float), &short_lived), OK);
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&short_lived), .value = 1.0F}), OK);
    cr_assert_eq(stream_sync(b.compute), OK);
    cr_assert_eq(copy(b.compute, (struct copy){.in = vector_of(&short_lived), .out = vector_of(&b.y)}), OK);
    buffer_free(&short_lived); // before the copy was waited for
    cr_assert_eq(buffer_alloc(b.device, PART_WORKSPACE, COUNT * sizeof(float), &short_lived), OK);
    cr_assert(isnan(read_back(b.compute, &b.y)));
    buffer_free(&short_lived);
    fixture_close(&b);
}

/* A chain of waits through three streams, synchronized at its end. */
Test(strict, waits_run_only_their_dependencies)
{
    struct fixture b = fixture_open();
    struct stream *third;
    int log[FAKE_LOG] = {0};
    cr_assert_eq(stream_create(b.device, "third", &third), OK);
    for (int round = 0; round < 50; round++) {
        cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = (float)round}), OK);
        cr_assert_eq(stream_wait(b.edge, stream_record(b.compute)), OK);
        cr_assert_eq(fake_submit(b.edge, (struct fake_work){.log = log, .polls_needed = round % 3}), OK);
        cr_assert_eq(stream_wait(third, stream_record(b.edge)), OK);
        cr_assert_eq(copy(third, (struct copy){.in = vector_of(&b.x), .out = vector_of(&b.y)}), OK);
        cr_assert_eq(stream_wait(b.compute, stream_record(third)), OK);
    }
    cr_assert_eq(fill(b.compute, (struct fill){.out = vector_of(&b.x), .value = -1.0F}), OK);
    cr_assert_eq(stream_sync(third), OK);
    cr_assert(((float *)b.y.data)[0] == 49.0F && ((float *)b.x.data)[0] == 49.0F);
    cr_assert_eq(log[FAKE_DONE], 50);
    stream_destroy(third);
    fixture_close(&b);
}

/* The awaited stream is destroyed first; its event remains valid in the waiting one. */
Test(strict, a_stream_may_be_destroyed_before_its_waiter)
{
    struct fixture b = fixture_open();
    struct stream *brief;
    cr_assert_eq(stream_create(b.device, "brief", &brief), OK);
    cr_assert_eq(fill(brief, (struct fill){.out = vector_of(&b.x), .value = 6.0F}), OK);
    cr_assert_eq(stream_wait(b.compute, stream_record(brief)), OK);
    cr_assert_eq(copy(b.compute, (struct copy){.in = vector_of(&b.x), .out = vector_of(&b.y)}), OK);
    stream_destroy(brief);
    cr_assert_eq(read_back(b.compute, &b.y), 6.0F);
    fixture_close(&b);
}
