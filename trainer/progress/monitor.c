// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor.h"

#include "base/clock.h"
#include "trainer/progress/hang.h"
#include "trainer/progress/hang_dump.h"

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
static const double alive_s = 1.0;           // a monitor that has not looked for so long does not judge
static const double settle_s = 0.5;          // no rank has made progress for so long: all that wait do wait
static const double settle_most_s = 1.0;     // then the report is made anyway
static const double settle_gone_s = 0.2;     // for a process that is gone
static const double last_words_s = 3.0;      // a process that began to report, and did not finish
static const double start_timeout_s = 600.0; // automatic: until a first step is complete
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
    pthread_t thread;
    int wake;
    int64_t found_ns; // since when there is something to report; 0: nothing
    int64_t reported_ns;
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
    int64_t longest_ns = 0;
    for (int s = 0; s < page_slots(m->page); s++)
        if (m->watched[s].head.longest_ns > longest_ns)
            longest_ns = m->watched[s].head.longest_ns;
    if (!m->config.automatic || m->config.timeout_s <= 0.0)
        return m->config.timeout_s;
    if (longest_ns == 0)
        return fmax(start_timeout_s, m->config.timeout_s);
    return fmax(m->config.timeout_s, TIMES_LONGEST * nanosecond * (double)longest_ns);
}

/* The process that judges: the first whose monitor is alive. */
static bool judges(const struct monitor *m)
{
    int64_t now_ns = clock_ns();
    for (int p = 0; p < page_mine(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        bool alive = nanosecond * (double)(now_ns - atomic_load(&process->beat_ns)) < alive_s;
        if (!m->gone[p] && atomic_load(&process->leaving) == 0 && atomic_load(&process->id) != 0 && alive)
            return false;
    }
    return true;
}

/* ---- judging ---- */

static enum status take_snapshot(const struct monitor *m, double limit_s, struct hang *out)
{
    int count = 0;
    TRY(hang_create(page_slots(m->page), out));
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
    out->count = count;
    hang_sort(out);
    if (m->config.schedule != NULL)
        hang_set_needs(out, m->config.schedule);
    return OK;
}

/* Ends the processes of the node: those that do not exit, such as stopped ones, are killed. */
static _Noreturn void end_node(struct monitor *m)
{
    enum { POLLS = 50, POLL_NS = 10000000 };
    page_remove(m->page);
    page_end(m->page);
    for (int i = 0, left = 1; i < POLLS && left > 0; i++) {
        left = 0;
        poll(NULL, 0, POLL_NS / 1000000);
        watch_processes(m);
        for (int p = 0; p < page_processes(m->page); p++) {
            if (m->files[1 + p].fd >= 0)
                poll(&m->files[1 + p], 1, 0);
            left += p != page_mine(m->page) && !m->gone[p] && atomic_load(&page_process(m->page, p)->id) != 0;
        }
    }
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        int id = atomic_load(&process->id);
        if (p != page_mine(m->page) && id != 0 && !m->gone[p] &&
            !process_is_gone(id, atomic_load(&process->started)))
            kill(id, SIGKILL);
    }
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
    end_node(m);
}

/* Whether a report is made now: when all ranks that wait do wait, or after a while. */
static bool is_settled(struct monitor *m, bool gone)
{
    int64_t now_ns = clock_ns(), least_ns = INT64_MAX;
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
    double limit_s = timeout_s(m);
    bool gone = false, late = false;
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
    MUST(take_snapshot(m, limit_s, &hang));
    MUST(hang_find(&hang, &finding));
    if (finding.kind == HANG_NONE)
        m->found_ns = 0;
    else if (is_settled(m, gone) && page_report(m->page))
        report(m, &hang, &finding);
    hang_finding_free(&finding);
    hang_free(&hang);
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
    int64_t last_ns = clock_ns();
    for (;;) {
        int ready = poll(m->files, files, between_ms);
        if (ready > 0 && m->files[0].revents != 0)
            return NULL;
        int64_t now_ns = clock_ns(), most_ns = between_ms * INT64_C(1000000);
        watch_processes(m);
        look(m, now_ns - last_ns < most_ns ? now_ns - last_ns : most_ns);
        last_ns = now_ns;
        if (page_is_reported(m->page))
            follow(m);
        else if (judges(m))
            judge(m);
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
    m->writers = calloc(m->config.page.job != NULL ? 1 : slots, sizeof *m->writers);
    if (m->watched == NULL || m->files == NULL || m->gone == NULL || m->writers == NULL)
        return fail(NO_MEMORY, "no memory for a monitor of %zu ranks", slots);
    for (size_t p = 0; p < processes; p++)
        m->files[1 + p].fd = -1;
    m->wake = eventfd(0, EFD_CLOEXEC);
    if (m->wake < 0)
        return fail(NO_MEMORY, "cannot start the monitor: %s", strerror(errno));
    m->files[0] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    return OK;
}

static void destroy(struct monitor *m)
{
    for (int p = 0; m->files != NULL && p < page_processes(m->page); p++)
        if (m->files[1 + p].fd >= 0)
            close(m->files[1 + p].fd);
    if (m->wake >= 0)
        close(m->wake);
    page_close(m->page);
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

atomic_int *monitor_leaving(struct monitor *m)
{
    return m != NULL ? &page_process(m->page, page_mine(m->page))->leaving : NULL;
}
