// SPDX-License-Identifier: Apache-2.0
/* A folder of checkpoints belongs to one run, and one process at a time writes in it.
 *
 *   SAVE/owner.lock   locked with flock() while a run is active: exact, and released however the process ends
 *   SAVE/owner.json   the lease: host, pid and job of that run; its time is renewed every 10 s, and it is
 *                     removed when the run ends
 *   SAVE/run.json     the identity of the run (checkpoint_record.h), the same as in logging.run_dir
 *
 * Some file systems have no flock(), and some (Lustre and NFS, mounted so) lock only within one machine. So
 * the lease is checked, too, and it is acquired with link(), which is atomic everywhere. A process of this
 * machine that has exited loses it at once; whether one on another machine is active is unknown, so its lease
 * expires when it has not been renewed for 60 s.
 *
 * The trap: a process that was stopped for longer than that (SIGSTOP, a frozen machine) may have lost its
 * lease when it resumes. It checks before each save, and before a checkpoint gets its name. */
#pragma once

#include "base/status.h"

struct checkpoint_lock_options {
    const char *save;
    const char *run_dir;          // NULL: the folder is not compared with that of a run
    bool without_flock;           // as on a file system that has none
    int64_t renew_ms, expires_ms; // 0: 10 s and 60 s
};

struct checkpoint_lock;

/* Makes and locks the folder, and removes what this run left in it when it was killed. BAD_RECIPE when
 * another run is writing there, or when it belongs to another run. Waits while a lease of another machine may
 * expire. */
MUST_USE enum status checkpoint_lock_take(const struct checkpoint_lock_options *options,
                                          struct checkpoint_lock **out);
/* IO_ERROR when another run has taken it since. Takes NULL. */
MUST_USE enum status checkpoint_lock_check(const struct checkpoint_lock *lock);
void checkpoint_lock_release(struct checkpoint_lock *lock); // takes NULL
