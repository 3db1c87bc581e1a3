// SPDX-License-Identifier: Apache-2.0
/* State of each rank of a node in its monitor, updated at each poll. Time without progress is counted in
 * polls (monitor.h). */
#pragma once

#include "trainer/progress/hang.h"
#include "trainer/progress/page.h"

/* A slot of the page. */
struct watched {
    struct progress_head head;
    uint64_t seen;      // head.count at the last poll
    int64_t stalled_ns; // time since the poll that first saw it
    int64_t ran_ns;     // process_ran_ns() then
};

bool watched_is_active(const struct watched *watched);

/* Reads the progress of all ranks into watched[page_slots()]. passed_ns: since the last call. Returns whether
 * one has ended, which restarts the time of all. */
bool watch_poll(const struct page *page, int64_t passed_ns, struct watched *watched);
/* Restarts the time without progress of all ranks: one of another node has ended. */
void watch_restart(const struct page *page, struct watched *watched);

/* The longest time that a rank has been connecting to the others. */
double watch_connecting_s(const struct page *page, const struct watched *watched);

/* Reads all that the ranks have published since, into out[page_slots()]. Returns the number of ranks.
 * *ended: one has ended since. */
int watch_snapshot(const struct page *page, const struct watched *watched, const char *node, bool *ended,
                   struct hang_rank *out);
