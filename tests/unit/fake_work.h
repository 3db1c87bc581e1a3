// SPDX-License-Identifier: Apache-2.0
/* A message that a test moves by hand: it is done once the test, or another fake message, has said so, and
 * then writes its value. A fake that is never released sleeps for ever, so a deadlock is a test's timeout. */
#pragma once

#include "kernels/device.h"

#include <stdlib.h>
#include <time.h>

struct fake_work {
    struct work work; // first
    int *log;         // where calls are noted; its owner outlives the work
    float *out;       // may be NULL
    float value;
    int polls_needed;
    const bool *needs; // may be NULL: done only when this is true
    bool *says;        // may be NULL: set when this starts
    enum status outcome;
};
enum { FAKE_STARTED, FAKE_POLLED, FAKE_DONE, FAKE_RESTED, FAKE_LOG };

static inline enum status fake_start(struct work *work)
{
    struct fake_work *fake = (struct fake_work *)(void *)work;
    fake->log[FAKE_STARTED]++;
    if (fake->says != NULL)
        *fake->says = true;
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

static inline void fake_rest(struct work *work)
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
        (struct work){.start = fake_start, .poll = fake_poll, .rest = fake_rest, .name = "fake message"};
    return stream_submit_work(stream, &fake->work);
}
