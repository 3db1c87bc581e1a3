// SPDX-License-Identifier: Apache-2.0
/* The part of NVTX that the cuda device uses, for a profiler that is a test: it gets the names of the ranges
 * that this thread has begun, one after the other, each with '<' before it and '>' where it ends. */
#pragma once

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);

/* From now on into `out`, of `size` bytes, which are enough or the last names are missing; NULL: no more. */
void emulator_ranges(char *out, int size);
