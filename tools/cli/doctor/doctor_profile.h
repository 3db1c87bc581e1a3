// SPDX-License-Identifier: Apache-2.0
/* A measured cluster profile of this machine. */
#pragma once

#include "tools/cli/doctor/doctor_measure.h"

/* Measures the tables of a profile and writes it to `path`: the peaks are the largest measured rates,
 * including the summary `c`, and the efficiency parameters are read off the tables. ranks: GPUs, or threads
 * of a CPU. quick: fewer shapes of ops. */
MUST_USE enum status doctor_profile_write(const char *path, const char *device, const char *transport,
                                          int ranks, bool quick, const struct ceilings *c);
