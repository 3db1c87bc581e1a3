// SPDX-License-Identifier: Apache-2.0
/* For those who write a schedule: a family is one row, a generator and a claim about memory. The row
 * goes into the table of families.c. A generator adds F, B or I and W with schedule_add(), per rank, in
 * the rank's order, and nothing else: transfers are somebody else's work. */
#pragma once

#include "schedules/schedule.h"

enum placement {
    PLACE_LOOPED,  // stage s on rank s mod p
    PLACE_V,       // down the ranks and up again, and so on: stage p sits with stage p-1
    PLACE_TWO_WAY, // stage s on rank s for direction 0, on rank p-1-s for direction 1
    PLACE_GIVEN,   // stage by stage, as a file says
};

struct family {
    struct schedule_about about;
    enum placement placement;
    int default_v;
    bool groups; // microbatch_group_size means something
    /* NULL when the family can take these, else the reason: "it has one chunk per rank". */
    const char *(*refuses)(const struct schedule_options *options);
    void (*generate)(struct schedule *schedule);
    /* Instead of `generate`, where a family makes the whole schedule, transfers included. v may be 0. */
    enum status (*search)(const struct schedule_options *options, struct schedule **out);
    /* The most microbatches whose activations `rank` holds at once, over all its chunks, each from its
     * F to its W (or B). */
    int (*peak_claim)(const struct schedule *schedule, int rank);
};

/* Appends an action to the list of the rank that holds the stage for this microbatch; a microbatch that
 * does not exist (m or more) is passed over, so a generator may count on as many as its pattern needs. */
void schedule_add(struct schedule *schedule, enum action_kind kind, int stage, int microbatch);
/* The same, running together with whatever is added next. */
void schedule_add_overlapping(struct schedule *schedule, enum action_kind kind, int stage, int microbatch);

/* An empty schedule with its placement; the lists are to be filled. */
MUST_USE enum status schedule_create(const struct family *family, const struct schedule_options *options,
                                     struct schedule **out);

/* A placement of one's own, in which every rank holds stages / p stages of each direction. */
struct placement_given {
    int p, m, stages;
    int second_from; // the first microbatch of direction 1; m where there is one direction
    int *rank_of[2]; // [stages] per direction; both are read
};

/* An empty schedule of no family, called "file", with a copy of this placement. */
MUST_USE enum status schedule_create_given(const struct placement_given *given, struct schedule **out);

/* How much of the way to a checked schedule is done, as measured: behind the generator, the transfers, a
 * search. */
enum { GENERATED_PERCENT = 10, TRANSFERRED_PERCENT = 60, SEARCHED_PERCENT = 90 };

static inline void tell(const struct progress *progress, double percent)
{
    if (progress != NULL)
        progress->tell(progress->context, percent);
}

/* The lists as their family makes them: without transfers (but where it searches), and not yet checked.
 * Refuses as schedule_build() does. */
MUST_USE enum status schedule_generate(const struct schedule_options *options, struct schedule **out);

/* Whole lists to a schedule that can be run: its transfers, where the options want them and it has none, and
 * the check. Where it fails the schedule is destroyed. */
MUST_USE enum status schedule_complete(struct schedule *schedule, const struct schedule_options *options);

/* schedule_add_transfers(), with every RECV placed as if the actions took these times: more than 0 each, and
 * all sums of them exact. */
MUST_USE enum status schedule_add_transfers_by(struct schedule *schedule, const struct cost_table *times);

/* A list that grows. False when there is no memory. */
bool action_list_add(struct action_list *list, struct action action);

/* The lists of zb-v, and for m < 2p-1 their makespan where every action of a chunk takes one unit. */
void zb_v_lists(struct schedule *schedule);
int64_t zb_v_units(int p, int m);
/* The lists of the shortest building block found on the V in which no rank holds more than `limit` chunks,
 * where every action takes one unit; the search plays about `units` actions, and ends at a makespan of
 * `goal`. With a reserve ranks keep memory for chunk 1 while the pipe fills, the later ones more of it; with
 * a drain they leave the order of the block while it drains. False: none was found. */
enum block_rule { WITH_SPARES, WITH_RESERVE, WITH_RESERVE_AND_DRAIN };
bool v_limited_lists(struct schedule *schedule, int limit, enum block_rule rule, int goal, int64_t units);

/* Reasons that several families share. */
const char *refuses_nothing(const struct schedule_options *options);
const char *refuses_many_chunks(const struct schedule_options *options);
const char *refuses_other_than_two_chunks(const struct schedule_options *options);

/* A rank's way through its chunks where placement is looped: a group of microbatches through the first
 * chunk, the same group through the next, and so on; for backwards from the last chunk to the first. */
struct loop {
    const struct schedule *s;
    int rank;
    bool backwards;
    int first, size;   // of the group
    int chunk, within; // how far within the group
};
struct loop loop_begin(const struct schedule *schedule, int rank, bool backwards);
/* Adds the next action of the way, until there is none left. */
void loop_add(struct loop *loop, struct schedule *schedule, enum action_kind kind);
/* Forwards that come before the first microbatch reaches the last chunk. */
int loop_ahead(const struct schedule *schedule);

extern const struct family family_gpipe;
extern const struct family family_looped_bfs;
extern const struct family family_1f1b;
extern const struct family family_interleaved;
extern const struct family family_zb_h1;
extern const struct family family_zb_h2;
extern const struct family family_zb_v;
extern const struct family family_v_half;
extern const struct family family_v_min;
extern const struct family family_dualpipe;
extern const struct family family_dualpipev;
extern const struct family family_auto;
