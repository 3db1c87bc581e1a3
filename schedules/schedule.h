// SPDX-License-Identifier: Apache-2.0
/* A pipeline schedule is data: for every rank the list of its actions, in the order in which it does
 * them. 1F1B on two ranks, three microbatches:
 *
 *     rank 0:  0F0 0F1 0B0 0F2 0B1 0B2
 *     rank 1:  1F0 1B0 1F1 1B1 1F2 1B2
 *
 * The way of a list:  a family's generator, a pure function of (p, m, v)      schedule_build()
 *                     one pass for all families that adds the transfers       schedule_add_transfers()
 *                     the checker, which accepts exactly the sound ones       schedule_check()
 *                     and then whoever reads it: executor, simulator, drawings, slots (peak.h).
 *
 * Where a stage lives is a table too. p ranks hold v chunks each, so there are p·v stages:
 *
 *     looped, p 2 v 2     rank 0: stages 0 2     V-shaped, p 2 v 2     rank 0: stages 0 3
 *                         rank 1: stages 1 3                           rank 1: stages 1 2
 *     two-way, p 2        rank 0: stages 0 1     every stage twice: microbatches of direction 0 go
 *                         rank 1: stages 1 0     down the ranks, those of direction 1 go up
 *
 * so "who runs this action" is a question about stage *and* microbatch: schedule_rank(). The trap is
 * to compute it from the stage alone. */
#pragma once

#include "base/status.h"
#include "base/text.h"
#include "schedules/action.h"

struct action_list {
    struct action *actions;
    int count;
    int capacity;
};

struct cost_table;
struct family;

struct schedule {
    const struct family *family; // a constant, shared
    int p;                       // ranks of the pipeline
    int m;                       // microbatches of a step
    int v;                       // virtual stages: stages / p
    int stages;                  // p·v
    int chunks;                  // stages held by a rank: v, or 2v where each stage has two holders
    int group;                   // microbatches that a looping schedule runs before it changes the chunk
    int second_from;             // the first microbatch of direction 1; m where all have direction 0
    int limit;                   // of auto: chunks that a rank may hold from F to W
    int *rank_of[2];             // [stages] per direction; both are equal where there is one
    int *chunk_of[2];            // [stages] per direction: which chunk of that rank
    int *stage_of;               // [p][chunks]: the inverse
    struct action_list *ranks;   // [p]
    bool has_transfers;
    bool out_of_memory; // an action could not be added; schedule_build() then fails
};

/* Told now and then how much is done of what may take long, from 0 to 100. */
struct progress {
    void (*tell)(void *context, double percent);
    void *context;
};

struct schedule_options {
    const char *name;
    int p, m;
    int v;                     // 0: the family's own
    int microbatch_group_size; // 0: the family's own
    bool without_transfers;
    const struct progress *progress; // NULL: nobody is told
    /* For auto alone. Its times, of the stages that it will have; NULL: F, I and W take 1, a message nothing.
     * Where v is 0 it takes the better of v 1 and v 2, and the times are those of v 1: a chunk takes 1/v. */
    const struct cost_table *costs;
    /* How many microbatches' activations, of everything that a rank has, it may hold from F to W at once: v
     * chunks each. 0: no limit; else 1 or more. With v 2, 4.5 is nine chunks. */
    double memory_limit;
};

/* Builds the lists, adds the transfers, and checks them. BAD_SCHEDULE when there is no such name (with the
 * nearest one) or the family cannot take p, m, v (why, and what it can take); NO_MEMORY. */
MUST_USE enum status schedule_build(const struct schedule_options *options, struct schedule **out);
void schedule_destroy(struct schedule *schedule);

/* What the family `index` is called, does and takes; NULL past the last. */
struct schedule_about {
    const char *name;
    const char *idea;  // one sentence
    const char *takes; // "any p, any m, v = 1"
};
const struct schedule_about *schedule_about(int index);
/* "gpipe, 1f1b, zb-h1" */
void schedule_names(struct text *out);

/* What is beyond has more actions than any machine has memory for: a slip of the pen. */
enum {
    SCHEDULE_MOST_RANKS = 1 << 16,
    SCHEDULE_MOST_CELLS = 1 << 26
}; // cells: p·v stages times m microbatches

/* The v of a family where nothing else is said; 0 when no family is called that. */
int schedule_default_v(const char *name);
/* Why the family that `options` name cannot take its p, m and v; NULL when it can. */
const char *schedule_refusal(const struct schedule_options *options);
/* The largest m for p >= 1 and v >= 1; 0 where these alone are too many. */
int64_t schedule_most_microbatches(int p, int v);
/* What it takes instead; NULL when no family is called that. */
const char *schedule_takes(const char *name);

/* 1 for a microbatch that travels the second way of a two-way schedule, else 0. */
static inline int schedule_direction(const struct schedule *s, int microbatch)
{
    return microbatch >= s->second_from ? 1 : 0;
}

/* The rank that runs `stage` on `microbatch`, and which of its chunks that is. */
static inline int schedule_rank(const struct schedule *s, int stage, int microbatch)
{
    return s->rank_of[schedule_direction(s, microbatch)][stage];
}

static inline int schedule_chunk(const struct schedule *s, int stage, int microbatch)
{
    return s->chunk_of[schedule_direction(s, microbatch)][stage];
}

/* True where every stage is held twice: by the rank that runs it on the microbatches of direction 0, and by
 * the one for direction 1. */
bool schedule_has_replicas(const struct schedule *schedule);
/* True when some rank's list has an action of this kind; of one rank: that rank's list. */
bool schedule_has_kind(const struct schedule *schedule, enum action_kind kind);
bool schedule_rank_has_kind(const struct schedule *schedule, int rank, enum action_kind kind);
/* True when `rank` holds `stage`, for either direction. */
bool schedule_holds(const struct schedule *schedule, int rank, int stage);
/* The last microbatch of one direction: behind it, a chunk's weights get no more gradients. */
bool schedule_is_last(const struct schedule *schedule, int microbatch);
/* The stage that is chunk `chunk` of `rank`. */
static inline int schedule_stage(const struct schedule *s, int rank, int chunk)
{
    return s->stage_of[(size_t)rank * (size_t)s->chunks + (size_t)chunk];
}

/* Adds to a schedule without transfers every SEND and RECV where a stage boundary lies between two
 * ranks, so that the lists cannot deadlock even if each of them blocks until its partner comes. BAD_SCHEDULE
 * for lists that cannot run at all. */
MUST_USE enum status schedule_add_transfers(struct schedule *schedule);

/* The first thing that is wrong with a schedule. */
struct complaint {
    int rank;     // -1: no single one
    int position; // in that rank's list; -1: something that is missing
    char text[512];
};

/* Accepts exactly the sound lists, before or after the transfers were added:
 *   every F, and B or I and W, once for each stage and microbatch, on the rank that holds the stage;
 *   an action only after what it consumes; backwards for the weights in microbatch order per chunk,
 *   since gradients must add up in that order; every boundary between ranks crossed by one SEND and
 *   its RECV, in the same order at both ends of an edge; no deadlock even if every transfer blocks;
 *   no more activations at once than the family claims.
 * Else BAD_SCHEDULE, fail_text(), and `why` (may be NULL): "rank 3, action 0: 3B0 runs before 3F0". */
MUST_USE enum status schedule_check(const struct schedule *schedule, struct complaint *why);
