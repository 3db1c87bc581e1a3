// SPDX-License-Identifier: Apache-2.0
/* Weight gathers of a sharded optimizer (ZeRO 1 and 2) as in a program that overlaps them with the forward
 * passes of the next step. Of consecutive equal steps each begins with the gathers of the one before:
 *
 *     compute   F F B B u G1 G2            compute   w1 F w2 F B B u
 *                                          gathers   G1 G2
 *
 * F, B: passes; u: optimizer; w: wait for the gather of the weights that the following ops read. The first
 * passes of all chunks of a rank are assumed to read the weights in equal parts, in the order of the
 * gathers. */
#pragma once

#include "planner/tape/tape.h"

/* Moves the gathers. A tape without any, or without a forward pass, remains as it is. NO_MEMORY. */
MUST_USE enum status tape_overlap_gathers(struct tape *tape);
