// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor_judge.h"

#include "base/clock.h"
#include "base/memory.h"
#include "parallel/launcher.h"
#include "trainer/progress/control/control_view.h"
#include "trainer/progress/hang.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/hang_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double settle_s = 0.5;          // without any progress: every rank that will wait does so by now
static const double settle_max_s = 1.0;      // then the report is made in any case
static const double settle_gone_s = 0.2;     // if a process is lost
static const double start_timeout_s = 600.0; // automatic: until the first step is complete
static const double contact_timeout_s = 30.0; // until the first message of another node
static const double resumed_s = 1.5;          // without reports after a suspension
static const double connect_least_s = 60.0;   // at least, for processes to connect
static const double others_s = 5.0;           // after start_timeout_s: for another node to report its own
static const double nanosecond = 1e-9;
enum { TIMES_LONGEST = 10 };

/* Whether the process of an active rank is gone. */
static bool is_lost(const struct monitor *m, const struct watched *w)
{
    for (int p = 0; p < page_processes(m->page); p++)
        if (m->gone[p] && atomic_load(&page_process(m->page, p)->id) == w->head.process)
            return watched_is_active(w);
    return false;
}

/* Whether this monitor knows all ranks of the job. Those of other nodes are unknown until the nodes are
 * connected. */
static bool knows_all(const struct monitor *m)
{
    int count = control_ranks(m->control);
    for (int s = 0; s < page_slots(m->page); s++)
        count += m->watched[s].head.state != PROGRESS_NONE;
    return m->config.launcher == NULL || count >= m->config.launcher->size;
}

static double timeout_s(const struct monitor *m)
{
    int64_t longest_ns = control_summarize(m->control).longest_ns;
    for (int s = 0; s < page_slots(m->page); s++)
        if (m->watched[s].head.longest_ns > longest_ns)
            longest_ns = m->watched[s].head.longest_ns;
    if (!m->config.automatic || m->config.timeout_s <= 0.0)
        return m->config.timeout_s;
    if (longest_ns == 0)
        return fmax(start_timeout_s, m->config.timeout_s);
    return fmax(m->config.timeout_s, TIMES_LONGEST * nanosecond * (double)longest_ns);
}

/* ---- judging ---- */

/* Reads the ranks of this node, and optionally those of other nodes, as far as they have answered. */
static void take_snapshot(const struct monitor *m, double limit_s, bool others, struct hang *out)
{
    hang_create(page_slots(m->page) + (others ? control_ranks(m->control) : 0), out);
    out->limit_s = limit_s;
    bool ended;
    out->count = watch_snapshot(m->page, m->watched, m->config.page.node, &ended, out->ranks);
    if (ended)
        control_restart(m->control);
    if (others) {
        control_fill(m->control, &out->ranks[out->count]);
        out->count += control_ranks(m->control);
    }
    hang_sort(out);
    if (m->config.schedule != NULL)
        hang_set_needs(out, m->config.schedule);
}

/* Other nodes of this machine may still be printing their report, or be about to find the same. */
static void await_nodes(void)
{
    enum { NODES_MS = 2000 };
    poll(NULL, 0, NODES_MS);
}

static _Noreturn void report(struct monitor *m, const struct hang *hang, const struct hang_finding *finding)
{
    struct text line = {0}, file = {0};
    if (!monitor_claim_machine(m)) { // another node reports
        await_nodes();
        monitor_end_node(m);
    }
    hang_report(hang, finding, &line);
    if (m->config.run_dir != NULL)
        hang_dump_name(m->config.run_dir, hang, finding, &file);
    const struct hang_rank *culprit = &hang->ranks[finding->culprit];
    print_marked(&(struct failure_mark){culprit->progress.head.who.rank, culprit->node, true}, "%s%s%s",
                 text_chars(&line), file.length > 0 ? "; cuboid hang " : "", text_chars(&file));
    if (file.length > 0)
        hang_dump_in_time(hang, text_chars(&line), text_chars(&file));
    if (control_is_started(m->control) && !control_is_remote(m->control))
        control_end(m->control);
    monitor_end_node(m);
}

/* Whether to report now: when the state has settled, or after a maximum delay. */
static bool is_settled(struct monitor *m, bool gone)
{
    int64_t now_ns = clock_ns(), min_ns = control_summarize(m->control).min_stalled_ns;
    if (m->found_ns == 0)
        m->found_ns = now_ns;
    double since_s = nanosecond * (double)(now_ns - m->found_ns);
    for (int s = 0; s < page_slots(m->page); s++)
        if (watched_is_active(&m->watched[s]) && m->watched[s].stalled_ns < min_ns)
            min_ns = m->watched[s].stalled_ns;
    return gone ? since_s >= settle_gone_s
                : nanosecond * (double)min_ns >= settle_s || since_s >= settle_max_s;
}

/* After messages of other nodes have been read. */
static void restart_after_end(struct monitor *m)
{
    if (control_take_ended(m->control))
        watch_restart(m->page, m->watched);
}

/* Whether the finding may be due to a rank that this monitor does not know: the culprit only waits. Such a
 * rank may be one that is about to be known, or stopped: check_start(). */
static bool is_premature(const struct monitor *m, const struct hang *hang, const struct hang_finding *finding)
{
    const struct hang_rank *culprit = &hang->ranks[finding->culprit];
    return !knows_all(m) && !hang_is_dead(culprit) && culprit->progress.head.who.waiting_for[0] != 0 &&
           culprit->stalled_s < hang->limit_s + contact_timeout_s;
}

static void check_ranks(struct monitor *m)
{
    const struct control_state others = control_summarize(m->control);
    double limit_s = timeout_s(m);
    if (m->resumed_ns > 0 && nanosecond * (double)(clock_ns() - m->resumed_ns) < resumed_s)
        return;
    bool gone = others.lost, late = limit_s > 0.0 && nanosecond * (double)others.max_stalled_ns >= limit_s;
    for (int s = 0; s < page_slots(m->page); s++) {
        const struct watched *w = &m->watched[s];
        gone = gone || is_lost(m, w);
        late =
            late || (limit_s > 0.0 && watched_is_active(w) && nanosecond * (double)w->stalled_ns >= limit_s);
    }
    if (!gone && !late) {
        m->found_ns = 0;
        return;
    }
    struct hang hang = {0};
    struct hang_finding finding = {0};
    if (control_is_started(m->control) && !control_is_remote(m->control))
        control_collect(m->control);
    restart_after_end(m);
    take_snapshot(m, limit_s, true, &hang);
    MUST(hang_find(&hang, &finding));
    if (finding.kind == HANG_NONE || is_premature(m, &hang, &finding))
        m->found_ns = 0;
    else if (is_settled(m, gone) && page_claim_report(m->page))
        report(m, &hang, &finding);
    hang_finding_free(&finding);
    hang_free(&hang);
}

/* Fills m->ranks, which is sent to other nodes. Returns the number of ranks. */
static int fill_ranks(struct monitor *m)
{
    int count = 0;
    for (int s = 0; s < page_slots(m->page); s++)
        if (m->watched[s].head.state != PROGRESS_NONE)
            m->ranks[count++] = (struct control_rank){.head = m->watched[s].head,
                                                      .stalled_ns = m->watched[s].stalled_ns,
                                                      .lost = is_lost(m, &m->watched[s])};
    return count;
}

/* On another node than the first: reports to it, and checks the ranks only if it has not answered yet, or not
 * for the timeout. */
static void report_to_first(struct monitor *m, int64_t passed_ns)
{
    struct hang hang = {0};
    switch (control_report(m->control, m->ranks, fill_ranks(m), passed_ns)) {
    case CONTROL_NOTHING:
        break;
    case CONTROL_EVERYTHING:
        take_snapshot(m, timeout_s(m), false, &hang);
        control_send_all(m->control, &hang);
        hang_free(&hang);
        break;
    case CONTROL_END:
        monitor_end_node(m);
    }
    restart_after_end(m);
    // Before the first contact each node checks its own ranks: the first one may wait for one of them.
    const struct control_node *first = control_first(m->control);
    const double limit_s = timeout_s(m);
    if (first->count == 0 ||
        nanosecond * (double)first->silent_ns > (limit_s > 0.0 ? limit_s : start_timeout_s))
        check_ranks(m);
}

/* ---- starting ---- */

/* Sets out[launcher->size] for the ranks that this monitor knows, and returns their number. */
static int find_connected(const struct monitor *m, bool *out)
{
    int count = 0;
    for (int s = 0; s < page_slots(m->page); s++) {
        const struct progress_head *head = &m->watched[s].head;
        if (head->state == PROGRESS_NONE || head->who.rank < 0 || head->who.rank >= m->config.launcher->size)
            continue;
        out[head->who.rank] = true;
        count++;
    }
    return count;
}

static _Noreturn void report_missing(struct monitor *m, const bool *connected, double waited_s)
{
    const struct monitor_config *config = &m->config;
    struct text line = {0}, to = {0};
    const bool is_first = monitor_claim_machine(m);
    if (page_path(m->page) == NULL)
        text_add(&to, "to this process, which monitors only itself, ");
    else if (config->several_nodes)
        text_add(&to, "to node %s ", config->page.node);
    if (is_first) {
        int first = 0;
        while (first < config->launcher->size - 1 && connected[first])
            first++;
        hang_report_missing(connected, config->launcher->size, text_chars(&to), waited_s, &line);
        print_marked(&(struct failure_mark){.rank = first, .node = "", .ends_all = true}, "cuboid: %s",
                     text_chars(&line));
    }
    if (config->several_nodes) // also the first, to keep its claim
        await_nodes();
    monitor_end_node(m);
}

/* Reports processes that have not connected: those of this node after the timeout, but not before others of
 * the launcher may be late; those of other nodes later, so that their own node reports first. */
static void check_start(struct monitor *m)
{
    const double limit_s = timeout_s(m), waited_s = watch_connecting_s(m->page, m->watched);
    if (m->config.launcher == NULL || limit_s <= 0.0 || waited_s < fmax(limit_s, connect_least_s))
        return;
    AUTO_FREE bool *connected =
        memory_zeroed((size_t)m->config.launcher->size, sizeof *connected, "the ranks that have connected");
    const int count = find_connected(m, connected);
    const bool is_here = count < page_slots(m->page);
    if (count < m->config.launcher->size && (is_here || waited_s >= start_timeout_s + others_s) &&
        page_claim_report(m->page))
        report_missing(m, connected, waited_s);
}

/* ---- ending ---- */

/* Whether a rank has ended, while its process, which has not left yet, is stopped. */
static bool is_stopped_at_end(const struct monitor *m)
{
    for (int s = 0; s < page_slots(m->page); s++)
        for (int p = 0; p < page_processes(m->page) && m->watched[s].head.state == PROGRESS_ENDED; p++) {
            const struct page_process *process = page_process(m->page, p);
            const int id = atomic_load(&process->id);
            if (m->watched[s].head.process == id && !m->gone[p] && atomic_load(&process->leaving) == 0 &&
                process_read_state(id, 0) == PROCESS_IS_STOPPED)
                return true;
        }
    return false;
}

/* At its end the processes of a job wait for each other again, when their ranks make no progress any more. */
static void check_end(struct monitor *m, int64_t passed_ns)
{
    const double limit_s = timeout_s(m);
    struct hang hang = {0};
    struct hang_finding finding = {0};
    m->ending_ns = limit_s > 0.0 && is_stopped_at_end(m) ? m->ending_ns + passed_ns : 0;
    if (m->ending_ns == 0 || nanosecond * (double)m->ending_ns < limit_s)
        return;
    take_snapshot(m, limit_s, false, &hang);
    for (int r = 0; r < hang.count; r++) {
        struct progress_head *head = &hang.ranks[r].progress.head;
        if (head->state != PROGRESS_ENDED || hang.ranks[r].process != PROCESS_IS_STOPPED)
            continue;
        head->state = PROGRESS_ACTIVE;
        hang.ranks[r].stalled_s = nanosecond * (double)m->ending_ns;
        snprintf(head->who.action, sizeof head->who.action, "end");
    }
    MUST(hang_find(&hang, &finding));
    if (finding.kind != HANG_NONE && page_claim_report(m->page))
        report(m, &hang, &finding);
    hang_finding_free(&finding);
    hang_free(&hang);
}

void monitor_judge(struct monitor *m, int64_t passed_ns)
{
    check_end(m, passed_ns);
    if (atomic_load(&m->connected) && !control_is_started(m->control))
        control_start(m->control, &m->address, m->config.page.node);
    if (control_is_remote(m->control)) {
        report_to_first(m, passed_ns);
        return;
    }
    if (control_is_started(m->control))
        control_serve(m->control, m->ranks, fill_ranks(m), passed_ns);
    restart_after_end(m);
    check_ranks(m);
    if (m->found_ns == 0) // a rank that is stopped is named first
        check_start(m);
}
