// SPDX-License-Identifier: Apache-2.0
/* Runs a rank's list of actions: the only file that sees layers and schedules.
 *
 *   RECV_ACTIVATION  post the message into the input of the microbatch's slot
 *   F                wait for what it consumes, stage_forward
 *   SEND_ACTIVATION  post the output
 *   RECV_GRADIENT    post the message into a gradient buffer
 *   I, B             wait for it; the buffer becomes the gradient of the input, in place
 *   SEND_GRADIENT    post it; the buffer is free when the message has left
 *   W, B             add to the gradients; behind the last microbatch, a layer's bucket may leave
 *
 * An action waits only for what it consumes. A stage boundary within one rank is a copy. What waits long for
 * its backward pass may do so in the host's memory (offload.h).
 *
 * The trap: a slot has a next user. What its last reader was is decided by the list (slot_plan), except
 * for messages, which may still be reading: the events in `busy` say until when. */
#pragma once

#include "layers/stage.h"
#include "parallel/buckets.h"
#include "parallel/p2p.h"
#include "schedules/peak.h"
#include "trainer/engine/batches.h"
#include "trainer/engine/stash.h"
#include "trainer/engine/timeline.h"

struct executor_config {
    struct world *world;
    const struct groups *groups;
    struct weights *weights;
    struct stream *compute;
    const struct schedule *schedule; // with transfers; outlives the executor
    const int *stage_first_layer;    // [stages + 1]
    const struct model_config *model;
    int64_t batch, sequence;                 // B and S
    bool sequence_parallel, tp_comm_overlap; // the second: where the first is
    struct recompute recompute;
    bool offload_activations; // to the host, between forward and backward
    struct linear_precision precision;
    struct delayed_scaling delayed;
    const float *loss_scale; // on the device; NULL: none
    uint64_t seed;
    bool overlap_grad_reduce, nccl_ub;
    bool cuda_graphs; // F, I, W and B are replayed (kernels/device.h), where they have no messages of their
                      // own
    bool training;    // false: forward passes only; no room for gradients
};

struct executor;
MUST_USE enum status executor_create(const struct executor_config *config, struct executor **out);
void executor_destroy(struct executor *executor);

/* One step over batches[0 .. m): gradients are left summed over microbatches and data ranks, each use of a
 * tied weight alone. Each batch's sample_loss and sample_tokens are written where this rank has the head. */
MUST_USE enum status executor_step(struct executor *executor, const struct batch *batches);

/* The beginning of a step that is not yet certain to come, as far as the schedule allows
 * (schedules/look_ahead.h): weights are read, gradients stay. executor_step() of the same batches goes on
 * from there. */
MUST_USE enum status executor_look_ahead(struct executor *executor, const struct batch *batches);
/* The step does not come, or not like this: once every rank has called it nothing of it is left. A rank that
 * has not looked ahead sends and receives what its peers count on, without computing it. */
MUST_USE enum status executor_drop_ahead(struct executor *executor);

/* The forwards of the list, of microbatches 0 to count - 1 only, without dropout: stages overlap as in a
 * step. */
MUST_USE enum status executor_evaluate(struct executor *executor, const struct batch *batches, int count);

/* The logits [T, columns >= V/tp] of the last forward pass of microbatch slot 0, of precision.params_dtype,
 * on a rank with the head. */
struct tensor executor_logits(const struct executor *executor);

/* Where its microbatches' activations lie. */
const struct stash *executor_stash(const struct executor *executor);

/* Seconds that this rank spent inside F, B, I and W in the last step, without waiting for messages, and when
 * the first began and the last ended. */
struct step_times {
    double busy_s, first_start_s, last_end_s;
};
struct step_times executor_times(const struct executor *executor);

/* The same for every action of the list. */
const struct timeline *executor_timeline(const struct executor *executor);
