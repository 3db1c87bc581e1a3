// SPDX-License-Identifier: Apache-2.0
/* The measured tables of a profile: matmuls by shape and type, copies by size, messages by size and number of
 * ranks. Takes at most half a minute on two cores. */
#pragma once

#include "planner/profile/profile.h"

/* Measures one device with all cores, and messages between up to `most_ranks` ranks of `transport`. Types
 * that the device does not support are omitted. quick: fewer shapes of ops. Prints a line for each table. */
MUST_USE enum status doctor_tables(const char *device, const char *transport, int most_ranks, bool quick,
                                   struct cluster_profile *profile);
