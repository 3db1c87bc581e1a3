// SPDX-License-Identifier: Apache-2.0
/* owner.json: the process that owns a checkpoint folder. */
#pragma once

#include "base/text.h"

enum { OWNER_TEXT_CHARS = 128, OWNER_TOKEN_CHARS = 17 };

struct owner {
    char token[OWNER_TOKEN_CHARS];  // 16 random digits; "": no owner
    char host[OWNER_TEXT_CHARS];    // host name
    char machine[OWNER_TEXT_CHARS]; // boot id and pid namespace: the scope of a pid
    char job[OWNER_TEXT_CHARS];     // "SLURM_JOB_ID 1234"; "" without a job
    int64_t pid, started;           // start time in kernel ticks, since pids are reused
    int64_t renewed_ns;             // modification time of the file, by the clock of the file system; not in
                                    // the text
};

/* Describes this process, with a new token. */
MUST_USE enum status owner_self(struct owner *out);
/* Returns an empty owner if the file does not exist or cannot be parsed. */
MUST_USE enum status owner_read(const char *path, struct owner *out);
void owner_text(const struct owner *owner, struct text *out);

/* True if the owner is on this machine, where owner_is_alive() is exact. */
bool owner_is_local(const struct owner *owner);
bool owner_is_alive(const struct owner *owner);

/* "pid 123 on node7, SLURM_JOB_ID 55" */
void owner_describe(const struct owner *owner, struct text *out);
