// SPDX-License-Identifier: Apache-2.0
/* What the search of `auto` works on: a pipe with a time for everything, and per rank a string of steps.
 * Microbatches are alike, so a step need not name one: the k-th F of a chunk is that of microbatch k, and
 * so are the k-th I and the k-th W. (Nothing is lost: renaming the microbatches of any schedule, stage by
 * stage, in the order of their F, I and W leaves all times, all dependencies and all peaks as they are.)
 *
 *     1F1B, p 2, m 2, rank 0:  F F I W I W
 *
 * Times are whole ticks, so that a comparison has one outcome on every machine and a sum has no order. The
 * trap is a string that looks right and stops: pipe_time() alone knows whether ranks wait for each other. */
#pragma once

#include "schedules/edges.h"
#include "schedules/simulate.h"

#include <stdint.h>

enum part_kind { PART_F, PART_I, PART_W, PART_KINDS };
enum { NOBODY = -1 };
#define PIPE_NEVER INT64_MAX

/* What a rank does for each microbatch: one of its 3v parts. A step is the index of a part, kind·v + chunk.
 */
struct part {
    enum part_kind kind;
    int chunk, stage;
    int64_t time;
    int rank;       // whose part it is
    int feeds;      // the rank that consumes what it makes; NOBODY for W and the last I
    int feeds_kind; // as F or as I
    int feeds_stage;
    int edge; // that the value crosses; NOBODY within a rank
};

typedef uint16_t pipe_step;

struct pipe {
    int p, m, v, stages;
    int parts;  // 3v
    int length; // of a rank's string: 3·v·m
    int limit;  // chunks that a rank may hold from F to W
    int edges;
    int64_t wire, latency;
    int64_t actions;   // of all ranks
    double second;     // ticks in one unit of the cost table
    struct part *part; // [p][3v]
    int *of_stage;     // [stages] which of part[] is its F; its I is v further, its W 2v
    // The state of a clock that runs.
    int64_t *there[2];  // [stages][m] when the input of F, of I is on its rank; < 0: not yet
    int64_t *edge_free; // [edges]
    int64_t *clock;     // [p]
    int *at;            // [p] the next step
    int *waits;         // [p] the value a rank waits for, or NOBODY
    int *done;          // [p][3v]
    int *ready;         // [p] a stack of ranks that may go on
    int ready_count;
};

/* The pipe of a schedule's placement. A chunk's times are those of its stage. */
MUST_USE enum status pipe_create(const struct schedule *placed, const struct cost_table *costs, int limit,
                                 struct pipe **out);
void pipe_destroy(struct pipe *pipe);

static inline const struct part *pipe_part(const struct pipe *x, int rank, int step)
{
    return &x->part[(size_t)rank * (size_t)x->parts + (size_t)step];
}

/* Begins a clock: nothing is done, and the first stage's input is there. */
void pipe_reset(struct pipe *pipe);
/* Hands on what a part with someone to feed made at `end`; returns when it is there. */
int64_t pipe_deliver(struct pipe *pipe, const struct part *part, int microbatch, int64_t end);

static inline pipe_step *rank_steps(const struct pipe *x, pipe_step *steps, int rank)
{
    return steps + (size_t)rank * (size_t)x->length;
}

/* The makespan in ticks of `steps` [p][length]; PIPE_NEVER where they come to a stop. `starts` [p][length]
 * may be NULL. Every F, I and W is there m times and none before what it needs on its own rank:
 * steps_allowed(). */
int64_t pipe_time(struct pipe *pipe, const pipe_step *steps, int64_t *starts);

/* True where every prefix of a rank's string has no more I than F and W than I of a chunk, and holds no more
 * than the limit. */
bool steps_allowed(struct pipe *pipe, int rank, const pipe_step *list);

/* The lists of a schedule without transfers as strings, a B as I and W. */
void steps_of_schedule(const struct pipe *pipe, const struct schedule *schedule, pipe_step *steps);
/* And back, into empty lists; with `fuse` an I directly followed by its W becomes a B. */
void steps_into_schedule(struct pipe *pipe, const pipe_step *steps, bool fuse, struct schedule *out);

/* Plays the pipe on a clock under many rules and writes the shortest outcome to `steps`; returns its time,
 * not more than `known`, the time of what `steps` holds already. Spends about `budget` actions; ends at
 * `goal`. */
int64_t play_many(struct pipe *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps);

/* Moves single steps about as long as that makes the whole no longer; same arguments. */
int64_t improve(struct pipe *pipe, int64_t known, int64_t goal, int64_t budget, pipe_step *steps);
