// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor.h"

#include "base/clock.h"
#include "base/file.h"
#include "trainer/progress/control_view.h"
#include "trainer/progress/hang.h"
#include "trainer/progress/hang_dump.h"
#include "trainer/progress/straggler.h"

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

static const double look_most_s = 0.25, look_least_s = 0.01; // between two looks
static const double late_s = 0.6, alive_s = 3.0; // a monitor that has not looked for so long does not judge
static const double settle_s = 0.5;          // no rank has made progress for so long: all that wait do wait
static const double settle_most_s = 1.0;     // then the report is made anyway
static const double settle_gone_s = 0.2;     // for a process that is gone
static const double last_words_s = 3.0;      // a process that began to report, and did not finish
static const double start_timeout_s = 600.0; // automatic: until a first step is complete
static const int64_t spent_most_ns = 1500000000; // of a look: a suspended monitor spends more
static const double contact_s = 30.0;            // until another node is first heard of
static const double resumed_s = 1.5;             // after a suspension nothing is reported for so long
static const double nanosecond = 1e-9;
enum { TIMES_LONGEST = 10 };

/* What this monitor knows of a slot. */
struct watched {
    struct progress_head head;
    uint64_t seen;    // head.count at the last look
    int64_t still_ns; // time since the look that first saw it
};

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
    struct control_rank *ranks; // [slots], as the other nodes hear of them
    int64_t found_ns;           // since when there is something to report; 0: nothing
    int64_t reported_ns;
    int64_t resumed_ns; // the end of the last suspension of this process
};

/* ---- looking ---- */

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
        if (id == 0 || p == page_mine(m->page) || m->gone[p])
            continue;
        if (file->fd < 0)
            *file = (struct pollfd){.fd = open_process(id), .events = POLLIN};
        // A process that has exited before, or a kernel without pidfd_open().
        m->gone[p] = (file->revents & POLLIN) != 0 ||
                     (file->fd < 0 && process_is_gone(id, atomic_load(&process->started)));
        if (m->gone[p] && file->fd >= 0) {
            close(file->fd);
            file->fd = -1;
        }
    }
}

static bool is_active(const struct watched *w)
{
    return w->head.state == PROGRESS_ACTIVE;
}

/* Reads all ranks. passed_ns: since the last look. */
static void look(struct monitor *m, int64_t passed_ns)
{
    bool ended = false;
    for (int s = 0; s < page_slots(m->page); s++) {
        struct watched *w = &m->watched[s];
        bool was_active = is_active(w);
        progress_read_head(page_slot(m->page, s), &w->head);
        w->still_ns = w->head.count == w->seen ? w->still_ns + passed_ns : 0;
        w->seen = w->head.count;
        ended = ended || (was_active && !is_active(w));
    }
    // The other ranks may have waited for one that has ended: their time starts again.
    for (int s = 0; ended && s < page_slots(m->page); s++)
        m->watched[s].still_ns = 0;
}

static void beat(const struct monitor *m)
{
    atomic_store(&page_process(m->page, page_mine(m->page))->beat_ns, clock_ns());
}

/* Whether an active rank of a process that is gone has not announced its end. */
static bool is_lost(const struct monitor *m, const struct watched *w)
{
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        if (m->gone[p] && atomic_load(&process->id) == w->head.process)
            return is_active(w) && atomic_load(&process->leaving) == 0;
    }
    return false;
}

static double timeout_s(const struct monitor *m)
{
    int64_t longest_ns = control_look(m->control).longest_ns;
    for (int s = 0; s < page_slots(m->page); s++)
        if (m->watched[s].head.longest_ns > longest_ns)
            longest_ns = m->watched[s].head.longest_ns;
    if (!m->config.automatic || m->config.timeout_s <= 0.0)
        return m->config.timeout_s;
    if (longest_ns == 0)
        return fmax(start_timeout_s, m->config.timeout_s);
    return fmax(m->config.timeout_s, TIMES_LONGEST * nanosecond * (double)longest_ns);
}

/* A monitor that has not looked for a while may be waiting for other nodes, or for a CPU. */
static bool is_alive(const struct page_process *process)
{
    double since_s = nanosecond * (double)(clock_ns() - atomic_load(&process->beat_ns));
    return since_s < late_s ||
           (since_s < alive_s && process_look(atomic_load(&process->id), 0) != PROCESS_IS_STOPPED);
}

/* The process that judges: the first whose monitor is alive. */
static bool judges(const struct monitor *m)
{
    for (int p = 0; p < page_mine(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        if (!m->gone[p] && atomic_load(&process->leaving) == 0 && atomic_load(&process->id) != 0 &&
            is_alive(process))
            return false;
    }
    return true;
}

/* ---- judging ---- */

/* The ranks of this node, and of others as far as they have answered. */
static enum status take_snapshot(const struct monitor *m, double limit_s, bool others, struct hang *out)
{
    int count = 0;
    TRY(hang_create(page_slots(m->page) + (others ? control_ranks(m->control) : 0), out));
    out->limit_s = limit_s;
    for (int s = 0; s < page_slots(m->page); s++) {
        struct hang_rank *rank = &out->ranks[count];
        progress_read(page_slot(m->page, s), &rank->progress);
        if (rank->progress.head.state == PROGRESS_NONE)
            continue;
        const struct progress_head *head = &rank->progress.head;
        bool moved = head->count != m->watched[s].seen;
        rank->still_s = moved ? 0.0 : nanosecond * (double)m->watched[s].still_ns;
        rank->process = process_look(head->process, head->thread);
        snprintf(rank->node, sizeof rank->node, "%s", m->config.page.node != NULL ? m->config.page.node : "");
        count++;
    }
    if (others)
        control_fill(m->control, &out->ranks[count]);
    out->count = count + (others ? control_ranks(m->control) : 0);
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
        if (p != page_mine(m->page) && id != 0 && !m->gone[p] &&
            !process_is_gone(id, atomic_load(&process->started)))
            kill(id, number);
    }
}

/* Ends the processes of the node: stopped ones continue, so that they exit too, and the rest is killed. */
static _Noreturn void end_node(struct monitor *m)
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
            left += p != page_mine(m->page) && !m->gone[p] && atomic_load(&page_process(m->page, p)->id) != 0;
        }
        watch_processes(m);
    }
    signal_others(m, SIGKILL);
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

/* Whether a report is made now: when all ranks that wait do wait, or after a while. */
static bool is_settled(struct monitor *m, bool gone)
{
    int64_t now_ns = clock_ns(), least_ns = control_look(m->control).least_ns;
    if (m->found_ns == 0)
        m->found_ns = now_ns;
    double since_s = nanosecond * (double)(now_ns - m->found_ns);
    for (int s = 0; s < page_slots(m->page); s++)
        if (is_active(&m->watched[s]) && m->watched[s].still_ns < least_ns)
            least_ns = m->watched[s].still_ns;
    return gone ? since_s >= settle_gone_s
                : nanosecond * (double)least_ns >= settle_s || since_s >= settle_most_s;
}

static void judge(struct monitor *m)
{
    const struct control_state others = control_look(m->control);
    double limit_s = timeout_s(m);
    if (m->resumed_ns > 0 && nanosecond * (double)(clock_ns() - m->resumed_ns) < resumed_s)
        return;
    bool gone = others.lost, late = limit_s > 0.0 && nanosecond * (double)others.most_ns >= limit_s;
    for (int s = 0; s < page_slots(m->page); s++) {
        const struct watched *w = &m->watched[s];
        gone = gone || is_lost(m, w);
        late = late || (limit_s > 0.0 && is_active(w) && nanosecond * (double)w->still_ns >= limit_s);
    }
    if (!gone && !late) {
        m->found_ns = 0;
        return;
    }
    struct hang hang = {0};
    struct hang_finding finding = {0};
    if (control_is_started(m->control) && !control_is_remote(m->control))
        control_collect(m->control);
    MUST(take_snapshot(m, limit_s, true, &hang));
    MUST(hang_find(&hang, &finding));
    if (finding.kind == HANG_NONE)
        m->found_ns = 0;
    else if (is_settled(m, gone) && page_report(m->page))
        report(m, &hang, &finding);
    hang_finding_free(&finding);
    hang_free(&hang);
}

/* What other nodes hear of this one. Returns the number of ranks. */
static int fill_ranks(struct monitor *m)
{
    int count = 0;
    for (int s = 0; s < page_slots(m->page); s++)
        if (m->watched[s].head.state != PROGRESS_NONE)
            m->ranks[count++] = (struct control_rank){.head = m->watched[s].head,
                                                      .still_ns = m->watched[s].still_ns,
                                                      .lost = is_lost(m, &m->watched[s])};
    return count;
}

/* On another node than the first: reports, and judges only if the first does not answer for the timeout. */
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
    // Before the first contact the first node may be slow to start.
    const struct control_node *first = control_first(m->control);
    double limit_s = first->count > 0 ? timeout_s(m) : fmax(timeout_s(m), contact_s);
    if (nanosecond * (double)first->silent_ns > (limit_s > 0.0 ? limit_s : start_timeout_s))
        judge(m);
}

static void serve_or_report(struct monitor *m, int64_t passed_ns)
{
    if (atomic_load(&m->connected) && !control_is_started(m->control))
        control_start(m->control, &m->address, m->config.page.node);
    if (control_is_remote(m->control)) {
        report_to_first(m, passed_ns);
        return;
    }
    if (control_is_started(m->control))
        control_serve(m->control, m->ranks, fill_ranks(m), passed_ns);
    judge(m);
}

/* The report is made elsewhere. A process that is stopped while it reports keeps no other one. */
static void follow(struct monitor *m)
{
    if (page_is_ending(m->page))
        exit_silently(PEER_LOST);
    if (m->reported_ns == 0)
        m->reported_ns = clock_ns();
    if (nanosecond * (double)(clock_ns() - m->reported_ns) > last_words_s)
        end_node(m);
}

static double between_looks(const struct monitor *m)
{
    double look_s = m->config.timeout_s > 0.0 ? m->config.timeout_s / 8.0 : look_most_s;
    return fmax(look_least_s, fmin(look_s, look_most_s));
}

static void *watch(void *argument)
{
    struct monitor *m = argument;
    const int between_ms = (int)(1000.0 * between_looks(m));
    const nfds_t files = 1 + (nfds_t)page_processes(m->page);
    int64_t last_ns = clock_ns(), spent_ns = 0;
    for (;;) {
        int ready = poll(m->files, files, between_ms);
        if (ready > 0 && m->files[0].revents != 0)
            return NULL;
        int64_t now_ns = clock_ns(), most_ns = between_ms * INT64_C(1000000) + spent_ns;
        int64_t passed_ns = now_ns - last_ns < most_ns ? now_ns - last_ns : most_ns;
        watch_processes(m);
        look(m, passed_ns);
        beat(m);
        if (nanosecond * (double)(now_ns - last_ns - most_ns) > late_s)
            m->resumed_ns = now_ns;
        last_ns = now_ns;
        if (page_is_reported(m->page))
            follow(m);
        else if (judges(m))
            serve_or_report(m, passed_ns);
        beat(m);
        spent_ns = clock_ns() - now_ns; // waiting for other nodes
        spent_ns = spent_ns < spent_most_ns ? spent_ns : spent_most_ns;
    }
}

/* ---- starting and stopping ---- */

/* With a page of its own, if it cannot be shared. */
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
    atomic_store(&page_process(m->page, page_mine(m->page))->port, control_port(m->control));
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
    progress_end(); // of this thread, if it was a rank
    atomic_store(monitor_leaving(m), 1);
    CHECK(write(m->wake, &one, sizeof one) == (ssize_t)sizeof one);
    pthread_join(m->thread, NULL);
    destroy(m);
}

void monitor_enter(struct monitor *m)
{
    if (m == NULL)
        return;
    struct progress_slot *slot = page_claim(m->page);
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

/* Reads the times of a step. Returns the number of ranks that have published them: all of this node. */
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
    }
    return count;
}

void monitor_step(struct monitor *m, int64_t step)
{
    struct progress_head first;
    // One rank of the node is enough: that of the first slot.
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
    return m != NULL ? &page_process(m->page, page_mine(m->page))->leaving : NULL;
}
