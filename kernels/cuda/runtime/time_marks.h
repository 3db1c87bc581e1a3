// SPDX-License-Identifier: Apache-2.0
/* Marks of time (kernels/device.h) as CUDA events with timing. */
#pragma once

#include "kernels/device.h"

extern const struct time_mark_ops cuda_time_marks;
