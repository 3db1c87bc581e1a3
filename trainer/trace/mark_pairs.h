// SPDX-License-Identifier: Apache-2.0
/* A growing list of pairs of marks of time (kernels/device.h): the begin and the end of something in a
 * stream. With `count` set to 0 it is filled again without creating marks. */
#pragma once

#include "trainer/trace/mark_clock.h"

/* {0} is empty. */
struct mark_pairs {
    int count;
    int chunks;
    struct time_marks **marks; // [chunks]
};

/* Begins a pair; sets its index in *out. */
MUST_USE enum status mark_pairs_begin(struct mark_pairs *pairs, struct stream *stream, int *out);
MUST_USE enum status mark_pairs_end(const struct mark_pairs *pairs, int index, struct stream *stream);
void mark_pairs_free(struct mark_pairs *pairs); // the streams have been synchronized

/* Seconds from begin to end; NAN if one of them is not passed. */
double mark_pairs_seconds(const struct mark_pairs *pairs, int index);
/* The begin or the end in seconds on the host's clock. */
double mark_pairs_s(const struct mark_pairs *pairs, int index, bool end, const struct mark_clock *host);
