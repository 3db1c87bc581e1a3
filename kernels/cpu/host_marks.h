// SPDX-License-Identifier: Apache-2.0
/* Marks of time (kernels/device.h) of devices whose ops the host runs: readings of its clock. */
#pragma once

#include "kernels/device.h"

struct host_marks {
    int count;
    int64_t at_ns[]; // 0: not passed
};

/* For struct time_mark_ops; the state is a struct host_marks. */
MUST_USE enum status host_marks_open(struct device *device, int count, void **out);
void host_marks_close(void *state);
double host_marks_between(const void *from_state, int from, const void *to_state, int to);
