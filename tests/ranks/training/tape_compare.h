// SPDX-License-Identifier: Apache-2.0
/* Compares the tape of a rank with another one, and with independent counts. OUT_OF_BOUND describes the first
 * difference. */
#pragma once

#include "planner/tape/tape.h"
#include "tests/support/traffic.h"

/* Compares the tape of a real run with the one of the dry device: streams, ops, messages, events and waits in
 * order. Numbers of events are those of the device, so an event is identified by its record. An event of the
 * cpu device is the number of messages before it: records without a message in between are equal there. */
MUST_USE enum status tape_compare(const struct tape *real, const struct tape *plan);

/* Compares calls and bytes of each group with those that were counted. */
MUST_USE enum status tape_compare_traffic(const struct tape *tape, const struct traffic *counted);

/* Checks the messages of all ranks: a receive of equal number, bytes and type on the peer's tape for each
 * send, and the reverse; and an equal call of each collective on all ranks of its group. */
MUST_USE enum status tapes_match(struct tape *const *tapes, int ranks);

/* FLOPs of all matmuls of a step, of all ranks: per token 6 for each element of a weight matrix, padding and
 * replicas included, and 2 for each that is recomputed. */
double expected_matmul_flops(const struct run *run);
