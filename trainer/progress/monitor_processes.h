// SPDX-License-Identifier: Apache-2.0
/* The state of a monitor (monitor.h), for the files that are one:
 *
 *     monitor.c             the thread, and what ranks call
 *     monitor_processes.c   the processes of the node: whether they are alive, and their end
 *     monitor_judge.c       the ranks: whether to report, and the report */
#pragma once

#include "trainer/progress/control/control.h"
#include "trainer/progress/monitor.h"
#include "trainer/progress/straggler.h"
#include "trainer/progress/watch.h"

#include <poll.h>
#include <pthread.h>

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
    int64_t ending_ns;  // for how long the process of a rank that has ended has been stopped
};

/* ---- the processes of the node ---- */

/* Sets m->gone for those that have exited. */
void monitor_watch_processes(struct monitor *m);
/* Publishes that this monitor is alive. */
void monitor_heartbeat(const struct monitor *m);
/* Whether this process checks the ranks and reports: it is the first whose monitor is alive. */
bool monitor_is_primary(const struct monitor *m);
/* Ends all processes of the node: stopped ones are continued, so that they can exit; the rest is killed. */
_Noreturn void monitor_end_node(struct monitor *m);
/* Claims the report of all nodes of this machine (CUBOID_NODE). False: another process of the job reports. */
bool monitor_claim_machine(const struct monitor *m);
