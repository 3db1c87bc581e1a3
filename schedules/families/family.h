// SPDX-License-Identifier: Apache-2.0
/* Interface of schedule families: an entry in FAMILIES (below), a generator and a memory claim. A generator
 * appends F, B or I and W with schedule_add(), per rank, in the rank's order, and nothing else: transfers are
 * added later. */
#pragma once

#include "schedules/schedule.h"

enum placement {
    PLACE_LOOPED,  // stage s on rank s mod p
    PLACE_V,       // down the ranks and up again, alternating: stage p is on the same rank as stage p-1
    PLACE_TWO_WAY, // stage s on rank s for direction 0, on rank p-1-s for direction 1
    PLACE_CUSTOM,  // per stage, as in a file
};

struct family {
    struct schedule_about about;
    enum placement placement;
    int default_v;
    bool groups; // supports microbatch_group_size
    /* Returns NULL if the family supports these options, else the reason: "it has one chunk per rank". */
    const char *(*restriction)(const struct schedule_options *options);
    void (*generate)(struct schedule *schedule);
    /* Replaces `generate` for families that create the complete schedule, including transfers. v may be 0. */
    enum status (*search)(const struct schedule_options *options, struct schedule **out);
    /* Returns the largest number of microbatches whose activations `rank` holds at once, over all its chunks,
     * each from its F to its W (or B). */
    int (*peak_claim)(const struct schedule *schedule, int rank);
};

/* Appends an action to the list of the rank that holds the stage for this microbatch. Ignores microbatches >=
 * m, so that generators may use a regular pattern. */
void schedule_add(struct schedule *schedule, enum action_kind kind, int stage, int microbatch);
/* Same, overlapped with the next action that is added. */
void schedule_add_overlapping(struct schedule *schedule, enum action_kind kind, int stage, int microbatch);

/* Creates a schedule with its placement and empty lists. */
struct schedule *schedule_create(const struct family *family, const struct schedule_options *options);

/* A custom placement: every rank holds stages / p stages of each direction. */
struct custom_placement {
    int p, m, stages;
    int second_from; // the first microbatch of direction 1; m if there is one direction
    int *rank_of[2]; // [stages] per direction; both are read
};

/* Creates an empty schedule of family "file" with a copy of this placement. */
struct schedule *schedule_create_custom(const struct custom_placement *given);

/* Measured progress, in percent of the time, after the generator, the transfers, a search. */
enum { GENERATED_PERCENT = 10, TRANSFERRED_PERCENT = 60, SEARCHED_PERCENT = 90 };

static inline void report_progress(const struct progress *progress, double percent)
{
    if (progress != NULL)
        progress->report(progress->context, percent);
}

/* Creates the lists of a family: without transfers (unless it has a search) and unchecked. Same errors as
 * schedule_build(). */
MUST_USE enum status schedule_generate(const struct schedule_options *options, struct schedule **out);

/* Completes a schedule: adds transfers if the options request them and it has none, and checks it. Destroys
 * the schedule on errors. */
MUST_USE enum status schedule_complete(struct schedule *schedule, const struct schedule_options *options);

/* schedule_add_transfers(), with every RECV placed as if the actions took these times: greater than 0 each,
 * and all sums exact. */
MUST_USE enum status schedule_add_transfers_by(struct schedule *schedule, const struct cost_table *times);

/* Appends to a growing list. Returns false if out of memory. */
void action_list_add(struct action_list *list, struct action action);

/* Creates the lists of zb-v; for m < 2p-1 their makespan is minimal if every action of a chunk takes one
 * unit. */
void zb_v_lists(struct schedule *schedule);
int64_t zb_v_units(int p, int m);
/* Creates the lists of the shortest building block found for the V placement in which no rank holds more
 * than `limit` chunks, if every action takes one unit. The search simulates about `units` actions and stops
 * at a makespan of `goal`. Headroom: actions that run out of order leave some activations free. Reserve:
 * during the fill ranks keep memory free for chunk 1, later ranks more of it. Drain: during the drain ranks
 * abandon the order of the block. Returns false if none was found. */
enum block_rule { WITH_HEADROOM, WITH_RESERVE, WITH_RESERVE_AND_DRAIN };
bool v_limited_lists(struct schedule *schedule, int limit, enum block_rule rule, int goal, int64_t units);

/* Restrictions shared by several families. */
const char *restriction_none(const struct schedule_options *options);
const char *restriction_one_chunk(const struct schedule_options *options);
const char *restriction_two_chunks(const struct schedule_options *options);

/* Order of a rank's chunks in looped placements: a group of microbatches through the first chunk, the same
 * group through the next, and so on; for backwards from the last chunk to the first. */
struct loop {
    const struct schedule *s;
    int rank;
    bool backwards;
    int first, size;   // of the group
    int chunk, within; // position within the group
};
struct loop loop_begin(const struct schedule *schedule, int rank, bool backwards);
/* Appends the next action in this order, if any is left. */
void loop_add(struct loop *loop, struct schedule *schedule, enum action_kind kind);
/* Returns the number of forwards before the first microbatch reaches the last chunk. */
int loop_ahead(const struct schedule *schedule);

/* Every family, once, in the order of lists and help: `family_NAME` is defined in a file of this folder, and
 * family_auto in schedules/search/auto.c. */
// clang-format off
#define FAMILIES(row) \
    row(gpipe)        \
    row(looped_bfs)   \
    row(1f1b)         \
    row(interleaved)  \
    row(zb_h1)        \
    row(zb_h2)        \
    row(zb_v)         \
    row(v_half)       \
    row(v_min)        \
    row(dualpipe)     \
    row(dualpipev)    \
    row(auto)
// clang-format on

#define FAMILY_ROW(name) extern const struct family family_##name;
FAMILIES(FAMILY_ROW)
#undef FAMILY_ROW
