// SPDX-License-Identifier: Apache-2.0
/* Marks of time (kernels/device.h) as CUDA events with timing. */
#pragma once

#include "kernels/device.h"

extern const struct time_mark_ops cuda_time_marks;

struct progress_gpu;
struct cuda_marks;
/* How far the stream of the marks has come, for hang reports: marks are set before and after the ops of an
 * action. */
void cuda_marks_progress(struct cuda_marks *marks, struct progress_gpu *out);
