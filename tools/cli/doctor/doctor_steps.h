// SPDX-License-Identifier: Apache-2.0
/* Rates of ops on a CPU, measured in training steps, and thus with realistic operands, caches and threads.
 * Small models of both families train for a few steps, and an observer measures the time from each op to the
 * next action of its rank.
 *
 *   one thread per rank     as many ranks as cores, each of which trains a model of its own
 *   all threads             one rank */
#pragma once

#include "planner/profile/profile.h"

/* Adds samples to the tables of matmuls, attention and other ops, fp32 and bf16, and sets
 * model.step_overhead_s. Prints a line. Takes half a minute on two cores; quick: one of the models only, in
 * two seconds. */
MUST_USE enum status doctor_steps(int cores, bool quick, struct cluster_profile *profile);
