// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_marks.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

enum status host_marks_open(struct device *device, int count, void **out)
{
    (void)device;
    struct host_marks *marks =
        memory_zeroed(1, sizeof *marks + (size_t)count * sizeof *marks->at_ns, "marks of time");
    marks->count = count;
    *out = marks;
    return OK;
}

void host_marks_close(void *state)
{
    free(state);
}

double host_marks_between(const void *from_state, int from, const void *to_state, int to)
{
    const struct host_marks *from_marks = from_state, *to_marks = to_state;
    const int64_t begin_ns = from_marks->at_ns[from], end_ns = to_marks->at_ns[to];
    return begin_ns > 0 && end_ns > 0 ? 1e-9 * (double)(end_ns - begin_ns) : NAN;
}
