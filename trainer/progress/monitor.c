// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor.h"

#include "base/clock.h"
#include "base/file.h"
#include "parallel/launcher.h"
#include "trainer/progress/control_view.h"
#include "trainer/progress/hang.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/missing.h"
#include "trainer/progress/straggler.h"
#include "trainer/progress/watch.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double poll_max_s = 0.25, poll_min_s = 0.01; // limits of the poll interval
static const double responsive_s = 0.6;      // a monitor that has polled within this time is alive
static const double alive_s = 3.0;           // within this time: unless its process is stopped
static const double settle_s = 0.5;          // without any progress: every rank that will wait does so by now
static const double settle_max_s = 1.0;      // then the report is made in any case
static const double settle_gone_s = 0.2;     // if a process is lost
static const double finish_report_s = 3.0;   // for another process to finish its report
static const double start_timeout_s = 600.0; // automatic: until the first step is complete
static const int64_t spent_max_ns = 1500000000; // longest poll, unless the monitor was suspended
static const double contact_timeout_s = 30.0;   // until the first message of another node
static const double resumed_s = 1.5;            // without reports after a suspension
static const double connect_least_s = 60.0;     // for processes that are not stopped to connect
static const double others_s = 5.0;             // after start_timeout_s: for another node to report its own
static const double nanosecond = 1e-9;
enum { TIMES_LONGEST = 10 };

struct monitor {
    struct monitor_config config;
    struct page *page;
    struct watched *watched;         // [slots]
    struct pollfd *files;            // [1 + processes]: wake, and one for each other process
    bool *gone;                      // [processes]
    struct progress_writer *writers; // [slots], of the ranks of this process
    atomic_int writers_used;
    struct straggler *stragglers; // [slots]
    pthread_t thread;
    int wake;
    struct control *control;
    struct control_address address; // written before `connected`
    atomic_bool connected;
    struct control_rank *ranks; // [slots], as reported to other nodes
    int64_t found_ns;           // when the current finding was made; 0: none
    int64_t reported_ns;
    int64_t resumed_ns; // the end of the last suspension of this process
    double scanned_s;   // when missing processes were last looked for: time in the action `connect`
    bool stopped;       // one of them was stopped then
};

/* ---- polling ---- */

/* Opens a file that becomes readable when the process exits. */
static int open_process(int process)
{
    return (int)syscall(SYS_pidfd_open, process, 0);
}

static void watch_processes(struct monitor *m)
{
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        struct pollfd *file = &m->files[1 + p];
        int id = atomic_load(&process->id);
        if (id == 0 || p == page_own_index(m->page) || m->gone[p])
            continue;
        if (file->fd < 0)
            *file = (struct pollfd){.fd = open_process(id), .events = POLLIN};
        // The process has exited already, or the kernel has no pidfd_open().
        m->gone[p] = (file->revents & POLLIN) != 0 ||
                     (file->fd < 0 && process_is_gone(id, atomic_load(&process->started)));
        if (m->gone[p] && file->fd >= 0) {
            close(file->fd);
            file->fd = -1;
        }
    }
}

static void heartbeat(const struct monitor *m)
{
    atomic_store(&page_process(m->page, page_own_index(m->page))->heartbeat_ns, clock_ns());
}

/* Whether an active rank of a process that is gone has not announced its end. */
static bool is_lost(const struct monitor *m, const struct watched *w)
{
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        if (m->gone[p] && atomic_load(&process->id) == w->head.process)
            return watched_is_active(w) && atomic_load(&process->leaving) == 0;
    }
    return false;
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

/* A monitor that has not polled for a while may be waiting for other nodes, or for a CPU. */
static bool is_alive(const struct page_process *process)
{
    double since_s = nanosecond * (double)(clock_ns() - atomic_load(&process->heartbeat_ns));
    return since_s < responsive_s ||
           (since_s < alive_s && process_read_state(atomic_load(&process->id), 0) != PROCESS_IS_STOPPED);
}

/* Whether this process checks the ranks and reports: it is the first whose monitor is alive. */
static bool is_primary(const struct monitor *m)
{
    for (int p = 0; p < page_own_index(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        if (!m->gone[p] && atomic_load(&process->leaving) == 0 && atomic_load(&process->id) != 0 &&
            is_alive(process))
            return false;
    }
    return true;
}

/* ---- judging ---- */

/* Reads the ranks of this node, and optionally those of other nodes, as far as they have answered. */
static enum status take_snapshot(const struct monitor *m, double limit_s, bool others, struct hang *out)
{
    TRY(hang_create(page_slots(m->page) + (others ? control_ranks(m->control) : 0), out));
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
    return OK;
}

/* Sends a signal to all other processes of the node that have not exited. */
static void signal_others(const struct monitor *m, int number)
{
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        int id = atomic_load(&process->id);
        if (p != page_own_index(m->page) && id != 0 && !m->gone[p] &&
            !process_is_gone(id, atomic_load(&process->started)))
            kill(id, number);
    }
}

/* Ends the other processes of the node: stopped ones are continued, so that they can exit; the rest is
 * killed. */
static void end_others(struct monitor *m)
{
    enum { POLLS = 100, POLL_MS = 10 };
    page_remove(m->page);
    page_end(m->page);
    signal_others(m, SIGCONT);
    for (int i = 0, left = 1; i < POLLS && left > 0; i++) {
        left = 0;
        poll(NULL, 0, POLL_MS);
        for (int p = 0; p < page_processes(m->page); p++) {
            if (m->files[1 + p].fd >= 0)
                poll(&m->files[1 + p], 1, 0);
            left += p != page_own_index(m->page) && !m->gone[p] &&
                    atomic_load(&page_process(m->page, p)->id) != 0;
        }
        watch_processes(m);
    }
    signal_others(m, SIGKILL);
}

static _Noreturn void end_node(struct monitor *m)
{
    end_others(m);
    exit_silently(PEER_LOST);
}

static _Noreturn void report(struct monitor *m, const struct hang *hang, const struct hang_finding *finding)
{
    struct text line = {0}, file = {0};
    hang_report(hang, finding, &line);
    if (m->config.run_dir != NULL)
        hang_dump_name(m->config.run_dir, hang, finding, &file);
    print_line(stderr, "%s%s%s", text_chars(&line), file.length > 0 ? "; cuboid hang " : "",
               text_chars(&file));
    if (file.length > 0)
        hang_dump_in_time(hang, text_chars(&line), text_chars(&file));
    if (control_is_started(m->control) && !control_is_remote(m->control))
        control_end(m->control);
    end_node(m);
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
    MUST(take_snapshot(m, limit_s, true, &hang));
    MUST(hang_find(&hang, &finding));
    if (finding.kind == HANG_NONE)
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

/* On another node than the first: reports to it, and checks the ranks only if it does not answer for the
 * timeout. */
static void report_to_first(struct monitor *m, int64_t passed_ns)
{
    struct hang hang = {0};
    switch (control_report(m->control, m->ranks, fill_ranks(m), passed_ns)) {
    case CONTROL_NOTHING:
        break;
    case CONTROL_EVERYTHING:
        MUST(take_snapshot(m, timeout_s(m), false, &hang));
        control_send_all(m->control, &hang);
        hang_free(&hang);
        break;
    case CONTROL_END:
        end_node(m);
    }
    restart_after_end(m);
    // Before the first contact the first node may be slow to start.
    const struct control_node *first = control_first(m->control);
    double limit_s = first->count > 0 ? timeout_s(m) : fmax(timeout_s(m), contact_timeout_s);
    if (nanosecond * (double)first->silent_ns > (limit_s > 0.0 ? limit_s : start_timeout_s))
        check_ranks(m);
}

/* ---- starting ---- */

static _Noreturn void report_missing(struct monitor *m, const struct missing *missing, double waited_s)
{
    enum { NODES_MS = 2000 };
    struct text line = {0};
    const bool is_first = missing_claim(m->config.launcher);
    const bool is_mpirun = strcmp(m->config.launcher->name, "mpirun") == 0;
    if (is_first) {
        missing_report(missing, waited_s, &line);
        print_line(stderr, "cuboid: %s", text_chars(&line));
    }
    // Other nodes may be on this machine, and are looking for it, too; mpirun ends them.
    if (m->config.several_hosts && !(is_first && is_mpirun))
        poll(NULL, 0, NODES_MS);
    missing_kill(missing, m->config.launcher); // first: when the others have ended, this process may exit
    end_others(m);
    exit_silently(PEER_LOST);
}

/* Whether processes that have not started are reported: one that is stopped after the timeout, in two looks;
 * others may only be late. */
static void check_start(struct monitor *m)
{
    const double limit_s = timeout_s(m), between_s = 1.0, waited_s = watch_connecting_s(m->page, m->watched);
    struct missing missing;
    if (waited_s == 0.0)
        m->scanned_s = 0.0;
    if (m->config.launcher == NULL || limit_s <= 0.0 || waited_s < limit_s ||
        waited_s < m->scanned_s + between_s)
        return;
    m->scanned_s = waited_s;
    MUST(missing_find(m->config.launcher, m->config.several_hosts, &missing));
    const bool stopped = missing_is_stopped(&missing), too = stopped && m->stopped;
    const double last_s =
        missing.known ? fmax(limit_s, connect_least_s) : fmax(limit_s, start_timeout_s) + others_s;
    m->stopped = stopped;
    if ((too || waited_s >= last_s) && page_claim_report(m->page))
        report_missing(m, &missing, waited_s);
    missing_free(&missing);
}

static void serve_or_report(struct monitor *m, int64_t passed_ns)
{
    check_start(m);
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
}

/* Another process reports. If it does not finish, for example because it was stopped, the node is ended
 * without it. */
static void await_report(struct monitor *m)
{
    if (page_is_ending(m->page))
        exit_silently(PEER_LOST);
    if (m->reported_ns == 0)
        m->reported_ns = clock_ns();
    if (nanosecond * (double)(clock_ns() - m->reported_ns) > finish_report_s)
        end_node(m);
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
        watch_processes(m);
        if (watch_poll(m->page, passed_ns, m->watched))
            control_restart(m->control);
        heartbeat(m);
        if (nanosecond * (double)(now_ns - last_ns - max_ns) > responsive_s)
            m->resumed_ns = now_ns;
        last_ns = now_ns;
        if (page_is_reported(m->page))
            await_report(m);
        else if (is_primary(m))
            serve_or_report(m, passed_ns);
        heartbeat(m);
        spent_ns = clock_ns() - now_ns; // waiting for other nodes
        spent_ns = spent_ns < spent_max_ns ? spent_ns : spent_max_ns;
    }
}

/* ---- starting and stopping ---- */

/* Opens the shared page; if that fails, a private one. */
static enum status open_page(struct monitor *m)
{
    if (m->config.page.job == NULL)
        return page_open(&m->config.page, &m->page);
    if (page_open(&m->config.page, &m->page) == OK)
        return OK;
    print_line(stderr, "warning: %s: this process monitors only its own ranks", fail_text());
    m->config.page.job = NULL;
    return page_open(&m->config.page, &m->page);
}

static enum status create(struct monitor *m)
{
    TRY(open_page(m));
    size_t slots = (size_t)page_slots(m->page), processes = (size_t)page_processes(m->page);
    m->watched = calloc(slots, sizeof *m->watched);
    m->files = calloc(1 + processes, sizeof *m->files);
    m->gone = calloc(processes, sizeof *m->gone);
    m->ranks = calloc(slots, sizeof *m->ranks);
    m->stragglers = calloc(slots, sizeof *m->stragglers);
    m->writers = calloc(m->config.page.job != NULL ? 1 : slots, sizeof *m->writers);
    if (m->watched == NULL || m->files == NULL || m->gone == NULL || m->ranks == NULL ||
        m->stragglers == NULL || m->writers == NULL)
        return fail(NO_MEMORY, "no memory for a monitor of %zu ranks", slots);
    for (size_t p = 0; p < processes; p++)
        m->files[1 + p].fd = -1;
    m->wake = eventfd(0, EFD_CLOEXEC);
    if (m->wake < 0)
        return fail(NO_MEMORY, "cannot start the monitor: %s", strerror(errno));
    m->files[0] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    if (m->config.page.job == NULL)
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
    struct monitor *m = calloc(1, sizeof *m);
    if (m == NULL)
        return fail(NO_MEMORY, "no memory for a monitor");
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

void monitor_stop(struct monitor *m)
{
    uint64_t one = 1;
    if (m == NULL)
        return;
    progress_end(); // this thread may have been a rank
    atomic_store(monitor_leaving(m), 1);
    CHECK(write(m->wake, &one, sizeof one) == (ssize_t)sizeof one);
    pthread_join(m->thread, NULL);
    destroy(m);
}

void monitor_enter(struct monitor *m)
{
    if (m == NULL)
        return;
    struct progress_slot *slot = page_claim_slot(m->page);
    int index = atomic_fetch_add(&m->writers_used, 1);
    CHECK(slot != NULL && index < page_slots(m->page));
    progress_begin(&m->writers[index], slot);
}

void monitor_leave(struct monitor *m)
{
    if (m != NULL)
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

void monitor_step(struct monitor *m, int64_t step)
{
    struct progress_head first;
    // Only the rank of the first slot evaluates the times.
    if (m == NULL || !progress_read_head(page_slot(m->page, 0), &first) ||
        first.who.rank != rank_context()->rank)
        return;
    int count = read_times(m, step), found = count > 1 ? straggler_step(m->stragglers, count) : -1;
    if (found < 0)
        return;
    const struct straggler *rank = &m->stragglers[found];
    print_line(
        stderr,
        "straggler: step %lld: rank %d (pp %d dp %d tp %d%s%s) has computed %.0f %% longer than its peers "
        "over the last %d steps",
        (long long)step, rank->rank, rank->pp, rank->dp, rank->tp,
        m->config.page.node[0] != 0 ? ", node " : "", m->config.page.node, 100.0 * rank->excess,
        STRAGGLER_STEPS);
}

/* ---- several nodes ---- */

enum status monitor_address(struct monitor *m, struct control_address *out)
{
    int count = 0;
    *out = (struct control_address){0};
    if (m == NULL || m->control == NULL)
        return OK;
    for (size_t i = 0; i < sizeof out->secret; i += sizeof(uint64_t)) {
        uint64_t word;
        TRY(random_token(&word));
        memcpy(out->secret + i, &word, sizeof word);
    }
    for (int p = 0; p < page_processes(m->page) && count < CONTROL_PORTS; p++) {
        int port = atomic_load(&page_process(m->page, p)->port);
        if (port != 0)
            out->ports[count++] = port;
    }
    snprintf(out->node, sizeof out->node, "%s", m->config.page.node);
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        out->host[0] = 0;
    return OK;
}

void monitor_connect(struct monitor *m, const struct control_address *address)
{
    if (m == NULL || m->control == NULL || address->ports[0] == 0)
        return;
    m->address = *address;
    atomic_store(&m->connected, true);
}

atomic_int *monitor_leaving(struct monitor *m)
{
    return m != NULL ? &page_process(m->page, page_own_index(m->page))->leaving : NULL;
}
