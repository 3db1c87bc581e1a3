// SPDX-License-Identifier: Apache-2.0
/* Data structures of the search of `auto`: a pipeline with a time for every action and message, and a string
 * of steps per rank. A step does not name its microbatch: the k-th F of a chunk belongs to microbatch k, and
 * so do the k-th I and the k-th W. (This loses no generality: renumbering the microbatches of any schedule,
 * stage by stage, in the order of their F, I and W preserves all times, dependencies and peaks.)
 *
 *     1F1B, p 2, m 2, rank 0:  F F I W I W
 *
 * Times are integer ticks, so that comparisons have the same outcome on every machine and sums do not depend
 * on their order. Caution: a string may satisfy all local rules and still deadlock; only pipe_time() detects
 * it. */
#pragma once

#include "schedules/edges.h"
#include "schedules/simulate.h"

#include <stdint.h>

enum task_kind { TASK_F, TASK_I, TASK_W, TASK_KINDS };
enum { NONE = -1 };
#define PIPE_NEVER INT64_MAX

/* One of a rank's 3v actions per microbatch. A step is the index of a task, kind·v + chunk. */
struct task {
    enum task_kind kind;
    int chunk, stage;
    int64_t time;
    int rank;          // the rank that runs it
    int consumer;      // the rank that consumes its result; NONE for W and the last I
    int consumer_kind; // the consumer: F or I
    int consumer_stage;
    int edge; // edge of the result; NONE within a rank
};

typedef uint16_t pipe_step;

struct pipeline {
    int p, m, v, stages;
    int tasks;  // 3v
    int length; // of a rank's string: 3·v·m
    int limit;  // chunks that a rank may hold from F to W
    int edges;
    int64_t wire, latency;
    int64_t actions;       // of all ranks
    double ticks_per_unit; // ticks in one unit of the cost table
    struct task *task;     // [p][3v]
    int *of_stage;         // [stages] index in task[] of its F; its I is v further, its W 2v
    // State of a running clock.
    int64_t *arrival[2]; // [stages][m] time when the input of F, of I is on its rank; < 0: not yet
    int64_t *edge_free;  // [edges]
    int64_t *clock;      // [p]
    int *at;             // [p] index of the next step
    int *waits;          // [p] input that a rank waits for, or NONE
    int *done;           // [p][3v]
    int *ready;          // [p] stack of ranks that may continue
    int ready_count;
};

/* Creates the pipe of a schedule's placement. A chunk's times are those of its stage. */
struct pipeline *pipe_create(const struct schedule *placed, const struct cost_table *costs, int limit);
void pipe_destroy(struct pipeline *pipe);

static inline const struct task *pipe_task(const struct pipeline *x, int rank, int step)
{
    return &x->task[(size_t)rank * (size_t)x->tasks + (size_t)step];
}

/* Resets the clock: nothing is done, and the input of the first stage is available. */
void pipe_reset(struct pipeline *pipe);
/* Delivers the result of a task, which ended at `end`, to its consumer; returns the arrival time. */
int64_t pipe_deliver(struct pipeline *pipe, const struct task *task, int microbatch, int64_t end);

static inline pipe_step *rank_steps(const struct pipeline *x, pipe_step *steps, int rank)
{
    return steps + (size_t)rank * (size_t)x->length;
}

/* Returns the makespan in ticks of `steps` [p][length]; PIPE_NEVER for a deadlock. `starts` [p][length] may
 * be NULL. Requires every F, I and W m times and none before its inputs on its own rank: steps_allowed(). */
int64_t pipe_time(struct pipeline *pipe, const pipe_step *steps, int64_t *starts);

/* Returns true if every prefix of a rank's string has no more I than F and no more W than I of each chunk,
 * and the rank never holds more than the limit. */
bool steps_allowed(struct pipeline *pipe, int rank, const pipe_step *list);

/* Converts the lists of a schedule without transfers to strings, a B as I and W. */
void steps_of_schedule(const struct pipeline *pipe, const struct schedule *schedule, pipe_step *steps);
/* Converts back, into empty lists; with `fuse` an I directly followed by its W becomes a B. */
void steps_into_schedule(struct pipeline *pipe, const pipe_step *steps, bool fuse, struct schedule *out);

/* Simulates the pipe under many rules and writes the shortest result to `steps`; returns its makespan, at
 * most `known`, the makespan of the initial contents of `steps`. Simulates about `budget` actions; stops at
 * `goal`. */
int64_t greedy_search(struct pipeline *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps);

/* Local search: moves single steps as long as that does not increase the makespan; same arguments. */
int64_t local_search(struct pipeline *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps);
