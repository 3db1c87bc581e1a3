// SPDX-License-Identifier: Apache-2.0
/* Discrete-event simulation of lanes: the state of each lane and the loop that advances the one that ends
 * first. A lane is busy (with ops or with an exchange of messages), held by a wait, in a meeting that is
 * incomplete, or at its end. predict.c makes and destroys it. Private to this folder. */
#pragma once

#include "trainer/plan/predict/meeting.h"
#include "trainer/plan/predict/predict.h"

enum { COMPUTE = 0, NO_SPAN = -1 }; // COMPUTE: the first lane of a tape

/* An event: when it was recorded, the transfer before it on its lane, and the span that ended then. */
struct recorded {
    double at_s;
    double transfer_s;
    enum predict_group group;
    int cause;
};

struct lane {
    const struct tape_lane *items;
    struct rank *rank;
    int order;                // of all lanes: which of two that end at the same time is first
    int at;                   // next item, or that which it is busy with
    int items_busy;           // with so many items from `at`; 0: not busy
    double now_s;             // end of the previous item
    double end_s;             // if busy
    double began_s, alone_s;  // if busy: since when, and for how long without overlap
    double left_s, left_at_s; // the compute lane with ops: alone_s not done yet, at which time
    double overlap, crowd;    // and how much slower it is since then, next to messages and on shared cores
    double shared_s;          // and until then, the time that shared cores have cost
    int heap_at;              // if busy: in the heap
    int cause;                // the span that ends at now_s; NO_SPAN: none, now_s is 0
    int span;                 // if busy and spans are recorded
    int first;                // number of its first event in the tape
    int events;               // recorded so far
    struct recorded *recorded;
    double transfer_s; // of messages since the last event
    enum predict_group group;
    bool slowed; // if busy: by a message next to it, at any time
    bool posted; // the messages of the next item are
    bool held;   // the next item is a wait for an event that is not recorded
    bool queued;
    struct lane *next;         // in the queue
    struct lane *next_waiting; // in a meeting
};

/* An op as it is needed in the loop. */
struct lane_op {
    double seconds; // run_s and launch_s
    int64_t count;  // of the compute lane, so far
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
    int series; // of meetings
    enum predict_group group;
};

/* The cores of a CPU. */
struct node_cores {
    int node;
    int ranks;    // with a tape
    double cores; // of the node
    double busy;  // those that its ranks take now
};

struct rank {
    const struct tape *tape;
    struct lane *lanes;
    struct lane_op *ops;           // [tape->op_count]
    struct lane_message *messages; // [tape->message_count]
    bool *in_update;               // [tape->action_count] from the optimizer on
    struct predicted_rank *out;
    int index;                // of the prediction's ranks
    int in_flight;            // exchanges that take place now
    struct node_cores *cores; // NULL: a device of its own
    bool computes;            // the compute lane runs ops
    double stands_for;        // ranks of its node, itself included
    double threads, waiting;  // cores that these take with ops, and while they wait for messages
    double taken;             // and now
};

struct predictor {
    struct rank *ranks;
    int count, lane_count;
    struct meetings *meetings;
    double slowdown;          // of ops next to messages: 1 or more
    struct node_cores *nodes; // [count] those of CPUs
    struct lane *head, *tail; // lanes that may be able to advance now
    struct heap_entry *heap;  // busy lanes, the first to end at 0; room for all lanes
    int busy;
    struct prediction *out;
    bool records_spans;
    int64_t span_capacity;
    bool out_of_memory; // of spans
};

/* Appends a lane to those that may be able to advance, unless it is among them. */
void lanes_wake(struct predictor *predictor, struct lane *lane);

/* Runs until no lane is busy. Lanes that have not reached their end then wait for each other. */
void lanes_run(struct predictor *predictor);
