// SPDX-License-Identifier: Apache-2.0
/* Progress of a rank, as other threads and processes see it: what it does, since when, the message that it
 * waits for, the number of its calls on each communicator, and its last messages (a flight recorder).
 *
 *     thread of the rank          rank_context_set_action, rank_context_set_wait, messages
 *         └─> struct progress_writer ──> struct progress_slot, in memory that a monitor can read
 *
 * One thread writes a slot; any thread or process of the machine reads it, without a lock: a version number
 * is odd while the writer is inside. Neither waits for the other, so a stopped process blocks no monitor, and
 * a stopped monitor no rank. Threads without a writer (tests, planning) record nothing.
 * This is not a part of the event log of a rank: others must be able to read it while the rank is stuck.
 *
 * Times are those of clock_ns(), which the processes of a machine share. */
#pragma once

#include "base/status.h"

enum { PROGRESS_MESSAGES = 256, PROGRESS_GROUPS = 48, PROGRESS_STEPS = 4 };

enum { PROGRESS_ACTION_CHARS = 24 };

enum progress_state {
    PROGRESS_NONE,   // no rank uses the slot
    PROGRESS_ACTIVE, // the rank is running
    PROGRESS_ENDED,  // it has ended, or its process is about to exit with a message of its own
};

/* Times of one step of a rank. */
struct progress_step {
    int64_t step;                         // 0: none
    int64_t compute_ns, wait_ns, data_ns; // computing (0: unknown); waiting for messages; loading samples
    int64_t core;                         // that the thread runs on, set by progress_step()
};

/* Progress of a GPU's compute stream, polled by the thread of the rank while it waits. */
struct progress_gpu {
    char completed[PROGRESS_ACTION_CHARS]; // the last action whose ops it has completed; "": none, or unknown
    char current[PROGRESS_ACTION_CHARS];   // the action whose ops it executes; "": none, or unknown
};

/* Everything that changes often. */
struct progress_head {
    struct rank_context who;
    int32_t state;           // enum progress_state
    int32_t process, thread; // ids of the operating system
    int32_t groups;          // number of groups
    uint64_t count;          // how often the rank has made progress
    int64_t since_ns;        // the last time
    int64_t longest_ns;      // its longest step, save or evaluation so far; 0: none is complete
    int64_t waited_ns;       // in all, for messages
    int64_t messages;        // recorded so far
    int64_t awaited;         // number of the recorded message that it waits for, from 1; 0: none, or unknown
    struct progress_step steps[PROGRESS_STEPS]; // step n at n % PROGRESS_STEPS
    struct progress_gpu gpu;
};

/* A communicator. */
struct progress_group {
    char name[32];
    uint64_t id;                 // the same on all of its ranks: a hash of its name and ranks
    int64_t calls;               // of this rank
    int32_t first, stride, size; // its ranks: first, first + stride, ...; stride 0: irregular
    int32_t unused;
};

/* A collective, or one message of an exchange. */
struct progress_message {
    int64_t number; // of this rank's calls on the group, from 1
    int64_t bytes;
    int64_t queued_ns, started_ns, done_ns; // 0: not yet, or unknown (a GPU starts its messages)
    int32_t group;                          // index into groups; -1: there were too many
    int32_t peer;                           // rank of the world; of a collective the root, or -1
    int32_t step;
    uint8_t call, dtype;               // enum call (parallel/comm.h), enum dtype (kernels/tensor.h)
    char action[18];                   // that enqueued it
    struct scheduled_action scheduled; // the same
};

struct rank_progress {
    struct progress_head head;
    struct progress_group group[PROGRESS_GROUPS];
    struct progress_message message[PROGRESS_MESSAGES]; // message n at (n - 1) % PROGRESS_MESSAGES
};

struct progress_slot; // base/progress_slot.h

/* ---- the thread of a rank ---- */

struct progress_writer {
    struct rank_progress now;
    struct progress_slot *slot;
    int64_t queued, taken; // recorded messages; those that have been handed to their work
};

/* This thread publishes its progress in `slot` from now on, until progress_end(). The writer is large; it and
 * the slot outlive the thread's messages. */
void progress_begin(struct progress_writer *writer, struct progress_slot *slot);
/* Whether this thread has a writer. */
bool progress_is_published(void);
/* The rank has ended regularly, or reports an error of its own. Does nothing without a writer. */
void progress_end(void);

/* Messages [first, first + count) of the recorder; {0}: not recorded. */
struct progress_range {
    int64_t first;
    int32_t count;
};
/* Finds the group with this id, or adds it with the other members of `group`; -1 if there are too many. */
int progress_group(const struct progress_group *group);
/* Records a message that is about to be enqueued; number, action, step and queued_ns are filled in. `calls`:
 * the new number of calls on its group. */
void progress_queue(struct progress_message message, int64_t calls);
/* Returns the messages recorded since the last call. */
struct progress_range progress_take(void);
void progress_started(struct progress_range messages);
void progress_done(struct progress_range messages);

/* The thread remains at its action, and makes progress there: part of a file is written. Does nothing without
 * a writer. */
void progress_continue(void);

/* Counts as progress if it has changed. {""}: unknown. Does nothing without a writer. */
void progress_set_gpu(const struct progress_gpu *gpu);

/* Adds to the total wait time of the thread. */
void progress_waited(int64_t ns);
/* Total so far, also without a writer. */
int64_t progress_waited_ns(void);
/* Publishes the times of a step, and the duration of a step, a save or an evaluation. */
void progress_step(struct progress_step step);
void progress_took(int64_t ns);

/* For base/status.c: the state of the thread has changed; whether it made progress. */
void progress_set_context(const struct rank_context *who, struct progress_range awaited, bool made_progress);

/* ---- a monitor ---- */

/* Copies the head, or everything. False if the writer was inside every time: the copy may be inconsistent. */
bool progress_read_head(const struct progress_slot *slot, struct progress_head *out);
bool progress_read(const struct progress_slot *slot, struct rank_progress *out);
