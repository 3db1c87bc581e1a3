// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/watch.h"

#include <string.h>

static const double start_least_s = 60.0; // in the action `start`, which connects
static const double nanosecond = 1e-9;

bool watched_is_active(const struct watched *watched)
{
    return watched->head.state == PROGRESS_ACTIVE;
}

double watch_connecting_s(const struct page *page, const struct watched *watched)
{
    int64_t longest_ns = 0;
    for (int s = 0; s < page_slots(page); s++) {
        const struct watched *w = &watched[s];
        if (watched_is_active(w) && strcmp(w->head.who.action, "connect") == 0 && w->stalled_ns > longest_ns)
            longest_ns = w->stalled_ns;
    }
    return nanosecond * (double)longest_ns;
}

void watch_restart(const struct page *page, struct watched *watched)
{
    for (int s = 0; s < page_slots(page); s++)
        watched[s].stalled_ns = 0;
}

/* A process that exits with a message of its own has announced it: its rank has ended, also if it has not
 * published that. */
static void note_leaving(const struct page *page, struct progress_head *head)
{
    for (int p = 0; head->state == PROGRESS_ACTIVE && p < page_processes(page); p++) {
        const struct page_process *process = page_process(page, p);
        if (atomic_load(&process->id) == head->process && atomic_load(&process->leaving) != 0)
            head->state = PROGRESS_ENDED;
    }
}

bool watch_poll(const struct page *page, int64_t passed_ns, struct watched *watched)
{
    bool ended = false;
    for (int s = 0; s < page_slots(page); s++) {
        struct watched *w = &watched[s];
        const bool was_active = watched_is_active(w);
        progress_read_head(page_slot(page, s), &w->head);
        note_leaving(page, &w->head);
        if (w->head.count == w->seen && w->stalled_ns == 0)
            w->ran_ns = process_ran_ns(w->head.process, w->head.thread);
        w->stalled_ns = w->head.count == w->seen ? w->stalled_ns + passed_ns : 0;
        w->seen = w->head.count;
        ended = ended || (was_active && !watched_is_active(w));
    }
    if (ended) // the other ranks may have waited for it
        watch_restart(page, watched);
    return ended;
}

/* Whether a thread that is ready to run got a processor in less than a tenth of the time without progress: on
 * an overloaded machine it may be healthy. One in an endless loop gets its share. */
static bool is_starved(const struct watched *w, const struct hang_rank *rank)
{
    const double least = 0.1;
    const int64_t ran_ns = process_ran_ns(w->head.process, w->head.thread);
    return rank->process == PROCESS_RUNS && ran_ns >= 0 && w->ran_ns >= 0 &&
           (double)(ran_ns - w->ran_ns) < least * (double)w->stalled_ns;
}

/* Whether a rank may still be starting, however short the timeout is: it waits for processes of the launcher,
 * which are late on a busy machine. While it connects, some may not have been started yet. */
static bool is_starting(const struct hang_rank *rank)
{
    const char *action = rank->progress.head.who.action;
    return rank->process != PROCESS_IS_STOPPED &&
           (strcmp(action, "connect") == 0 ||
            (strcmp(action, "start") == 0 && rank->stalled_s < start_least_s));
}

int watch_snapshot(const struct page *page, const struct watched *watched, const char *node, bool *ended,
                   struct hang_rank *out)
{
    int count = 0;
    *ended = false;
    for (int s = 0; s < page_slots(page); s++) {
        struct hang_rank *rank = &out[count];
        progress_read(page_slot(page, s), &rank->progress);
        struct progress_head *head = &rank->progress.head;
        if (head->state == PROGRESS_NONE)
            continue;
        rank->process = process_read_state(head->process, head->thread);
        note_leaving(page, head); // after the state: it announces that before it is gone
        const bool moved = head->count != watched[s].seen;
        *ended = *ended || (watched_is_active(&watched[s]) && head->state != PROGRESS_ACTIVE);
        rank->stalled_s = moved ? 0.0 : nanosecond * (double)watched[s].stalled_ns;
        if (is_starved(&watched[s], rank) || is_starting(rank))
            rank->stalled_s = 0.0;
        snprintf(rank->node, sizeof rank->node, "%s", node != NULL ? node : "");
        count++;
    }
    for (int i = 0; *ended && i < count; i++) // since the last poll: see there
        out[i].stalled_s = 0.0;
    return count;
}
