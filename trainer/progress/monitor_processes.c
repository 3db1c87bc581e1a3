// SPDX-License-Identifier: Apache-2.0
#include "trainer/progress/monitor_processes.h"

#include "base/clock.h"
#include "base/wire.h"
#include "parallel/launcher.h"
#include "trainer/progress/process.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double responsive_s = 0.6; // a monitor that has polled within this time is alive
static const double alive_s = 3.0;      // within this time: unless its process is stopped
static const double nanosecond = 1e-9;

/* ---- alive ---- */

/* Opens a file that becomes readable when the process exits. */
static int open_process(int process)
{
    return (int)syscall(SYS_pidfd_open, process, 0);
}

void monitor_watch_processes(struct monitor *m)
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

void monitor_heartbeat(const struct monitor *m)
{
    atomic_store(&page_process(m->page, page_own_index(m->page))->heartbeat_ns, clock_ns());
}

/* A monitor that has not polled for a while may be waiting for other nodes, or for a CPU. */
static bool is_alive(const struct page_process *process)
{
    double since_s = nanosecond * (double)(clock_ns() - atomic_load(&process->heartbeat_ns));
    return since_s < responsive_s ||
           (since_s < alive_s && process_read_state(atomic_load(&process->id), 0) != PROCESS_IS_STOPPED);
}

bool monitor_is_primary(const struct monitor *m)
{
    for (int p = 0; p < page_own_index(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        if (!m->gone[p] && atomic_load(&process->leaving) == 0 && atomic_load(&process->id) != 0 &&
            is_alive(process))
            return false;
    }
    return true;
}

/* ---- their end ---- */

/* Sends a signal to all other processes of the node that have not exited. */
static void signal_others(const struct monitor *m, int number)
{
    for (int p = 0; p < page_processes(m->page); p++) {
        const struct page_process *process = page_process(m->page, p);
        int id = atomic_load(&process->id);
        if (p != page_own_index(m->page) && id != 0 && !m->gone[p])
            process_signal(id, atomic_load(&process->started), number);
    }
}

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
        monitor_watch_processes(m);
    }
    signal_others(m, SIGKILL);
}

_Noreturn void monitor_end_node(struct monitor *m)
{
    end_others(m);
    exit_silently(PEER_LOST);
}

bool monitor_claim_machine(const struct monitor *m)
{
    char name[80];
    int file; // left open: the claim lasts as long as this process
    if (m->config.launcher == NULL)
        return true;
    snprintf(name, sizeof name, "cuboid-report-%u-%016llx", (unsigned)getuid(),
             (unsigned long long)page_hash(m->config.launcher->job, ""));
    return wire_claim_local(name, &file);
}
