// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/hang.h"

#include "base/memory.h"
#include "parallel/comm.h"
#include "schedules/schedule.h"

#include <stdlib.h>
#include <string.h>

/* ---- snapshots ---- */

void hang_create(int count, struct hang *out)
{
    *out = (struct hang){
        .count = count,
        .ranks = memory_zeroed((size_t)count + 1, sizeof *out->ranks, "the progress of ranks"),
    };
}

void hang_free(struct hang *hang)
{
    free(hang->ranks);
    *hang = (struct hang){0};
}

static int by_rank(const void *a, const void *b)
{
    const struct hang_rank *x = a, *y = b;
    const int first = x->progress.head.who.rank, second = y->progress.head.who.rank;
    return (first > second) - (first < second);
}

void hang_sort(struct hang *hang)
{
    qsort(hang->ranks, (size_t)hang->count, sizeof *hang->ranks, by_rank);
}

static int rank_of(const struct hang_rank *rank)
{
    return rank->progress.head.who.rank;
}

const struct progress_message *hang_message(const struct hang_rank *rank, int64_t number)
{
    int64_t last = rank->progress.head.messages;
    if (number < 1 || number > last || number + PROGRESS_MESSAGES <= last)
        return NULL;
    return &rank->progress.message[(number - 1) % PROGRESS_MESSAGES];
}

const struct progress_message *hang_awaited(const struct hang_rank *rank)
{
    const struct progress_message *message = hang_message(rank, rank->progress.head.awaited);
    return message != NULL && message->group >= 0 && message->group < PROGRESS_GROUPS ? message : NULL;
}

static const struct progress_group *group_of(const struct hang_rank *rank,
                                             const struct progress_message *message)
{
    return &rank->progress.group[message->group];
}

static bool is_transfer(const struct progress_message *message)
{
    return message->call == CALL_SEND || message->call == CALL_RECEIVE;
}

/* 1RECV_B3 of rank 0 needs the backward pass of stage 2 for microbatch 3: "2I3" or "2B3". */
static void set_needs(struct hang_rank *rank, const struct schedule *schedule)
{
    const struct progress_message *message = hang_awaited(rank);
    const struct scheduled_action waiting =
        message != NULL ? message->scheduled : (struct scheduled_action){0};
    const bool forward = waiting.kind == RECV_ACTIVATION;
    rank->needs[0] = 0;
    if (!waiting.exists || (!forward && waiting.kind != RECV_GRADIENT))
        return;
    const int microbatch = waiting.microbatch, from = forward ? waiting.stage - 1 : waiting.stage + 1;
    if (from < 0 || from >= schedule->stages || microbatch < 0 || microbatch >= schedule->m)
        return;
    const struct action_list *list = &schedule->ranks[schedule_rank(schedule, from, microbatch)];
    for (int i = 0; i < list->count; i++) {
        struct action a = list->actions[i];
        const struct action_traits *traits = action_traits(a.kind);
        char text[ACTION_CHARS];
        if (a.stage != from || a.microbatch != microbatch ||
            !(forward ? traits->forward : traits->backward_input))
            continue;
        action_text(a, text);
        snprintf(rank->needs, sizeof rank->needs, "%.*s", (int)sizeof rank->needs - 1, text);
        return;
    }
}

void hang_set_needs(struct hang *hang, const struct schedule *schedule)
{
    for (int r = 0; r < hang->count; r++)
        set_needs(&hang->ranks[r], schedule);
}

/* ---- edges ---- */

static bool is_active(const struct hang_rank *rank)
{
    return rank->progress.head.state == PROGRESS_ACTIVE;
}

static bool is_gone(const struct hang_rank *rank)
{
    return rank->process == PROCESS_IS_GONE || rank->process == PROCESS_NODE_SILENT;
}

bool hang_is_dead(const struct hang_rank *rank)
{
    return is_gone(rank) || rank->process == PROCESS_IS_STOPPED;
}

/* The host waits for messages after the action that its GPU executes: none of that action is in flight. */
static bool is_behind(const struct hang_rank *rank)
{
    const struct progress_head *head = &rank->progress.head;
    if (head->gpu.current[0] == 0)
        return false;
    for (int64_t n = head->messages; n > 0; n--) {
        const struct progress_message *m = hang_message(rank, n);
        if (m == NULL)
            break;
        if (m->done_ns == 0 && m->step == head->who.step && strcmp(m->action, head->gpu.current) == 0)
            return false;
    }
    return true;
}

static bool is_waiting(const struct hang_rank *rank)
{
    return is_active(rank) && !hang_is_dead(rank) && rank->progress.head.who.waiting_for[0] != 0 &&
           !is_behind(rank);
}

/* Number of calls on a group; -1 if the rank is not a member, or has never called. */
static int64_t calls_of(const struct hang_rank *rank, uint64_t group)
{
    for (int i = 0; i < rank->progress.head.groups && i < PROGRESS_GROUPS; i++)
        if (rank->progress.group[i].id == group)
            return rank->progress.group[i].calls;
    return -1;
}

static bool is_member(const struct hang_rank *rank, const struct progress_group *group)
{
    int64_t from_first = (int64_t)rank_of(rank) - group->first;
    if (group->stride == 0)
        return calls_of(rank, group->id) >= 0;
    return from_first % group->stride == 0 && from_first / group->stride >= 0 &&
           from_first / group->stride < group->size;
}

/* A call on a group by its number. */
static const struct progress_message *call_of(const struct hang_rank *rank, uint64_t group, int64_t number)
{
    for (int64_t n = rank->progress.head.messages; n > 0; n--) {
        const struct progress_message *m = hang_message(rank, n);
        if (m == NULL)
            return NULL;
        if (m->group >= 0 && m->group < PROGRESS_GROUPS && m->number == number &&
            group_of(rank, m)->id == group)
            return m;
    }
    return NULL;
}

static bool same_call(const struct progress_message *a, const struct progress_message *b)
{
    if (is_transfer(a) || is_transfer(b))
        return is_transfer(a) && is_transfer(b) && a->bytes == b->bytes;
    return a->call == b->call &&
           (a->call == CALL_BARRIER || (a->dtype == b->dtype && a->peer == b->peer &&
                                        (a->call == CALL_ALL_TO_ALL || a->bytes == b->bytes)));
}

/* Whether `other` waits for the same message: then neither waits for the other. */
static bool waits_in(const struct hang_rank *other, const struct progress_group *group,
                     const struct progress_message *message)
{
    const struct progress_message *theirs = is_waiting(other) ? hang_awaited(other) : NULL;
    return theirs != NULL && group_of(other, theirs)->id == group->id && theirs->number == message->number &&
           same_call(theirs, message);
}

/* Whether `rank` waits for `other`, a member that it has called. late: only if it has not called yet. */
static bool has_edge(const struct hang_rank *rank, const struct hang_rank *other, bool late)
{
    const struct progress_message *message = hang_awaited(rank);
    const struct progress_group *group = group_of(rank, message);
    if (rank == other || other->progress.head.state == PROGRESS_NONE)
        return false;
    if (is_transfer(message) ? rank_of(other) != message->peer : !is_member(other, group))
        return false;
    // The calls of both ends of a transfer have equal numbers only between two ranks.
    bool numbered = !is_transfer(message) || group->size == 2;
    if (late)
        return numbered && calls_of(other, group->id) < message->number;
    const struct progress_message *theirs = numbered ? call_of(other, group->id, message->number) : NULL;
    if (theirs != NULL && theirs->done_ns > 0 && !hang_is_dead(other))
        return false;
    return !waits_in(other, group, message);
}

/* Lists the indices of the ranks that this one waits for. */
static int edges_of(const struct hang *hang, int index, int *out)
{
    const struct hang_rank *rank = &hang->ranks[index];
    int count = 0;
    if (!is_waiting(rank) || hang_awaited(rank) == NULL)
        return 0;
    for (int late = 1; late >= 0 && count == 0; late--)
        for (int q = 0; q < hang->count; q++)
            if (has_edge(rank, &hang->ranks[q], late))
                out[count++] = q;
    return count;
}

/* The edges of all ranks, found once: a job may have thousands of ranks. */
struct edges {
    int *first;   // [n] the first rank that it waits for; -1: none
    int *begin;   // [n + 2] the ranks that wait for rank q are waiting[begin[q]] .. waiting[begin[q + 1] - 1]
    int *waiting; // in ascending order for each q
    int (*pair)[2]; // every edge, from and to; only while they are found
    int count, capacity;
};

static void edges_free(struct edges *edges)
{
    free(edges->first);
    free(edges->begin);
    free(edges->waiting);
    free(edges->pair);
    *edges = (struct edges){0};
}

/* A file may tell of more ranks than fit. */
static enum status add_pairs(const struct hang *hang, int from, const int *to, int count, struct edges *edges)
{
    const bool fits = count <= INT32_MAX / 2 - edges->count;
    if (!fits || edges->count + count > edges->capacity) {
        const int capacity = fits ? 2 * (edges->count + count) : 0;
        void *grown = fits ? realloc(edges->pair, (size_t)capacity * sizeof *edges->pair) : NULL;
        if (grown == NULL)
            return fail(NO_MEMORY, "no memory to compare %d ranks", hang->count);
        edges->pair = grown;
        edges->capacity = capacity;
    }
    for (int i = 0; i < count; i++, edges->count++) {
        edges->pair[edges->count][0] = from;
        edges->pair[edges->count][1] = to[i];
    }
    return OK;
}

/* Sorts the pairs by the rank that is waited for. */
static void reverse_pairs(const struct hang *hang, struct edges *edges)
{
    edges->waiting = memory_zeroed((size_t)edges->count + 1, sizeof *edges->waiting, "ranks that wait");
    // While the lists are filled, begin[q + 1] is the end of list q so far.
    for (int i = 0; i < edges->count; i++)
        edges->begin[edges->pair[i][1] + 2]++;
    for (int q = 1; q <= hang->count; q++)
        edges->begin[q + 1] += edges->begin[q];
    for (int i = 0; i < edges->count; i++)
        edges->waiting[edges->begin[edges->pair[i][1] + 1]++] = edges->pair[i][0];
}

/* list: [n] scratch. */
static enum status edges_find(const struct hang *hang, int *list, struct edges *out)
{
    const size_t n = (size_t)hang->count + 2;
    *out = (struct edges){.first = memory_zeroed(n, sizeof *out->first, "ranks that wait"),
                          .begin = memory_zeroed(n, sizeof *out->begin, "ranks that wait")};
    for (int r = 0; r < hang->count; r++) {
        const int count = edges_of(hang, r, list);
        out->first[r] = count > 0 ? list[0] : -1;
        TRY(add_pairs(hang, r, list, count, out));
    }
    reverse_pairs(hang, out);
    return OK;
}

/* ---- the culprit ---- */

/* Preference of ranks that wait for none. */
static int grade(const struct hang *hang, int index)
{
    const struct hang_rank *rank = &hang->ranks[index];
    bool stalled = hang->limit_s > 0.0 && rank->stalled_s >= hang->limit_s;
    if (!is_active(rank))
        return 0;
    if (is_gone(rank))
        return 4;
    if (!stalled)
        return 0;
    return hang_is_dead(rank) ? 3 : !is_waiting(rank) ? 2 : hang_awaited(rank) == NULL ? 1 : 0;
}

static int find_culprit(const struct hang *hang)
{
    int found = -1;
    for (int r = 0; r < hang->count; r++) {
        int mine = grade(hang, r), best = found >= 0 ? grade(hang, found) : 0;
        if (mine > best ||
            (mine == best && mine > 0 && hang->ranks[r].stalled_s > hang->ranks[found].stalled_s))
            found = r;
    }
    return found;
}

/* Follows the first edges from each stalled rank, until a cycle or a rank without edges: one that has ended,
 * or whose message does not arrive although the others wait in it, too. Returns that rank, or -1. */
static int find_end(const struct hang *hang, const struct edges *edges, bool *seen, bool *is_cycle)
{
    for (int start = 0; start < hang->count; start++) {
        int at = start;
        if (!is_waiting(&hang->ranks[start]) || hang->ranks[start].stalled_s < hang->limit_s)
            continue;
        memset(seen, 0, (size_t)hang->count * sizeof *seen);
        while (!seen[at] && hang->ranks[at].stalled_s >= hang->limit_s && edges->first[at] >= 0) {
            seen[at] = true;
            at = edges->first[at];
        }
        *is_cycle = seen[at];
        if (seen[at] || !is_active(&hang->ranks[at]) || hang->ranks[at].stalled_s >= hang->limit_s)
            return at;
    }
    return -1;
}

/* ---- calls that differ ---- */

void hang_call_text(const struct progress_message *message, struct text *out)
{
    size_t each = message->dtype < DTYPE_COUNT ? dtype_bytes((enum dtype)message->dtype) : 1;
    text_add(out, "%s", call_name((enum call)message->call));
    if (message->call != CALL_BARRIER && message->dtype < DTYPE_COUNT)
        text_add(out, " %s[%lld]", dtype_name((enum dtype)message->dtype),
                 (long long)(message->bytes / (int64_t)each));
    if (message->call == CALL_BROADCAST && message->peer >= 0)
        text_add(out, " from rank %d", message->peer);
}

void hang_ranks_text(const int *ranks, int count, struct text *out)
{
    text_add(out, count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < count;) {
        int end = i;
        while (end + 1 < count && ranks[end + 1] == ranks[end] + 1)
            end++;
        const char *comma = i > 0 ? ", " : "";
        if (end - i >= 2)
            text_add(out, "%s%d-%d", comma, ranks[i], ranks[end]);
        else
            for (int k = i; k <= end; k++)
                text_add(out, "%s%d", k > 0 ? ", " : "", ranks[k]);
        i = end + 1;
    }
}

static const char *ordinal(int64_t n)
{
    static const char *const endings[] = {"th", "st", "nd", "rd"};
    return n % 100 >= 11 && n % 100 <= 13 ? "th" : n % 10 <= 3 ? endings[n % 10] : "th";
}

/* The call of a rank as the message of the others; ranks with the same call are listed in `same`. */
static int ranks_with(const struct hang *hang, const struct progress_group *group,
                      const struct progress_message *like, int *same)
{
    int count = 0;
    for (int q = 0; q < hang->count; q++) {
        const struct progress_message *theirs = call_of(&hang->ranks[q], group->id, like->number);
        if (theirs != NULL && same_call(theirs, like))
            same[count++] = rank_of(&hang->ranks[q]);
    }
    return count;
}

/* Compares the message that `index` waits for with the calls of the same number. Returns the odd one. */
static int find_mismatch(const struct hang *hang, int index, int *list, struct text *out)
{
    const struct hang_rank *rank = &hang->ranks[index];
    const struct progress_message *mine = is_waiting(rank) ? hang_awaited(rank) : NULL;
    if (mine == NULL)
        return -1;
    const struct progress_group *group = group_of(rank, mine);
    if (is_transfer(mine) && group->size != 2)
        return -1;
    for (int q = 0; q < hang->count; q++) {
        const struct progress_message *theirs = call_of(&hang->ranks[q], group->id, mine->number);
        if (theirs == NULL || same_call(theirs, mine))
            continue;
        // The fewer ranks are the odd ones; of two groups of one size, those of the higher rank.
        bool mine_is_odd = ranks_with(hang, group, mine, list) < ranks_with(hang, group, theirs, list);
        const struct progress_message *odd = mine_is_odd ? mine : theirs, *rest = mine_is_odd ? theirs : mine;
        hang_ranks_text(list, ranks_with(hang, group, odd, list), out);
        text_add(out, " called ");
        hang_call_text(odd, out);
        text_add(out, " as %s %lld%s on %s, ", ranks_with(hang, group, odd, list) == 1 ? "its" : "their",
                 (long long)mine->number, ordinal(mine->number), group->name);
        hang_ranks_text(list, ranks_with(hang, group, rest, list), out);
        text_add(out, " ");
        hang_call_text(rest, out);
        return mine_is_odd ? index : q;
    }
    return -1;
}

/* ---- the finding ---- */

/* For each rank that waits for the culprit, or another one like it, directly or not: breadth first, so that
 * the nearest reason is kept. */
static void set_reasons(const struct hang *hang, const struct edges *edges, bool *seen, int *queue,
                        struct hang_finding *out)
{
    int begin = 0, end = 0;
    memset(seen, 0, (size_t)hang->count * sizeof *seen);
    for (int r = 0; r < hang->count; r++)
        out->waits_for[r] = -1;
    for (int r = 0; r < hang->count; r++) {
        const struct hang_rank *rank = &hang->ranks[r], *first = &hang->ranks[out->culprit];
        bool too = hang_is_dead(first) && rank->process == first->process && is_active(rank);
        if (r != out->culprit && !too)
            continue;
        seen[r] = true;
        queue[end++] = r;
    }
    while (begin < end) {
        int target = queue[begin++];
        for (int i = edges->begin[target]; i < edges->begin[target + 1]; i++) {
            int r = edges->waiting[i];
            if (seen[r])
                continue;
            seen[r] = true;
            out->waits_for[r] = target;
            queue[end++] = r;
        }
    }
}

static void decide(const struct hang *hang, const struct edges *edges, int *list, bool *seen,
                   struct hang_finding *out)
{
    out->culprit = find_culprit(hang);
    if (out->culprit >= 0) {
        out->kind = HANG_CULPRIT;
        return;
    }
    bool is_cycle = false;
    int end = hang->limit_s > 0.0 ? find_end(hang, edges, seen, &is_cycle) : -1;
    if (end < 0)
        return;
    out->kind = is_cycle ? HANG_DEADLOCK : HANG_CULPRIT;
    out->culprit = end;
    for (int r = 0; r < hang->count; r++) {
        int odd = find_mismatch(hang, r, list, &out->mismatch);
        if (odd < 0)
            continue;
        out->kind = HANG_MISMATCH;
        out->culprit = odd;
        return;
    }
}

enum status hang_find(const struct hang *hang, struct hang_finding *out)
{
    size_t n = (size_t)hang->count + 1;
    AUTO(edges) edges = {0};
    AUTO_FREE int *list = memory_zeroed(n, sizeof *list, "ranks that wait");
    AUTO_FREE int *queue = memory_zeroed(n, sizeof *queue, "ranks that wait");
    AUTO_FREE bool *seen = memory_zeroed(n, sizeof *seen, "ranks that wait");
    *out = (struct hang_finding){.culprit = -1};
    TRY(edges_find(hang, list, &edges));
    out->waits_for = memory_zeroed(n, sizeof *out->waits_for, "ranks that wait");
    decide(hang, &edges, list, seen, out);
    if (out->kind != HANG_NONE)
        set_reasons(hang, &edges, seen, queue, out);
    return OK;
}

void hang_finding_free(struct hang_finding *finding)
{
    free(finding->waits_for);
    text_free(&finding->mismatch);
    *finding = (struct hang_finding){.culprit = -1};
}
