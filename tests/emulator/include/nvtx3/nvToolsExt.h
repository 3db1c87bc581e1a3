// SPDX-License-Identifier: Apache-2.0
/* The subset of NVTX that the cuda device uses, for a test as the profiler: it records the names of this
 * thread's ranges in order, each with '<' before it and '>' at its end. */
#pragma once

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);

/* Records into `out`, of `size` bytes, truncated if necessary; NULL: stops. */
void emulator_ranges(char *out, int size);
