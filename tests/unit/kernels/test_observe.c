// SPDX-License-Identifier: Apache-2.0
/* An observer of a device is called for every enqueued op and every allocation, in order; without an observer
 * the device's own table is used. */
#include "kernels/device_plan.h"
#include "kernels/observe.h"
#include "kernels/ops.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* The observations, one word each. */
struct notes {
    char text[1000];
    int64_t last_ns;
};

static void note(void *context, const struct observation *seen)
{
    struct notes *notes = context;
    const size_t length = strlen(notes->text), left = sizeof notes->text - length;
    char *end = notes->text + length;
    cr_assert(seen->who == rank_context() && seen->at_ns >= notes->last_ns);
    notes->last_ns = seen->at_ns;
    switch (seen->what) {
    case OBSERVED_RANGE:
        snprintf(end, left, "%s ", seen->range != NULL ? seen->range : "end");
        break;
    case OBSERVED_OP:
        snprintf(end, left, "%s@%s ", op_name(seen->op->kind), seen->stream->name);
        break;
    case OBSERVED_RECORD:
    case OBSERVED_WAIT:
        snprintf(end, left, "%s %s@%s ", seen->what == OBSERVED_WAIT ? "wait" : "record",
                 seen->event.stream->name, seen->stream->name);
        break;
    case OBSERVED_ALLOC:
    case OBSERVED_FREE:
        cr_assert_not_null(seen->memory.data);
        snprintf(end, left, "%s %s %zu ", seen->what == OBSERVED_ALLOC ? "alloc" : "free",
                 part_name(seen->memory.part), seen->memory.bytes);
        break;
    case OBSERVED_MESSAGE:
    case OBSERVED_COUNT:
        cr_assert_fail("no message was sent");
    }
}

static struct device *open_device(const char *name)
{
    struct device *device = NULL;
    cr_assert_eq(device_open(&(struct device_options){.name = name, .threads = 1}, &device), OK);
    return device;
}

/* Uses two streams, memory of both kinds and a range. */
static void use(struct device *device)
{
    struct stream *one = NULL, *two = NULL;
    struct buffer x = {0}, host = {0};
    cr_assert_eq(stream_create(device, "one", &one), OK);
    cr_assert_eq(stream_create(device, "two", &two), OK);
    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 100, &x), OK);
    cr_assert_eq(buffer_alloc(device, PART_HOST, 64, &host), OK);
    device_range_begin(device, "0F0");
    cr_assert_eq(fill(one, (struct fill){.out = tensor_1d(x.data, F32, 25)}), OK);
    cr_assert_eq(stream_wait(two, stream_record(one)), OK);
    cr_assert_eq(copy_to_host(two, host.data, x.data, 64), OK);
    device_range_end(device);
    cr_assert_eq(stream_sync(two), OK);
    buffer_free(&host);
    buffer_free(&x);
    stream_destroy(one);
    stream_destroy(two);
}

static const char expected[] =
    "alloc weights 128 alloc host 64 0F0 fill@one record one@one wait one@two copy_to_host@two end "
    "record two@two free host 64 free weights 128 record one@one record two@two ";

Test(observe, sees_everything_in_order)
{
    for (const char *const *name = (const char *const[]){"cpu", "strict", "dry", NULL}; *name != NULL;
         name++) {
        struct notes notes = {.text = ""}, others = {.text = ""};
        struct device *device = open_device(*name);
        cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &notes}), OK);
        cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &others}), OK);
        use(device);
        device_close(device);
        // The fill on the dry device needs no scratch memory, so all devices allocate the same.
        cr_expect_str_eq(notes.text, expected, "%s: %s", *name, notes.text);
        cr_expect_str_eq(others.text, expected, "%s: %s", *name, others.text);
    }
}

Test(observe, without_an_observer_the_table_is_the_devices_own)
{
    struct device *device = open_device("cpu");
    cr_assert_eq(device->ops, device_at(0)->ops);
    use(device);
    cr_assert_eq(device->ops, device_at(0)->ops);
    device_close(device);
}

Test(observe, an_observed_dry_device_still_plans)
{
    struct notes notes = {.text = ""};
    struct device *device = open_device("dry");
    struct buffer x = {0};
    cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &notes}), OK);
    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, 1000, &x), OK);
    cr_assert_geq(device_planned_bytes(device), 1000);
    buffer_free(&x);
    device_close(device);
}

/* Counts observations with a time. */
static void count_times(void *context, const struct observation *seen)
{
    *(int *)context += seen->at_ns > 0;
}

/* The clock is read only if an observer requests the time. */
Test(observe, the_time_is_optional)
{
    for (int others = 0; others < 2; others++) {
        int times = 0, other_times = 0;
        struct device *device = open_device("dry");
        cr_assert_eq(
            device_observe(device,
                           (struct observer){.notify = count_times, .context = &times, .ignores_time = true}),
            OK);
        if (others > 0)
            cr_assert_eq(
                device_observe(device, (struct observer){.notify = count_times, .context = &other_times}),
                OK);
        use(device);
        device_close(device);
        cr_expect((times > 0) == (others > 0) && other_times == times, "%d and %d", times, other_times);
    }
}

/* An observer that requests it is notified of an op again when it has been enqueued; others are not. */
Test(observe, ops_are_reported_when_they_are_enqueued)
{
    struct notes before = {.text = ""}, both = {.text = ""};
    struct device *device = open_device("strict");
    cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &before}), OK);
    cr_assert_eq(device_observe(device, (struct observer){note, &both, .sees_enqueued = true}), OK);
    use(device);
    device_close(device);
    cr_expect_str_eq(before.text, expected);
    cr_expect_str_eq(both.text,
                     "alloc weights 128 alloc host 64 0F0 fill@one fill@one record one@one wait "
                     "one@two wait one@two copy_to_host@two copy_to_host@two end record two@two free host 64 "
                     "free weights 128 record one@one record two@two ");
}

Test(observe, the_list_is_bounded)
{
    struct notes notes = {.text = ""};
    struct device *device = open_device("cpu");
    for (int i = 0; i < OBSERVERS; i++)
        cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &notes}), OK);
    cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &notes}), BAD_ARGUMENT);
    cr_assert_str_eq(fail_text(), "there are 6 observers already");
    device_close(device);
}

/* A failure is reported with the reason of the device. */
Test(observe, failed_allocations_are_not_recorded)
{
    struct notes notes = {.text = ""};
    struct device *device = open_device("dry");
    struct buffer x = {0};
    cr_assert_eq(device_observe(device, (struct observer){.notify = note, .context = &notes}), OK);
    cr_assert_eq(buffer_alloc(device, PART_WEIGHTS, (size_t)1 << 62, &x), NO_MEMORY);
    cr_assert_str_eq(notes.text, "");
    device_close(device);
}
