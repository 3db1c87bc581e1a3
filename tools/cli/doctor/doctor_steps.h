// SPDX-License-Identifier: Apache-2.0
/* Rates of ops on a CPU, measured inside of training steps: with the operands, the caches and the threads
 * that they have there. Small models of both families train for a few steps, and an observer takes the time
 * from each op to the next thing that its rank does.
 *
 *   one thread per rank     as many ranks as cores, each of which trains a model of its own
 *   all threads             one rank */
#pragma once

#include "trainer/plan/profile/profile.h"

/* Adds samples to the tables of matmuls, attention and other ops, fp32 and bf16, and sets
 * model.step_overhead_s. Prints a line. Half a minute on two cores. */
MUST_USE enum status doctor_steps(int cores, struct cluster_profile *profile);
