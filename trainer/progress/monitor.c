// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "trainer/progress/monitor_judge.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const double poll_max_s = 0.25, poll_min_s = 0.01; // limits of the poll interval
static const double responsive_s = 0.6;         // a monitor that has polled within this time is alive
static const double finish_report_s = 3.0;      // for another process to finish its report
static const int64_t spent_max_ns = 1500000000; // longest poll, unless the monitor was suspended
static const double open_s = 10.0;              // at least, for another process to open the page
static const double nanosecond = 1e-9;

/* ---- polling ---- */

/* Another process reports. If it does not finish, for example because it was stopped, the node is ended
 * without it. */
static void await_report(struct monitor *m)
{
    if (page_is_ending(m->page))
        exit_silently(PEER_LOST);
    if (m->reported_ns == 0)
        m->reported_ns = clock_ns();
    if (nanosecond * (double)(clock_ns() - m->reported_ns) > finish_report_s)
        monitor_end_node(m);
}

static double poll_interval_s(const struct monitor *m)
{
    double look_s = m->config.timeout_s > 0.0 ? m->config.timeout_s / 8.0 : poll_max_s;
    return fmax(poll_min_s, fmin(look_s, poll_max_s));
}

static void *watch(void *argument)
{
    struct monitor *m = argument;
    const int between_ms = (int)(1000.0 * poll_interval_s(m));
    const nfds_t files = 1 + (nfds_t)page_processes(m->page);
    int64_t last_ns = clock_ns(), spent_ns = 0;
    for (;;) {
        int ready = poll(m->files, files, between_ms);
        if (ready > 0 && m->files[0].revents != 0)
            return NULL;
        int64_t now_ns = clock_ns(), max_ns = between_ms * INT64_C(1000000) + spent_ns;
        int64_t passed_ns = now_ns - last_ns < max_ns ? now_ns - last_ns : max_ns;
        monitor_watch_processes(m);
        if (watch_poll(m->page, passed_ns, m->watched))
            control_restart(m->control);
        monitor_heartbeat(m);
        if (nanosecond * (double)(now_ns - last_ns - max_ns) > responsive_s)
            m->resumed_ns = now_ns;
        last_ns = now_ns;
        if (page_is_reported(m->page))
            await_report(m);
        else if (atomic_load(&page_process(m->page, page_own_index(m->page))->leaving) == 0 &&
                 monitor_is_primary(m))
            monitor_judge(m, passed_ns);
        monitor_heartbeat(m);
        spent_ns = clock_ns() - now_ns; // waiting for other nodes
        spent_ns = spent_ns < spent_max_ns ? spent_ns : spent_max_ns;
    }
}

/* ---- starting and stopping ---- */

/* Opens the shared page; if that fails, a private one. A process that is stopped while it opens the page
 * blocks the others, which end after the timeout. */
static enum status open_page(struct monitor *m)
{
    const double wait_s = fmax(m->config.timeout_s, open_s), until_s = clock_s() + wait_s;
    enum status status = page_open(&m->config.page, &m->page);
    while (status == PEER_LOST && clock_s() < until_s)
        status = page_open(&m->config.page, &m->page);
    if (status == OK || m->config.page.job == NULL)
        return status;
    if (status == PEER_LOST && m->config.timeout_s > 0.0) {
        if (monitor_claim_machine(m))
            print_marked(&(struct failure_mark){.rank = -1, .node = "", .ends_all = true},
                         "cuboid: a process has not connected after %.0f s: %s; is it stopped?", wait_s,
                         fail_text());
        exit_silently(PEER_LOST);
    }
    print_line(stderr, "warning: %s: this process monitors only its own ranks", fail_text());
    m->config.page.job = NULL;
    return page_open(&m->config.page, &m->page);
}

static enum status create(struct monitor *m)
{
    TRY(open_page(m));
    size_t slots = (size_t)page_slots(m->page), processes = (size_t)page_processes(m->page);
    static const char what[] = "the monitor of ranks";
    m->watched = memory_zeroed(slots, sizeof *m->watched, what);
    m->files = memory_zeroed(1 + processes, sizeof *m->files, what);
    m->gone = memory_zeroed(processes, sizeof *m->gone, what);
    m->ranks = memory_zeroed(slots, sizeof *m->ranks, what);
    m->stragglers = memory_zeroed(slots, sizeof *m->stragglers, what);
    m->writers = memory_zeroed(m->config.page.job != NULL ? 1 : slots, sizeof *m->writers, what);
    for (size_t p = 0; p < processes; p++)
        m->files[1 + p].fd = -1;
    m->wake = eventfd(0, EFD_CLOEXEC);
    if (m->wake < 0)
        return fail(NO_MEMORY, "cannot start the monitor: %s", strerror(errno));
    m->files[0] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    if (m->config.page.job == NULL || !m->config.several_nodes)
        return OK;
    TRY(control_open(m->config.several_hosts, &m->control));
    atomic_store(&page_process(m->page, page_own_index(m->page))->port, control_port(m->control));
    return OK;
}

static void destroy(struct monitor *m)
{
    for (int p = 0; m->files != NULL && p < page_processes(m->page); p++)
        if (m->files[1 + p].fd >= 0)
            close(m->files[1 + p].fd);
    if (m->wake >= 0)
        close(m->wake);
    control_close(m->control);
    page_close(m->page);
    free(m->ranks);
    free(m->stragglers);
    free(m->watched);
    free(m->files);
    free(m->gone);
    free(m->writers);
    free(m);
}

enum status monitor_start(const struct monitor_config *config, struct monitor **out)
{
    *out = NULL;
    if (config->timeout_s <= 0.0 && config->page.job == NULL)
        return OK;
    struct monitor *m = memory_zeroed(1, sizeof *m, "a monitor");
    m->config = *config;
    m->wake = -1;
    enum status status = create(m);
    if (status == OK && pthread_create(&m->thread, NULL, watch, m) != 0)
        status = fail(NO_MEMORY, "cannot start the monitor thread");
    if (status == OK)
        *out = m;
    else
        destroy(m);
    return status;
}

void monitor_stop(struct monitor *monitor)
{
    uint64_t one = 1;
    if (monitor == NULL)
        return;
    progress_end(); // this thread may have been a rank
    monitor_set_leaving(monitor);
    CHECK(write(monitor->wake, &one, sizeof one) == (ssize_t)sizeof one);
    pthread_join(monitor->thread, NULL);
    destroy(monitor);
}

void monitor_enter(struct monitor *monitor)
{
    if (monitor == NULL)
        return;
    struct progress_slot *slot = page_claim_slot(monitor->page);
    int index = atomic_fetch_add(&monitor->writers_used, 1);
    CHECK(slot != NULL && index < page_slots(monitor->page));
    progress_begin(&monitor->writers[index], slot);
}

void monitor_leave(struct monitor *monitor)
{
    if (monitor != NULL)
        progress_end();
}

/* ---- stragglers ---- */

/* Reads the times of a step. Returns the number of ranks of this node that have published them. */
static int read_times(struct monitor *m, int64_t step)
{
    int count = 0;
    for (int s = 0; s < page_slots(m->page); s++) {
        struct progress_head head;
        if (!progress_read_head(page_slot(m->page, s), &head) || head.state == PROGRESS_NONE)
            continue;
        struct straggler *rank = &m->stragglers[count++];
        const struct progress_step *times = &head.steps[step % PROGRESS_STEPS];
        if (times->step != step)
            return 0;
        rank->rank = head.who.rank;
        rank->pp = head.who.pp;
        rank->dp = head.who.dp;
        rank->tp = head.who.tp;
        rank->compute_ns = times->compute_ns;
        rank->core = times->core;
    }
    return count;
}

void monitor_step(struct monitor *monitor, int64_t step)
{
    struct progress_head first;
    // Only the rank of the first slot evaluates the times.
    if (monitor == NULL || !progress_read_head(page_slot(monitor->page, 0), &first) ||
        first.who.rank != rank_context()->rank)
        return;
    int count = read_times(monitor, step),
        found = count > 1 ? straggler_step(monitor->stragglers, count) : -1;
    if (found < 0)
        return;
    const struct straggler *rank = &monitor->stragglers[found];
    print_line(
        stderr,
        "straggler: step %lld: rank %d (pp %d dp %d tp %d%s%s) has computed %.0f %% longer than its peers "
        "over the last %d steps",
        (long long)step, rank->rank, rank->pp, rank->dp, rank->tp,
        monitor->config.page.node[0] != 0 ? ", node " : "", monitor->config.page.node, 100.0 * rank->excess,
        STRAGGLER_STEPS);
}

/* ---- several nodes ---- */

enum status monitor_address(struct monitor *monitor, struct control_address *out)
{
    int count = 0;
    *out = (struct control_address){0};
    if (monitor == NULL || monitor->control == NULL)
        return OK;
    for (size_t i = 0; i < sizeof out->secret; i += sizeof(uint64_t)) {
        uint64_t word;
        TRY(random_token(&word));
        memcpy(out->secret + i, &word, sizeof word);
    }
    for (int p = 0; p < page_processes(monitor->page) && count < CONTROL_PORTS; p++) {
        int port = atomic_load(&page_process(monitor->page, p)->port);
        if (port != 0)
            out->ports[count++] = port;
    }
    snprintf(out->node, sizeof out->node, "%s", monitor->config.page.node);
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        out->host[0] = 0;
    return OK;
}

void monitor_connect(struct monitor *monitor, const struct control_address *address)
{
    if (monitor == NULL || monitor->control == NULL || address->ports[0] == 0)
        return;
    monitor->address = *address;
    atomic_store(&monitor->connected, true);
}

void monitor_set_leaving(struct monitor *monitor)
{
    if (monitor != NULL)
        atomic_store(&page_process(monitor->page, page_own_index(monitor->page))->leaving, 1);
}

bool monitor_has_reported(const struct monitor *monitor)
{
    return monitor != NULL && page_is_reported(monitor->page);
}
