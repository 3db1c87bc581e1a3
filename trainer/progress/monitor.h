// SPDX-License-Identifier: Apache-2.0
/* Detects hangs and lost processes: a thread in each process polls the progress of all ranks of its node, in
 * the page that they share (page.h), and one of these threads reports.
 *
 *     rank stopped, looping or blocked     no progress for the timeout ──> one report (hang.h), exit status 1
 *     process gone                         at once
 *     rank slow, others wait for it        it makes progress: no report
 *
 * With several nodes, the first process of each reports to the first node, which checks all ranks
 * (control.h).
 *
 * The thread uses neither ranks nor transports, so it works when all of them hang. The first process whose
 * monitor is alive is the primary one, which checks and reports; so a stopped process cannot prevent its own
 * report. After the report each process exits with status 1; stopped ones are continued for that, and killed
 * if they do not exit.
 *
 * Time without progress is counted in polls: a late poll counts as if it were on time. A suspended job, or
 * one on an overloaded machine, could not make progress either, and is not ended.
 *
 * Caution: the timeout must exceed the longest single action: an op, or reading the samples of a step. */
#pragma once

#include "trainer/progress/page.h"

#include <stdatomic.h>

struct launcher;
struct schedule;

struct monitor_config {
    const struct launcher *launcher; // tells how many processes must connect; NULL: not checked
    struct page_options page;
    double timeout_s;                // 0: none; only lost processes are reported
    bool automatic;                  // ten times the longest step, save or evaluation, at least timeout_s
    const struct schedule *schedule; // names the actions that ranks wait for; NULL: not named
    const char *run_dir;             // receives hang-STEP.json; NULL: no file
    bool several_hosts;              // some processes of the job are on other machines
    bool several_nodes;              // or may be on other nodes of this one
};

struct monitor;

/* If the page cannot be shared, prints a warning, and each process monitors only its own ranks. With a single
 * process and without a timeout there is nothing to monitor, and *out is NULL; the functions below accept
 * it. */
MUST_USE enum status monitor_start(const struct monitor_config *config, struct monitor **out);
/* Call it when no rank of this process is monitored any longer. */
void monitor_stop(struct monitor *monitor);

/* Makes this thread publish its progress as a rank, until monitor_leave(). */
void monitor_enter(struct monitor *monitor);
void monitor_leave(struct monitor *monitor);

/* Called by each rank after each step: reports a rank of this node that has computed at least 10 % longer
 * than its peers, the ranks of its pipeline coordinate on this node, in almost all of the last 20 steps
 * (straggler.h). */
void monitor_step(struct monitor *monitor, int64_t step);

/* With several nodes: rank 0 gets the address of its node and broadcasts it, and each process passes it to
 * monitor_connect(). Until then, each node is monitored on its own. */
struct control_address;
MUST_USE enum status monitor_address(struct monitor *monitor, struct control_address *out);
void monitor_connect(struct monitor *monitor, const struct control_address *address);

/* This process is about to exit with a message of its own. Does nothing without a monitor. */
void monitor_set_leaving(struct monitor *monitor);
/* True once a hang is reported on this node; false without a monitor. */
bool monitor_has_reported(const struct monitor *monitor);
