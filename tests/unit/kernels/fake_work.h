// SPDX-License-Identifier: Apache-2.0
/* A fake message whose completion a test controls: it completes once the test, or another fake message,
 * has released it, and then writes its value. A fake that is never released waits forever, so a deadlock
 * becomes a test timeout. */
#pragma once

#include "kernels/device.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <time.h>

struct fake_work {
    struct work work; // first
    int *log;         // where calls are recorded; it must outlive the work
    float *out;       // may be NULL
    float value;
    int polls_needed;
    const bool *needs; // may be NULL: done only when this is true
    bool *started;     // may be NULL: set when this starts
    enum status outcome;
};
enum { FAKE_STARTED, FAKE_POLLED, FAKE_DONE, FAKE_RESTED, FAKE_LOG };

static inline enum status fake_start(struct work *work)
{
    struct fake_work *fake = (struct fake_work *)(void *)work;
    fake->log[FAKE_STARTED]++;
    if (fake->started != NULL)
        *fake->started = true;
    return OK;
}

static inline enum status fake_poll(struct work *work, bool *done)
{
    struct fake_work *fake = (struct fake_work *)(void *)work;
    fake->log[FAKE_POLLED]++;
    if (fake->polls_needed-- > 0 || (fake->needs != NULL && !*fake->needs))
        return OK;
    enum status outcome = fake->outcome;
    if (outcome == OK) {
        if (fake->out != NULL)
            *fake->out = fake->value;
        fake->log[FAKE_DONE]++;
        *done = true;
    }
    free(fake);
    return outcome == OK ? OK : fail(outcome, "the fake message failed");
}

static inline void fake_sleep(struct work *work)
{
    ((struct fake_work *)(void *)work)->log[FAKE_RESTED]++;
    nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
}

/* Submits a copy of `what`, whose first member is filled in. */
static inline enum status fake_submit(struct stream *stream, struct fake_work what)
{
    struct fake_work *fake = malloc(sizeof *fake);
    *fake = what;
    fake->work =
        (struct work){.start = fake_start, .poll = fake_poll, .sleep = fake_sleep, .name = "fake message"};
    return stream_submit_work(stream, &fake->work);
}

/* The awaited message completes only after the second message in the queue of another stream has started, as
 * with a peer that needs that message before it replies. Progressing the awaited stream alone would wait
 * forever. */
static inline void fake_partner_needs_another_stream(struct device *device)
{
    struct stream *awaited = NULL, *other = NULL;
    int log[FAKE_LOG] = {0};
    bool second_started = false;
    float x = 0.0F;
    cr_assert_eq(stream_create(device, "receive", &awaited), OK);
    cr_assert_eq(stream_create(device, "send", &other), OK);
    cr_assert_eq(fake_submit(other, (struct fake_work){.log = log, .polls_needed = 5}), OK);
    cr_assert_eq(fake_submit(other, (struct fake_work){.log = log, .started = &second_started}), OK);
    cr_assert_eq(
        fake_submit(awaited,
                    (struct fake_work){.log = log, .needs = &second_started, .out = &x, .value = 1.0F}),
        OK);
    cr_assert_eq(stream_sync(awaited), OK);
    cr_assert_eq(x, 1.0F);
    stream_destroy(awaited);
    stream_destroy(other);
}
