// SPDX-License-Identifier: Apache-2.0
/* cuboid hang: explains a flight-recorder dump (trainer/progress/hang_dump.h). */
#include "tools/cli/commands.h"

#include "base/memory.h"
#include "tools/cli/options.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/hang_report.h"

#include <stdlib.h>
#include <string.h>

const char help_hang[] =
    "cuboid hang FILE [--messages N]\n"
    "\n"
    "Explains hang-STEP.json, which a run writes into its folder when it hangs or loses a process: the rank\n"
    "that the others wait for, what each rank does, and the calls of each communicator.\n"
    "\n"
    "  --messages N    also print the last N messages of each rank (at most 256)\n"
    "\n"
    "Exit status: 0 if the file could be read; 2 if not.\n";

/* ---- ranks ---- */

static void print_ranks(const struct hang *hang, const struct hang_finding *finding)
{
    printf("\n%-6s %-16s %-10s %6s %-14s %10s  %-9s %-28s %s\n", "rank", "coordinates", "node", "step",
           "action", "stalled s", "process", "waits for message", "waits for rank");
    for (int r = 0; r < hang->count; r++) {
        const struct hang_rank *rank = &hang->ranks[r];
        const struct rank_context *who = &rank->progress.head.who;
        struct text place = {0}, target = {0};
        text_add(&place, "pp %d dp %d tp %d", who->pp, who->dp, who->tp);
        if (finding->kind != HANG_NONE && finding->waits_for[r] >= 0)
            text_add(&target, "%d", hang->ranks[finding->waits_for[r]].progress.head.who.rank);
        if (finding->kind != HANG_NONE && finding->culprit == r)
            text_add(&target, "%s", target.length > 0 ? ", the others for it" : "the others wait for it");
        bool ended = rank->progress.head.state == PROGRESS_ENDED;
        print_line(stdout, "%-6d %-16s %-10s %6d %-14s %10.1f  %-9s %-28s %s", who->rank, place.chars,
                   rank->node, who->step, who->action, rank->stalled_s,
                   ended ? "ended" : process_state_name(rank->process), who->waiting_for,
                   text_chars(&target));
        text_free(&place);
        text_free(&target);
    }
}

/* ---- communicators ---- */

static const struct progress_group *group_of(const struct hang_rank *rank, uint64_t id)
{
    for (int g = 0; g < rank->progress.head.groups; g++)
        if (rank->progress.group[g].id == id)
            return &rank->progress.group[g];
    return NULL;
}

/* Whether the group was printed for an earlier rank. */
static bool is_printed(const struct hang *hang, int before, uint64_t id)
{
    for (int r = 0; r < before; r++)
        if (group_of(&hang->ranks[r], id) != NULL)
            return true;
    return false;
}

/* Lists the ranks of a group by their number of calls. */
static void add_calls(const struct hang *hang, uint64_t id, struct text *out, bool *differ)
{
    size_t n = (size_t)hang->count;
    bool *listed = memory_zeroed(n + 1, sizeof *listed, "the ranks of a hang");
    int *same = memory_zeroed(n + 1, sizeof *same, "the ranks of a hang");
    *differ = false;
    for (int r = 0; r < hang->count; r++) {
        const struct progress_group *mine = group_of(&hang->ranks[r], id);
        int count = 0;
        if (mine == NULL || listed[r])
            continue;
        for (int q = r; q < hang->count; q++) {
            const struct progress_group *theirs = group_of(&hang->ranks[q], id);
            if (theirs == NULL || theirs->calls != mine->calls)
                continue;
            listed[q] = true;
            same[count++] = hang->ranks[q].progress.head.who.rank;
        }
        *differ = *differ || out->length > 0;
        text_add(out, "%s%lld by ", out->length > 0 ? ", " : "", (long long)mine->calls);
        hang_ranks_text(same, count, out);
    }
    free(listed);
    free(same);
}

static void print_groups(const struct hang *hang)
{
    bool any = false;
    for (int r = 0; r < hang->count; r++)
        any = any || hang->ranks[r].progress.head.groups > 0;
    printf("\ncalls of each communicator%s\n", any ? "" : ": the file has none");
    if (!any)
        return;
    for (int r = 0; r < hang->count; r++)
        for (int g = 0; g < hang->ranks[r].progress.head.groups; g++) {
            const struct progress_group *group = &hang->ranks[r].progress.group[g];
            struct text calls = {0};
            bool differ;
            if (is_printed(hang, r, group->id))
                continue;
            add_calls(hang, group->id, &calls, &differ);
            print_line(stdout, "%s %-16s %s", differ ? "*" : " ", group->name, text_chars(&calls));
            text_free(&calls);
        }
    printf("* not the same on all ranks\n");
}

/* ---- messages ---- */

/* Appends a time relative to the last progress of the rank, or `missing`. */
static void add_time(const struct hang_rank *rank, int64_t at_ns, const char *missing, struct text *out)
{
    if (at_ns == 0)
        text_add(out, "%12s", missing);
    else
        text_add(out, "%12.6f", 1e-9 * (double)(at_ns - rank->progress.head.since_ns));
}

/* A message that the file contains; NULL if it does not. */
static const struct progress_message *message_of(const struct hang_rank *rank, int64_t n)
{
    const struct progress_message *m = hang_message(rank, n);
    return m != NULL && m->number > 0 ? m : NULL;
}

static void print_messages(const struct hang_rank *rank, int64_t most)
{
    int64_t last = rank->progress.head.messages, first = last - most + 1 > 1 ? last - most + 1 : 1;
    while (first <= last && message_of(rank, first) == NULL)
        first++;
    printf("\nrank %d: the last messages%s\n", rank->progress.head.who.rank,
           first <= last ? "; seconds after the last progress of the rank"
                         : ": the file has none (a node that did not answer has sent none)");
    if (first > last)
        return;
    printf("%-18s %8s %-32s %5s %-18s %12s %12s %12s\n", "communicator", "number", "call", "peer", "action",
           "queued", "started", "done");
    for (int64_t n = first; n <= last; n++) {
        const struct progress_message *m = message_of(rank, n);
        struct text call = {0}, times = {0}, peer = {0};
        if (m == NULL)
            continue;
        hang_call_text(m, &call);
        text_add(&peer, m->peer >= 0 ? "%d" : "-", m->peer);
        add_time(rank, m->queued_ns, "-", &times);
        text_add(&times, " ");
        add_time(rank, m->started_ns, m->done_ns > 0 ? "-" : "no", &times);
        text_add(&times, " ");
        add_time(rank, m->done_ns, "no", &times);
        print_line(stdout, "%-18s %8lld %-32s %5s %-18s %s",
                   m->group >= 0 ? rank->progress.group[m->group].name : "-", (long long)m->number,
                   call.chars, peer.chars, m->action, times.chars);
        text_free(&call);
        text_free(&times);
        text_free(&peer);
    }
}

/* ---- the command ---- */

static int explain(const char *path, int64_t messages)
{
    struct hang hang = {0};
    struct hang_finding finding = {.culprit = -1};
    struct text report = {0}, found = {0};
    enum status status = hang_dump_read(path, &hang, &report);
    if (status == OK)
        status = hang_find(&hang, &finding);
    if (status == OK) {
        hang_report(&hang, &finding, &found);
        print_line(stdout, "%s", report.length > 0 ? report.chars : text_chars(&found));
        print_ranks(&hang, &finding);
        print_groups(&hang);
        for (int r = 0; messages > 0 && r < hang.count; r++)
            print_messages(&hang.ranks[r], messages);
    } else {
        print_line(stderr, "cuboid hang: %s", fail_text());
    }
    hang_finding_free(&finding);
    hang_free(&hang);
    text_free(&report);
    text_free(&found);
    return status == OK ? 0 : 2;
}

int cmd_hang(int argc, char **argv)
{
    int64_t messages = 0;
    const struct option options[] = {{.name = "--messages",
                                      .type = OPTION_INTEGER,
                                      .value = &messages,
                                      .low = 0,
                                      .high = PROGRESS_MESSAGES}};
    const char *path = NULL;
    int count = 0;
    const char **files = memory_zeroed((size_t)argc + 1, sizeof *files, "the arguments");
    enum status status = options_parse(argc, argv, options, 1, files, &count);
    if (status == OK && count != 1)
        status = fail(BAD_USAGE, "hang: %d files given; use cuboid hang RUN_DIR/hang-STEP.json", count);
    path = count > 0 ? files[0] : NULL;
    free(files);
    if (status == OK)
        return explain(path, messages);
    print_line(stderr, "cuboid: %s", fail_text());
    return status_exit(status);
}
