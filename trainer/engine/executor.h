// SPDX-License-Identifier: Apache-2.0
/* Executes a rank's list of actions: where schedules and layers meet.
 *
 *   RECV_ACTIVATION  post the receive into the input of the microbatch's slot
 *   F                wait for the inputs, then stage_forward
 *   SEND_ACTIVATION  post the output
 *   RECV_GRADIENT    post the receive into a gradient buffer
 *   I, B             wait for the gradient; the buffer becomes the gradient of the input, in place
 *   SEND_GRADIENT    post the send; the buffer is free when the send has completed
 *   W, B             accumulate gradients, which layers/parameters/gradients.h reduces
 *
 * An action waits only for its own inputs. A stage boundary within one rank is a copy. Activations with a
 * long wait for their backward pass may be offloaded to host memory. Each action acquires its activations,
 * and releases those that it reads last (activation_store.h).
 *
 * Caution: slots are reused. The list fixes the last reader of a slot (slot_plan), except for messages, which
 * may still be reading: the activation store keeps the events of their completion. */
#pragma once

#include "layers/stage.h"
#include "parallel/p2p.h"
#include "schedules/peak.h"
#include "trainer/engine/activations/activation_store.h"
#include "trainer/engine/batches.h"
#include "trainer/engine/step_observer.h"
#include "trainer/trace/event_log.h"

struct recipe;

struct executor_config {
    const struct recipe *recipe;
    struct world *world;
    struct layer_context context;    // shared by the layers; the executor sets comm_stream and split_weight
    const struct schedule *schedule; // with transfers; must outlive the executor
    const int *stage_first_layer;    // [stages + 1]
    bool training;                   // false: forward passes only, no gradient buffers
    const struct step_observer *observer; // with run_stage_ops; NULL: none
    struct event_log *log;                // of the actions of training steps; must outlive the executor
};

struct executor;
MUST_USE enum status executor_create(const struct executor_config *config, struct executor **out);
void executor_destroy(struct executor *executor);

/* Executes one step over batches[0 .. m). Gradients are left summed over microbatches and data ranks; the
 * uses of a tied weight are not yet added. Writes each batch's sample_loss and sample_tokens on ranks with
 * the head. */
MUST_USE enum status executor_step(struct executor *executor, const struct batch *batches);

/* Starts a step that may still be cancelled, as far as the schedule allows (schedules/look_ahead.h): reads
 * weights, leaves gradients untouched. executor_step() with the same batches continues from there. */
MUST_USE enum status executor_look_ahead(struct executor *executor, const struct batch *batches);
/* Cancels the look-ahead: the step does not run, or runs with other inputs. Nothing of it is left once every
 * rank has called this. A rank that has not looked ahead posts the sends and receives that its peers expect,
 * without computing. */
MUST_USE enum status executor_drop_ahead(struct executor *executor);

/* Runs the forward passes of microbatches 0 .. count-1, without dropout. Stages overlap as in a training
 * step. */
MUST_USE enum status executor_evaluate(struct executor *executor, const struct batch *batches, int count);

/* Logits [T, columns >= V/tp] of the last forward pass of microbatch slot 0, in precision.params_dtype. Valid
 * on ranks with the head. */
struct tensor executor_logits(const struct executor *executor);

/* The activations of this rank's microbatches. */
const struct activation_store *executor_store(const struct executor *executor);
