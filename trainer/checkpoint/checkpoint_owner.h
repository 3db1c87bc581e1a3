// SPDX-License-Identifier: Apache-2.0
/* owner.json: the process that owns a folder of checkpoints. */
#pragma once

#include "base/text.h"

enum { OWNER_TEXT_CHARS = 128, OWNER_TOKEN_CHARS = 17 };

struct owner {
    char token[OWNER_TOKEN_CHARS];  // 16 random digits; "": no owner
    char host[OWNER_TEXT_CHARS];    // its name
    char machine[OWNER_TEXT_CHARS]; // boot and pid namespace: within one, pids mean the same
    char job[OWNER_TEXT_CHARS];     // "SLURM_JOB_ID 1234"; "" without a job
    int64_t pid, started;           // when, in ticks of the kernel: a pid may be used again
    int64_t renewed_ns;             // the time of the file, by the clock of the file system; not in the text
};

/* This process, with a new token. */
MUST_USE enum status owner_self(struct owner *out);
/* *out is no owner when there is no such file, or it cannot be parsed. */
MUST_USE enum status owner_read(const char *path, struct owner *out);
void owner_text(const struct owner *owner, struct text *out);

/* On this machine, where owner_is_alive() is known. */
bool owner_is_local(const struct owner *owner);
bool owner_is_alive(const struct owner *owner);

/* "pid 123 on node7, SLURM_JOB_ID 55" */
void owner_describe(const struct owner *owner, struct text *out);
