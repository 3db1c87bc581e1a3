// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang_report.h"

#include "base/memory.h"
#include "parallel/comm.h"

#include <stdlib.h>
#include <string.h>

enum { WHY_CHARS = 160 };

static int rank_of(const struct hang_rank *rank)
{
    return rank->progress.head.who.rank;
}

/* "rank 5 (pp 1 dp 0 tp 1, node b)" */
static void add_rank(const struct hang_rank *rank, struct text *out)
{
    const struct rank_context *who = &rank->progress.head.who;
    text_add(out, "rank %d (pp %d dp %d tp %d%s%s)", who->rank, who->pp, who->dp, who->tp,
             rank->node[0] != 0 ? ", node " : "", rank->node);
}

/* The action that the report names after "stalled in": "1W2", "optimizer". On a GPU, the one that it
 * executes: the host has enqueued later ones. */
static const char *action_of(const struct hang_rank *rank)
{
    const struct progress_head *head = &rank->progress.head;
    const char *action = head->gpu.current[0] != 0 ? head->gpu.current : head->who.action;
    return action[0] != 0 ? action : "start";
}

/* ---- those who wait ---- */

/* Why a rank waits for the one that it was found to wait for. */
static void reason_of(const struct hang *hang, const struct hang_finding *finding, int r, char out[WHY_CHARS])
{
    const struct hang_rank *rank = &hang->ranks[r];
    const struct progress_message *message = hang_awaited(rank);
    int target = finding->waits_for[r];
    if (target != finding->culprit)
        snprintf(out, WHY_CHARS, "rank %d", rank_of(&hang->ranks[target]));
    else if (rank->needs[0] != 0)
        snprintf(out, WHY_CHARS, "its %s", rank->needs);
    else
        snprintf(out, WHY_CHARS, "it in %s",
                 message != NULL ? rank->progress.head.who.waiting_for : "a message");
}

/* Lists the ranks in groups with the same reason: first those that wait for the culprit itself. */
static void add_waiting(const struct hang *hang, const struct hang_finding *finding, struct text *out)
{
    size_t n = (size_t)hang->count;
    AUTO_FREE char(*why)[WHY_CHARS] = memory_zeroed(n + 1, sizeof *why, "the report of a hang");
    AUTO_FREE bool *listed = memory_zeroed(n + 1, sizeof *listed, "the report of a hang");
    AUTO_FREE int *same = memory_zeroed(n + 1, sizeof *same, "the report of a hang");
    for (int r = 0; r < hang->count; r++)
        if (finding->waits_for[r] >= 0)
            reason_of(hang, finding, r, why[r]);
    for (int direct = 1; direct >= 0; direct--)
        for (int r = 0; r < hang->count; r++) {
            int count = 0, target = finding->waits_for[r];
            if (target < 0 || listed[r] || (target == finding->culprit) != (direct == 1))
                continue;
            for (int q = r; q < hang->count; q++) {
                if (finding->waits_for[q] < 0 || listed[q] || strcmp(why[q], why[r]) != 0)
                    continue;
                listed[q] = true;
                same[count++] = rank_of(&hang->ranks[q]);
            }
            text_add(out, "; ");
            hang_ranks_text(same, count, out);
            text_add(out, " %s for %s", count == 1 ? "waits" : "wait", why[r]);
        }
}

/* ---- the culprit ---- */

/* Other ranks that are stopped, gone or silent like the culprit, such as the others of a node. */
static void add_others(const struct hang *hang, const struct hang_finding *finding, struct text *out)
{
    const struct hang_rank *first = &hang->ranks[finding->culprit];
    AUTO_FREE int *others = memory_zeroed((size_t)hang->count + 1, sizeof *others, "the report of a hang");
    int count = 0;
    for (int r = 0; r < hang->count; r++) {
        const struct hang_rank *rank = &hang->ranks[r];
        bool same = rank->process == first->process && rank->progress.head.state == PROGRESS_ACTIVE;
        if (same && hang_is_dead(first) && rank != first)
            others[count++] = rank_of(rank);
    }
    if (count > 0) {
        text_add(out, ", like %s ", count == 1 ? "that of" : "those of");
        hang_ranks_text(others, count, out);
    }
}

/* "its process is stopped (T)". */
static void add_state(const struct hang *hang, const struct hang_finding *finding, struct text *out)
{
    const struct hang_rank *rank = &hang->ranks[finding->culprit];
    const struct progress_head *head = &rank->progress.head;
    if (head->state == PROGRESS_ENDED) {
        text_add(out, ": it has ended");
        return;
    }
    text_add(out, ": %s", process_state_text(rank->process));
    const bool is_busy = head->gpu.current[0] != 0, has_completed = head->gpu.completed[0] != 0;
    if (head->who.waiting_for[0] != 0 && !hang_is_dead(rank) && !is_busy)
        text_add(out, ", and it waits for %s", head->who.waiting_for);
    if (is_busy)
        text_add(out, ", and its GPU executes %s%s%s", head->gpu.current, has_completed ? " after " : "",
                 head->gpu.completed);
    else if (has_completed)
        text_add(out, ", and its GPU has completed %s", head->gpu.completed);
    add_others(hang, finding, out);
}

/* The ranks of a cycle, each with the message that it waits for. */
static void add_cycle(const struct hang *hang, const struct hang_finding *finding, struct text *out)
{
    int at = finding->culprit;
    text_add(out, ": a deadlock");
    for (int i = 0; i < hang->count; i++) {
        const struct hang_rank *rank = &hang->ranks[at];
        const struct progress_message *message = hang_awaited(rank);
        int next = at == finding->culprit ? -1 : finding->waits_for[at];
        text_add(out, "; rank %d in %s waits for %s", rank_of(rank), action_of(rank),
                 rank->progress.head.who.waiting_for);
        if (message != NULL)
            text_add(out, " (its call %lld there)", (long long)message->number);
        for (int r = 0; next < 0 && r < hang->count; r++) // a member of the cycle waits for the culprit
            if (finding->waits_for[r] == at && r != at)
                next = r;
        if (next < 0 || next == finding->culprit)
            return;
        at = next;
    }
}

/* The timeout may be shorter than an action. */
static void add_hint(const struct hang *hang, const struct hang_rank *rank, struct text *out)
{
    const struct progress_head *head = &rank->progress.head;
    if (head->state == PROGRESS_ACTIVE && !hang_is_dead(rank))
        text_add(out, "; if %s is only slow, set resilience.heartbeat_timeout_seconds above %g",
                 action_of(rank), hang->limit_s);
}

void hang_report(const struct hang *hang, const struct hang_finding *finding, struct text *out)
{
    if (finding->kind == HANG_NONE)
        return;
    const struct hang_rank *rank = &hang->ranks[finding->culprit];
    if (rank->progress.head.who.step > 0)
        text_add(out, "step %d: ", rank->progress.head.who.step);
    add_rank(rank, out);
    if (rank->process == PROCESS_IS_GONE)
        text_add(out, " was in %s", action_of(rank));
    else
        text_add(out, " stalled in %s for %.1f s", action_of(rank), rank->stalled_s);
    switch (finding->kind) {
    case HANG_CULPRIT:
        add_state(hang, finding, out);
        break;
    case HANG_MISMATCH:
        text_add(out, ": %s", text_chars(&finding->mismatch));
        break;
    case HANG_DEADLOCK:
        add_cycle(hang, finding, out);
        break;
    case HANG_NONE:
        break;
    }
    add_waiting(hang, finding, out);
    if (finding->kind == HANG_CULPRIT)
        add_hint(hang, rank, out);
}

void hang_report_missing(const bool *connected, int size, const char *to, double waited_s, struct text *out)
{
    AUTO_FREE int *missing = memory_zeroed((size_t)size, sizeof *missing, "the ranks that are missing");
    int count = 0;
    for (int r = 0; r < size; r++)
        if (!connected[r])
            missing[count++] = r;
    text_add(out, "%d of %d processes %s not connected %safter %.0f s: ", count, size,
             count == 1 ? "has" : "have", to, waited_s);
    hang_ranks_text(missing, count, out);
    text_add(out,
             "; see whether they run, or are stopped (state T of ps); if they only start late, set "
             "resilience.heartbeat_timeout_seconds above %.0f",
             waited_s);
}
