// SPDX-License-Identifier: Apache-2.0
/* The processes of a job that no monitor knows: stopped, or blocked, before they opened the page of their
 * node (page.h), or stopped with all others of their node before the nodes were connected. Those of this
 * machine are found in /proc by the variables that the launcher gave them.
 *
 *     2 of 8 processes have not connected after 60 s: rank 3 (node b, process 4711): its process is stopped
 *     (T); rank 5: it has no process on this machine; ... */
#pragma once

/* Of the report, by which a launcher recognizes it (hang_is_report()). */
#define MISSING_NOT_CONNECTED " not connected after "

#include "base/text.h"
#include "parallel/launcher.h"
#include "trainer/progress/process.h"

struct missing_rank {
    int rank;
    int process; // its id; 0: none on this machine
    uint64_t started;
    enum process_state state;
    char node[64], program[16]; // the program if it is not this one, such as a shell: ""
};

struct missing {
    int size, count;           // ranks of the job, and those that are missing
    struct missing_rank *list; // [count], ascending
    bool known;                // the list is exact: none of them may be on another machine
};

struct missing_options {
    const struct launcher *launcher;
    bool several_hosts;
    const char *page;   // the path of this process's page; NULL: private, or not open
    const int *watched; // [count], the processes whose ranks this monitor sees
    int count;
};

/* Finds the ranks without a page, and stopped processes: those on another page without a running process, and
 * those on this page without a rank. Ranks without a process on this machine are listed only if
 * none of this machine is missing, or if the job has no other machine. */
MUST_USE enum status missing_find(const struct missing_options *options, struct missing *out);
void missing_free(struct missing *missing);
bool missing_is_stopped(const struct missing *missing); // one of them is

/* The report: one line without a newline. */
void missing_report(const struct missing *missing, double waited_s, struct text *out);
/* Kills those of this machine. mpirun ends them itself, and returns the status of the first that has
 * ended. */
void missing_kill(const struct missing *missing, const struct launcher *launcher);
/* Claims the report of all processes of the job on this machine, of which each may be a node of its own.
 * False: another process of this user reports. */
bool missing_claim(const struct launcher *launcher);
