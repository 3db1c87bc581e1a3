// SPDX-License-Identifier: Apache-2.0
/* Discrete-event simulation of lanes: the state of each lane and the loop that advances the one that ends
 * first. A lane is busy (with ops or with an exchange of messages), held by a wait, in an incomplete
 * rendezvous, or at its end. predict.c creates and destroys it. Private to this folder. */
#pragma once

#include "planner/cost/cost.h"
#include "planner/predict/predict.h"
#include "planner/tape/tape.h"

#include <stdbool.h>

struct predictor;
struct rank;
struct lane;

/* ---- contention.c ---- */

/* Messages that are transferred at the same time share the links and the NICs of their ranks. Each of n
 * messages over one of these in the same direction has an n-th of its bandwidth; a message is as slow as the
 * busier of its ends. Two sends of rank 0, of 40 and of 60 s:
 *
 *     rank 0   NIC out  ▒▒▒▒▒▒▒▒▒▒        at half the speed, 20 s alone at the end
 *     rank 1   NIC in   ▒▒▒▒▒▒▒▒          40 s take 80
 *     rank 2   NIC in   ▒▒▒▒▒▒▒▒▒▒        60 s take 100
 *
 * A collective uses both directions: those of the NIC if its group has ranks on several nodes, else those of
 * the links; its speed is determined on each rank alone. The messages of one exchange count once. Copies
 * between host and device share nothing. On a CPU it is the thread of the rank that is shared. */

/* What a rank uses for a message, as a set of bits. */
enum { NIC_OUT = 1, NIC_IN = 2, LINKS_OUT = 4, LINKS_IN = 8, CONTENDED = 4 };
unsigned contention_uses(enum call call, struct group_shape shape);

/* In-flight messages of a rank. */
struct rank_contention {
    int users[CONTENDED];
    struct lane **peer_lanes; // lanes of other ranks with a message to or from this rank; room for all lanes
    int peer_lane_count;
};

/* The messages of a busy lane begin or end at `now_s`: updates the ends of all that share something with
 * them. */
void contention_begin(struct predictor *predictor, struct lane *lane, double now_s);
void contention_end(struct predictor *predictor, struct lane *lane, double now_s);

/* ---- period.c ---- */

/* The period of consecutive steps with optimizer post-validation (trainer/optimizer/post_validation.h). A
 * rank starts the next step when the ranks above it have passed down their report, before the last rank has
 * ended, so the time of a step is shorter than the simulated one, from the first op to the last:
 *
 *     rank 0   F F F B W B W B W u|F F F B W ...       u  update
 *     rank 1     F F B W F B W B W u|F F B W ...
 *              ├──── period ─────┤
 *              ├───── simulated ──────┤
 *
 * It is the longest time of a rank from its first pass to its update, where an update follows those of the
 * ranks above, and at least so long that the verdict of the last rank arrives before the first backward pass
 * of the next step. */

/* Phases of a step, in this order on each rank. */
enum step_phase { PHASE_BEFORE, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASE_VERDICT };
/* The phase of an action: of a schedule, "optimizer" or "verdict"; PHASE_BEFORE: another one. */
enum step_phase period_phase(const struct tape_action *action);

/* Times of a rank's compute lane. */
struct rank_period {
    double before_s;        // duration of the ops before the first pass
    double begin_s, turn_s; // start of the first forward and of the first backward pass; 0: none
    double ready_s;         // end of the last op before the verdict
    double verdict_s;       // duration of the ops of the verdict
    bool begun, turned;
};
/* Call it when ops of the compute lane end. */
void period_note(const struct lane *lane);

/* Whether the tape of the rank has a verdict. */
bool period_has_verdict(const struct rank *rank);

/* Sets step_s and overlap_s of the prediction, if the tapes have a verdict. */
void period_find(struct predictor *predictor);

/* ---- rendezvous.c ---- */

/* Rendezvous of lanes of several tapes: one per collective, and one per message between two ranks. */

struct rendezvous {
    int joined, expected;
    int cause;            // the span of the last lane to join, which ends then (lanes.h)
    double ready_s;       // time at which the last lane joined
    struct lane *waiting; // linked by lane.next_waiting
};

struct rendezvous_table;
struct rendezvous_table *rendezvous_table_create(struct tape *const *tapes, int count);
void rendezvous_table_destroy(struct rendezvous_table *table); // takes NULL

/* Returns the series that a message belongs to, the same on all tapes: the collectives of a group, or the
 * messages from one of its ranks to another. */
int rendezvous_series(struct rendezvous_table *table, const struct tape *tape,
                      const struct tape_message *message);

/* Makes room for rendezvous 1 to `number` of a series. */
void rendezvous_reserve(struct rendezvous_table *table, int series, int64_t number);
/* Returns rendezvous `number` of a series, valid until more is reserved. NULL: a rank alone, which waits for
 * none: usually a collective of ranks that one tape represents. */
struct rendezvous *rendezvous_at(const struct rendezvous_table *table, int series, int64_t number);

/* ---- lanes.c ---- */

enum { COMPUTE = 0, NO_SPAN = -1, NO_PEER = -1 }; // COMPUTE: the first lane of a tape

/* A recorded event: its time, the transfer before it on its lane, and the span that ended then. */
struct recorded_event {
    double at_s;
    double transfer_s;
    enum predict_group group;
    int cause;
};

struct lane {
    const struct tape_lane *items;
    struct rank *rank;
    int order;                // index among all lanes; the lower one of two that end together is first
    int at;                   // index of the next item, or of the first one in progress
    int items_busy;           // number of items in progress; 0: not busy
    double now_s;             // end of the previous item
    double end_s;             // if busy
    double began_s, alone_s;  // if busy: start; duration without overlap
    double left_s, left_at_s; // if busy: the part of alone_s that was left at time left_at_s
    double overlap, crowding; // factors on its time since left_at_s: messages, shared cores
    double shared_s;          // time lost to shared cores before left_at_s
    double paused_s;          // time before left_at_s in which the rank's thread moved messages
    int heap_at;              // if busy: index in the heap
    int cause;                // the span that ends at now_s; NO_SPAN: none, now_s is 0
    int span;                 // if busy and spans are recorded
    int first;                // number of its first event in the tape
    int events;               // recorded so far
    struct recorded_event *recorded;
    double transfer_s; // of messages since the last event
    enum predict_group group;
    unsigned uses;             // if busy with messages: contention_uses() of all
    bool slowed;               // if busy: has overlapped with a message
    bool posted;               // the messages of the next item are posted
    bool held;                 // the next item is a wait for an event that is not recorded yet
    bool queued;               // in the predictor's queue
    struct lane *next;         // in that queue
    struct lane *next_waiting; // in the list of a rendezvous
};

/* An op, reduced to what the simulation reads. */
struct lane_op {
    double seconds; // run_s and launch_s
    int64_t count;  // times run on the compute lane so far
    double run_s, launch_s;
    enum cost_class class;
    bool is_copy;
};

/* A busy lane in the heap, with its end_s. */
struct heap_entry {
    double end_s;
    struct lane *lane;
};

struct lane_message {
    double seconds;
    struct rendezvous *rendezvous; // NULL: no other rank takes part
    int series;                    // of rendezvous
    unsigned uses;                 // contention_uses()
    int peer;                      // index of the other rank in prediction.ranks; NO_PEER: a collective
    enum predict_group group;
};

/* The cores of a node's CPU. */
struct node_cores {
    int node;
    int ranks; // ranks of the node that have a tape
    double cores;
    double busy;              // cores in use by these ranks
    double measured_crowding; // ranks for each core while message times were measured; 0: they were not
};

struct rank {
    const struct tape *tape;
    struct lane *lanes;
    struct lane_op *ops;           // [tape->op_count]
    struct lane_message *messages; // [tape->message_count]
    enum step_phase *phases;       // [tape->action_count]
    struct rank_period period;
    struct rank_contention contention;
    struct predicted_rank *out;
    int index;                // in prediction.ranks
    int in_flight;            // exchanges in progress
    enum predict_group moved; // if any: the group of the one that began last
    struct node_cores *cores; // NULL: the rank has its own device
    bool computes;            // the compute lane is running ops
    double represents;        // ranks of its node: itself, and those without a tape that it represents
    double threads, waiting;  // cores used by these ranks while running ops, and while waiting for messages
    double taken;             // cores used by these ranks now
    double ops_left_s; // at least the time of the ops that the compute lane has not begun; only with a limit
};

struct predictor {
    struct rank *ranks;
    int count, lane_count;
    struct rendezvous_table *rendezvous;
    double slowdown;          // factor on the time of ops that overlap with messages: 1 or more
    struct node_cores *nodes; // [count], only on CPUs
    struct lane *head, *tail; // queue of lanes that may be able to advance
    struct heap_entry *heap;  // busy lanes, earliest end first; capacity for all lanes
    int busy;
    struct prediction *out;
    bool records_spans;
    int64_t span_capacity;
    double limit_s; // INFINITY: none
};

/* Appends a lane to the queue, unless it is in it. */
void lanes_wake(struct predictor *predictor, struct lane *lane);

/* The items of a busy lane take `overlap` times `crowding` as long from `now_s` on. */
void lane_change_speed(struct predictor *predictor, struct lane *lane, double overlap, double crowding,
                       double now_s);

/* Runs until no lane is busy, or out->exceeds. Lanes that have not reached their end then wait for each
 * other. */
void lanes_run(struct predictor *predictor);

/* ---- lane_heap.c ---- */

/* Busy lanes, ordered by the time at which they end: a binary heap in struct predictor. */

void lane_heap_push(struct predictor *predictor, struct lane *lane);
struct lane *lane_heap_pop(struct predictor *predictor);
void lane_heap_update(struct predictor *predictor, struct lane *lane); // its end_s changed

/* ---- critical_path.c ---- */

/* The critical path of a predicted step. */

/* Marks the spans of the critical path, and adds up its parts. Call it after a simulation with spans. */
void critical_path_find(struct predictor *predictor);
