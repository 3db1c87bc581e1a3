// SPDX-License-Identifier: Apache-2.0
/* Discrete-event simulation of lanes: the state of each lane and the loop that advances the one that ends
 * first. A lane is busy (with ops or with an exchange of messages), held by a wait, in an incomplete
 * rendezvous, or at its end. predict.c creates and destroys it. Private to this folder. */
#pragma once

#include "planner/predict/contention.h"
#include "planner/predict/period.h"
#include "planner/predict/predict.h"
#include "planner/predict/rendezvous.h"

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
    int series;                    // of rendezvous (rendezvous.h)
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
    bool out_of_memory; // for spans
    double limit_s;     // INFINITY: none
};

/* Appends a lane to the queue, unless it is in it. */
void lanes_wake(struct predictor *predictor, struct lane *lane);

/* The items of a busy lane take `overlap` times `crowding` as long from `now_s` on. */
void lane_change_speed(struct predictor *predictor, struct lane *lane, double overlap, double crowding,
                       double now_s);

/* Runs until no lane is busy, or out->exceeds. Lanes that have not reached their end then wait for each
 * other. */
void lanes_run(struct predictor *predictor);
