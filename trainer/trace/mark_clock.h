// SPDX-License-Identifier: Apache-2.0
/* Converts marks of time in the streams of a device to the host's clock. The two clocks are compared once, so
 * differences of converted times are those of the device's clock. */
#pragma once

#include "kernels/device.h"

enum { MARK_CLOCK_TRIES = 8 };

struct mark_clock {
    struct time_marks *marks; // [MARK_CLOCK_TRIES]
    double first_s;           // time of the first one on the host's clock
};

/* Compares the clocks: waits for the stream several times. */
MUST_USE enum status mark_clock_create(struct stream *stream, struct mark_clock *out);
void mark_clock_destroy(struct mark_clock *clock); // accepts {0}

/* Seconds on the host's clock; NAN if the mark is not set or not passed. */
double mark_clock_s(const struct mark_clock *clock, const struct time_marks *marks, int index);
