// SPDX-License-Identifier: Apache-2.0
/* NVTX ranges, recorded as text for tests: "<F" at the beginning of this thread's range F, ">" at its end.
 * Recording is off at first, as without a profiler. */
#include "tests/emulator/include/nvtx3/nvToolsExt.h"

#include <stddef.h>
#include <stdio.h>

static _Thread_local char *ranges;
static _Thread_local int ranges_left;

void emulator_ranges(char *out, int size)
{
    ranges = out;
    ranges_left = out != NULL ? size : 0;
}

static int note_range(const char *before, const char *name)
{
    int length = ranges != NULL ? snprintf(ranges, (size_t)ranges_left, "%s%s", before, name) : 0;
    if (length >= ranges_left)
        ranges = NULL;
    else
        ranges += length;
    ranges_left -= length;
    return 0;
}

int nvtxRangePushA(const char *name)
{
    return note_range("<", name);
}

int nvtxRangePop(void)
{
    return note_range(">", "");
}
