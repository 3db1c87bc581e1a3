// SPDX-License-Identifier: Apache-2.0
/* The journal of the runs of a sweep: a file with one line per change of state, appended and synced, so that
 * it survives a kill.
 *
 *     sweep gpt3.yaml cluster.profile=selene
 *     running 0 0 tp=1 pp=2
 *     done 0.1234 29926635584 tp=1 pp=2
 *
 * An incomplete line is ignored. The file is locked while it is open. */
#pragma once

#include "base/text.h"

enum run_state { RUN_QUEUED, RUN_RUNNING, RUN_DONE, RUN_OOM, RUN_TIMEOUT, RUN_FAILED, RUN_STATES };
const char *run_state_name(enum run_state state);

struct journal_entry {
    char *layout;
    enum run_state state;
    double step_s;        // measured; 0 unless done
    int64_t memory_bytes; // of the rank that needs the most
};

struct journal {
    char *path;
    int fd;
    struct journal_entry *list; // one per layout, with its latest state, in the order of their first lines
    size_t *order;              // [count] indices into list, in the order of their layouts
    size_t count;
};

/* Opens or creates the journal. `head`: its first line, which identifies the sweep. BAD_USAGE if the file
 * belongs to another sweep, or is in use. */
MUST_USE enum status journal_open(const char *path, const char *head, struct journal *out);
void journal_close(struct journal *journal);
/* Finds the entry of a layout; RUN_QUEUED without one, and for a layout that was running when the sweep
 * ended. */
struct journal_entry journal_find(const struct journal *journal, const char *layout);
MUST_USE enum status journal_add(struct journal *journal, const struct journal_entry *entry);
