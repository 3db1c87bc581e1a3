// SPDX-License-Identifier: Apache-2.0
/* Locks a checkpoint folder: it belongs to one run, and one process at a time writes in it.
 *
 *   SAVE/owner.lock   locked with flock() while a run is active: exact, and released however the process ends
 *   SAVE/owner.json   the lease: host, pid and job of that run; its time is renewed every 10 s, and it is
 *                     removed when the run ends
 *   SAVE/run.json     the identity of the run (run_record.h), the same as in logging.run_dir
 *
 * Some file systems have no flock(), and some mounts (Lustre, NFS) lock only within one machine. Therefore
 * the lease is also checked, and it is acquired with link(), which is atomic everywhere. A process of this
 * machine that has exited loses its lease at once; for another machine that cannot be known, so its lease
 * expires after 60 s without renewal.
 *
 * Caution: a process that was stopped for longer than that (SIGSTOP, a suspended machine) may have lost its
 * lease when it resumes. It checks the lease before each save, and before publishing a checkpoint. */
#pragma once

#include "base/status.h"

struct store_lock_options {
    const char *save;
    const char *run_dir;          // NULL: the folder is not compared with that of a run
    const char *run;              // instead of run_dir: the identity of the run; NULL: not compared
    const char *key, *value;      // of the recipe, for messages; NULL: checkpoint.save, and `save`
    bool without_flock;           // as on a file system without flock()
    int64_t renew_ms, expires_ms; // 0: 10 s and 60 s
};

struct store_lock;
struct lock_owner;

/* Creates and locks the folder, and removes the remains of interrupted saves of this run. Returns BAD_RECIPE
 * if another run is writing there, or if the folder belongs to another run. Waits while the lease of another
 * machine may expire. */
MUST_USE enum status store_lock_acquire(const struct store_lock_options *options, struct store_lock **out);
/* Returns IO_ERROR if another run has since acquired the lease. Accepts NULL. */
MUST_USE enum status store_lock_check(const struct store_lock *lock);
void store_lock_release(struct store_lock *lock); // accepts NULL

/* The process that holds the lease of a folder, with an empty token if there is none. On another machine: one
 * that has renewed it within the last 60 s, by the clock of this machine. */
MUST_USE enum status store_lock_holder(const char *save, struct lock_owner *out);
