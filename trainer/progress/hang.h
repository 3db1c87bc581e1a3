// SPDX-License-Identifier: Apache-2.0
/* Who waits for whom: from the progress of all ranks (base/progress.h), the rank that everyone waits for.
 *
 *     step 12: rank 5 (pp 1 dp 0 tp 1, node b) stalled in 1W2 for 41.0 s: its process is stopped (T);
 *     rank 1 waits for its 1I3; ranks 2, 3, 7 wait for rank 1
 *
 * The culprit is the worst rank: one that is gone, then one without progress for the timeout that is stopped
 * or ended, then one that waits for no other, then one that waits for an unknown rank; of equals the one that
 * has stalled for longest. Other ranks wait for it, directly or through others: a rank that waits for message
 * n of a communicator waits for the members that have not called n times, and for those that have, but do
 * something else or are stopped.
 *
 * Where no rank is a culprit, these edges are followed from a stalled rank: a cycle is a deadlock, and a call
 * that differs from those of the other members is named; a rank at the end that makes progress is merely
 * slow, and nothing is reported.
 *
 * Pure functions of a snapshot, taken by a monitor or read from a dump. */
#pragma once

#include "base/progress.h"
#include "base/text.h"
#include "trainer/progress/process.h"

enum { HANG_NODE_CHARS = 64, HANG_NEEDS_CHARS = 24 };

struct hang_rank {
    struct rank_progress progress;
    double stalled_s; // since its last progress, as counted by a monitor
    enum process_state process;
    char node[HANG_NODE_CHARS];
    char needs[HANG_NEEDS_CHARS]; // the action of another rank whose result it waits for; "": unknown
};

/* Ranks in ascending order, at most one entry for each. */
struct hang {
    int count;
    struct hang_rank *ranks; // [count], owned
    double limit_s;          // the timeout; 0: none, only lost ranks are found
};
void hang_create(int count, struct hang *out);
void hang_free(struct hang *hang);
void hang_sort(struct hang *hang);

/* Sets needs of every rank that waits for a transfer. */
struct schedule;
void hang_set_needs(struct hang *hang, const struct schedule *schedule);

/* Stopped, gone or silent: it cannot continue, even if its message arrives. */
bool hang_is_dead(const struct hang_rank *rank);
/* The message that a rank waits for; NULL: none, or unknown. */
const struct progress_message *hang_awaited(const struct hang_rank *rank);
/* The recorded message of this number, the last of which is progress.head.messages; NULL if it was
 * overwritten. */
const struct progress_message *hang_message(const struct hang_rank *rank, int64_t number);

enum hang_kind { HANG_NONE, HANG_CULPRIT, HANG_DEADLOCK, HANG_MISMATCH };

/* `culprit`: an index in hang->ranks. `waits_for` [count]: an index, or -1; the reason that each rank waits,
 * followed to the culprit. Owned. */
struct hang_finding {
    enum hang_kind kind;
    int culprit;
    int *waits_for;
    struct text mismatch; // the calls that differ; owned
};
MUST_USE enum status hang_find(const struct hang *hang, struct hang_finding *out);
void hang_finding_free(struct hang_finding *finding);

/* "all_reduce f32[4096]". */
void hang_call_text(const struct progress_message *message, struct text *out);
/* "rank 3", "ranks 0-2, 5". */
void hang_ranks_text(const int *ranks, int count, struct text *out);
