// SPDX-License-Identifier: Apache-2.0
/* The tape of a rank: what the program enqueues in one training step, by stream, in order. The real program
 * runs on the dry device (kernels/dry/), and an observer (kernels/observe.h) writes the tape, so there
 * is no second description of a step that could differ from it.
 *
 *     lane "compute"   gemm 0F0, ..., record 1, wait lane 2 number 1, adamw
 *     lane "gradients" wait lane 0 number 1, reduce_scatter dp, record 1
 *
 * A lane is a stream. Equal ops and groups are stored once, so a tape of a large model is small: an item
 * refers to them by index. */
#pragma once

#include "kernels/device_plan.h"
#include "kernels/observe.h"
#include "parallel/comm.h"
#include "trainer/engine/rank.h"

enum tape_kind {
    TAPE_OP,      // index: into ops
    TAPE_MESSAGE, // index: into messages
    TAPE_RECORD,  // index: number of this event on its lane; consecutive
    TAPE_WAIT,    // index: number of an event of `lane`; complete if it was recorded before the step
};

struct tape_item {
    enum tape_kind kind : 16;
    int16_t lane; // TAPE_WAIT: the lane that recorded the event
    int index;    // see tape_kind
    int action;   // index into actions: the part of the step that enqueued it
    int layer;    // of the model, for which it was enqueued; NO_LAYER: none
};

/* Members are world ranks, in group order. */
struct tape_group {
    char name[32]; // "tp", "dp|cp", "pp 0>1"
    int size;
    int *ranks;
};
/* A group of data-parallel ranks: "dp", "dp|cp". */
bool tape_group_is_data(const struct tape_group *group);

struct tape_message {
    enum call call;
    enum dtype dtype;
    int group;      // index into groups
    int64_t bytes;  // of the whole tensor (observe_world.h)
    int peer;       // world rank, for send and receive; the root of a broadcast; else -1
    int64_t number; // from 1, of the collectives of the group, or of the sends to (receives from) the peer
    bool with_previous; // part of the same exchange as the lane's previous item
};

struct tape_lane {
    char name[24];
    struct tape_item *items;
    int count;
};

struct tape_action {
    char name[48]; // "3F7", "load", "reduce", "update"
    struct scheduled_action scheduled;
};

struct tape {
    int rank;
    struct tape_lane *lanes;
    struct op_record *ops;
    struct tape_group *groups;
    struct tape_message *messages;
    struct tape_action *actions;
    int lane_count, op_count, group_count, message_count, action_count;
};

/* An F: the first forward pass of a microbatch, not a recomputed one. */
bool tape_action_is_forward(const struct tape_action *action);

void tape_destroy(struct tape *tape); // takes NULL

/* Longer tapes, of more than 1 GB, are not recorded. */
enum { TAPE_MAX_ITEMS = 64000000 };

/* The number of items of all lanes. */
int64_t tape_items(const struct tape *tape);

/* Records the tape of a rank on any device; memory_plan_record() uses the dry device. Attach the recorder's
 * observer to the device, and to the world before its comms are created. All that is enqueued between the
 * calls with true and false is recorded: exactly one step. */
struct tape_recorder;
struct tape_recorder *tape_recorder_create(int rank);
struct observer tape_recorder_observer(struct tape_recorder *recorder);
void tape_recorder_record(struct tape_recorder *recorder, bool on); // off until then
/* Destroys the recorder: its observer must not be called any more, so close the device and the world's comms
 * before. NOT_SUPPORTED if it would be too long. */
MUST_USE enum status tape_recorder_finish(struct tape_recorder *recorder, struct tape **out);

/* ---- tape_gathers.c ---- */

/* Weight gathers of a sharded optimizer (ZeRO 1 and 2) as in a program that overlaps them with the forward
 * passes of the next step. Of consecutive equal steps each begins with the gathers of the one before:
 *
 *     compute   F F B B u G1 G2            compute   w1 F w2 F B B u
 *                                          gathers   G1 G2
 *
 * F, B: passes; u: optimizer; w: wait for the gather of the weights that the following ops read. The first
 * passes of all chunks of a rank are assumed to read the weights in equal parts, in the order of the
 * gathers. */

/* Moves the gathers. A tape without any, or without a forward pass, remains as it is. */
void tape_overlap_gathers(struct tape *tape);
