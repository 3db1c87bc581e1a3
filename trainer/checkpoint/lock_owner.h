// SPDX-License-Identifier: Apache-2.0
/* owner.json: the process that holds the lock of a checkpoint folder (store_lock.h). */
#pragma once

#include "base/text.h"

enum { LOCK_OWNER_TEXT_CHARS = 128, LOCK_OWNER_TOKEN_CHARS = 17 };

struct lock_owner {
    char token[LOCK_OWNER_TOKEN_CHARS];  // 16 random digits; "": no owner
    char host[LOCK_OWNER_TEXT_CHARS];    // host name
    char machine[LOCK_OWNER_TEXT_CHARS]; // boot id and pid namespace: the scope of a pid
    char job[LOCK_OWNER_TEXT_CHARS];     // "SLURM_JOB_ID 1234"; "" without a job
    int64_t pid, started;                // start time in kernel ticks, since pids are reused
    int64_t renewed_ns; // modification time of the file, by the clock of the file system; not in
                        // the text
};

/* Describes this process, with a new token. */
MUST_USE enum status lock_owner_self(struct lock_owner *out);
/* Returns an empty owner if the file does not exist or cannot be parsed. */
MUST_USE enum status lock_owner_read(const char *path, struct lock_owner *out);
void lock_owner_text(const struct lock_owner *owner, struct text *out);

/* True if the owner is on this machine, where lock_owner_is_alive() is exact. */
bool lock_owner_is_local(const struct lock_owner *owner);
bool lock_owner_is_alive(const struct lock_owner *owner);

/* "pid 123 on node7, SLURM_JOB_ID 55" */
void lock_owner_describe(const struct lock_owner *owner, struct text *out);
