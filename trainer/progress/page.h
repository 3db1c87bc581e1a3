// SPDX-License-Identifier: Apache-2.0
/* The page of a job on one node: shared memory with the progress of each rank (base/progress.h). Processes of
 * a job find it by the name that the launcher gives the job.
 *
 *     FOLDER/cuboid-UID-HASH    processes: id, start, the time of their monitor's last poll
 *                               slots: one for each rank of the node
 *
 * FOLDER is XDG_RUNTIME_DIR if it is a private folder on a tmpfs, else /dev/shm. There another user may take
 * the name first, unless the launcher gives the job a secret; then the page is not opened.
 *
 * The file disappears when all processes of the node have opened it; the memory lives as long as they do.
 * Pages whose processes were all killed before that are removed by the next job. Without a launcher the
 * memory is private. */
#pragma once

#include "base/progress.h"

#include <stdatomic.h>

struct page_process {
    atomic_int id;      // of the operating system; 0: none yet
    atomic_int leaving; // it has ended, or is exiting with a message of its own
    atomic_int port;    // of its control connection
    _Atomic uint64_t started;
    _Atomic int64_t heartbeat_ns; // clock_ns() of its monitor's last poll
};

struct page_options {
    const char *job;  // name of the job; NULL: a private page
    const char *node; // each name has its own page, even on one machine
    int processes;    // maximum number on this node
    int slots;
};

struct page;

/* IO_ERROR if the folder has no space, or if the file belongs to another version of this program, or is not
 * a private file of this user. PEER_LOST if another process has been opening the page for half a second: it
 * may be stopped. */
MUST_USE enum status page_open(const struct page_options *options, struct page **out);
void page_close(struct page *page); // accepts NULL; the slots must not be used any more
/* Removes the file now, because all processes of the job are about to end. */
void page_remove(struct page *page);

/* A number of a job and a node, for the names of what its processes share. */
uint64_t page_hash(const char *job, const char *node);
/* The path of the page; NULL: it is private. */
const char *page_path(const struct page *page);

int page_processes(const struct page *page);
struct page_process *page_process(const struct page *page, int index);
/* The index of this process. */
int page_own_index(const struct page *page);

int page_slots(const struct page *page);
struct progress_slot *page_slot(const struct page *page, int index);
/* A slot for one more rank of this process; NULL if there is none left. */
struct progress_slot *page_claim_slot(struct page *page);

/* Claims the report of the node: true for the first caller only. */
bool page_claim_report(struct page *page);
bool page_is_reported(const struct page *page);
/* Tells all processes to exit. */
void page_end(struct page *page);
bool page_is_ending(const struct page *page);
