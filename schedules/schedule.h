// SPDX-License-Identifier: Apache-2.0
/* Pipeline schedules as data: for every rank the ordered list of its actions. 1F1B on two ranks, three
 * microbatches:
 *
 *     rank 0:  0F0 0F1 0B0 0F2 0B1 0B2
 *     rank 1:  1F0 1B0 1F1 1B1 1F2 1B2
 *
 * Steps:  the generator of a family, a pure function of (p, m, v)    schedule_build()
 *         insertion of transfers, common to all families             schedule_add_transfers()
 *         the checker, which accepts exactly the valid schedules     schedule_check()
 *         used by the executor, the simulator, drawings and slots (peak.h)
 *
 * The placement of stages is a table too. p ranks hold v chunks each, so there are p·v stages:
 *
 *     looped, p 2 v 2     rank 0: stages 0 2     V-shaped, p 2 v 2     rank 0: stages 0 3
 *                         rank 1: stages 1 3                           rank 1: stages 1 2
 *     two-way, p 2        rank 0: stages 0 1     every stage twice: microbatches of direction 0 go
 *                         rank 1: stages 1 0     down the ranks, those of direction 1 go up
 *
 * Caution: the rank of an action depends on its stage *and* microbatch, never on the stage alone:
 * schedule_rank(). */
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
    const struct family *family; // static constant
    int p;                       // ranks of the pipeline
    int m;                       // microbatches per step
    int v;                       // virtual stages: stages / p
    int stages;                  // p·v
    int chunks;                  // stages per rank: v, or 2v if each stage has two replicas
    int group;                   // looped schedules: microbatches run before the chunk changes
    int second_from;             // the first microbatch of direction 1; m if all have direction 0
    int limit;                   // auto: chunks that a rank may hold from F to W
    int *rank_of[2];             // [stages] per direction; both are equal if there is one direction
    int *chunk_of[2];            // [stages] per direction: index of the chunk on that rank
    int *stage_of;               // [p][chunks]: inverse mapping
    struct action_list *ranks;   // [p]
    bool has_transfers;
};

/* Callback with the progress of long searches, in percent. */
struct progress {
    void (*report)(void *context, double percent);
    void *context;
};

struct schedule_options {
    const char *name;
    int p, m;
    int v;                     // 0: default of the family
    int microbatch_group_size; // 0: default of the family
    bool without_transfers;
    const struct progress *progress; // NULL: no progress reports
    /* auto only. Times per stage; NULL: F, I and W take 1, a message 0. If v is 0, the better of v 1 and v 2
     * is chosen, and the times are those of v 1: a chunk takes 1/v. */
    const struct cost_table *costs;
    /* Number of microbatches whose activations, of all chunks of a rank, may be held from F to W at once: v
     * chunks each. 0: no limit; else 1 or more. With v 2, 4.5 means nine chunks. */
    double memory_limit;
};

/* Builds the lists, adds the transfers, and checks them. BAD_SCHEDULE for an unknown name (suggests the
 * nearest one) or if the family does not support p, m, v (gives the reason and valid values). */
MUST_USE enum status schedule_build(const struct schedule_options *options, struct schedule **out);
/* Same with the placement of the stages and empty lists: quick. NOT_SUPPORTED for a search. */
MUST_USE enum status schedule_build_placement(const struct schedule_options *options, struct schedule **out);
void schedule_destroy(struct schedule *schedule);

/* Returns name, description and supported sizes of family `index`; NULL after the last. */
struct schedule_about {
    const char *name;
    const char *summary;  // one sentence
    const char *supports; // "any p, any m, v = 1"
};
const struct schedule_about *schedule_about(int index);
/* "gpipe, 1f1b, zb-h1" */
void schedule_names(struct text *out);

/* Larger schedules have more actions than fit into memory: an input error. */
enum {
    SCHEDULE_MAX_RANKS = 1 << 16,
    SCHEDULE_MAX_CELLS = 1 << 26 // p·v stages times m microbatches
};

/* Returns the default v of a family; 0 for an unknown name. */
int schedule_default_v(const char *name);
/* Returns the reason why the family in `options` does not support its p, m and v; NULL if it does. */
const char *schedule_unsupported(const struct schedule_options *options);
/* Returns the largest m for p >= 1 and v >= 1; 0 if these alone are too large. */
int64_t schedule_max_microbatches(int p, int v);
/* Returns the supported sizes of a family; NULL for an unknown name. */
const char *schedule_supported_sizes(const char *name);

/* Returns 1 for a microbatch of the second direction of a two-way schedule, else 0. */
static inline int schedule_direction(const struct schedule *s, int microbatch)
{
    return microbatch >= s->second_from ? 1 : 0;
}

/* Returns the rank that runs `stage` on `microbatch`, and the chunk on that rank. */
static inline int schedule_rank(const struct schedule *s, int stage, int microbatch)
{
    return s->rank_of[schedule_direction(s, microbatch)][stage];
}

static inline int schedule_chunk(const struct schedule *s, int stage, int microbatch)
{
    return s->chunk_of[schedule_direction(s, microbatch)][stage];
}

/* Returns true if every stage has two replicas: one for microbatches of direction 0, one for direction 1. */
bool schedule_has_replicas(const struct schedule *schedule);
/* Returns true if any rank, or the given rank, has an action of this kind. */
bool schedule_has_kind(const struct schedule *schedule, enum action_kind kind);
bool schedule_rank_has_kind(const struct schedule *schedule, int rank, enum action_kind kind);
/* Returns true if `rank` has actions I and W instead of B: gradients of outputs then live from I to W. */
bool schedule_splits_backward(const struct schedule *schedule, int rank);
/* Returns true if `rank` holds `stage`, for either direction. */
bool schedule_holds(const struct schedule *schedule, int rank, int stage);
/* Returns true for the last microbatch of a direction: after it, a chunk's weights get no more gradients. */
bool schedule_is_last(const struct schedule *schedule, int microbatch);
/* Returns the stage of chunk `chunk` of `rank`. */
static inline int schedule_stage(const struct schedule *s, int rank, int chunk)
{
    return s->stage_of[(size_t)rank * (size_t)s->chunks + (size_t)chunk];
}

/* Inserts SEND and RECV at every stage boundary between two ranks, such that the lists cannot deadlock even
 * if every transfer blocks. BAD_SCHEDULE for lists that cannot run. */
MUST_USE enum status schedule_add_transfers(struct schedule *schedule);

/* The first error in a schedule. */
struct schedule_error {
    int rank;     // -1: not a single rank
    int position; // in that rank's list; -1: an action is missing
    char text[512];
};

/* Accepts exactly the valid schedules, with or without transfers:
 *   every F, and B or I and W, once for each stage and microbatch, on the rank that holds the stage;
 *   an action only after its inputs; weight gradients in microbatch order per chunk, since gradients
 *   must be accumulated in that order; one SEND and its RECV at every boundary between ranks, in the
 *   same order at both ends of an edge; no deadlock even if every transfer blocks;
 *   no more activations at once than the family claims.
 * Else BAD_SCHEDULE, fail_text(), and `why` (may be NULL): "rank 3, action 0: 3B0 runs before 3F0". */
MUST_USE enum status schedule_check(const struct schedule *schedule, struct schedule_error *why);
