// SPDX-License-Identifier: Apache-2.0
/* The rows of a measured timeline besides those of actions: one for each kind of span and stream of a rank.
 *
 *     step                    |step 2                                              |
 *     optimizer                                                    |reduce||update|
 *     reductions (compute)        |all_reduce tp||all_reduce tp|
 *     reductions (buckets)                 |reduce_scatter data||reduce_scatter data|
 *     copies (offload)               |copy_to_host|     |copy_to_device| */
#pragma once

#include "schedules/draw/draw.h"
#include "trainer/trace/event_log.h"

/* {0} is empty. */
struct timeline_rows {
    struct trace_row *list;
    int count;
};

/* Appends the rows of pipeline rank `rank`. Spans without a name are skipped, and those that end before
 * `origin_s`; times become milliseconds since then. */
void timeline_rows_add(struct timeline_rows *rows, int rank, const struct span *spans, int64_t count,
                       double origin_s);
void timeline_rows_free(struct timeline_rows *rows);
