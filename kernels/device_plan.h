// SPDX-License-Identifier: Apache-2.0
/* What only the device that computes nothing can tell of a run that it plans (kernels/dry/), and what the
 * transport that goes with it tells it. */
#pragma once

#include "kernels/device.h"

/* The name of that device. */
const char *device_that_plans(void);

/* A pool of so many bytes would have been enough so far; 0 where the device computes. */
size_t device_planned_bytes(const struct device *device);

/* Whether the transport between devices like the one that this stands for adds up floats by itself, in the
 * order of the ranks, which takes temporary memory; false where the device computes. */
bool stream_plans_sums(const struct stream *stream);

/* So many bytes of it, counted as communication where the device stands for a GPU; else nothing. */
MUST_USE enum status stream_plan_message(struct stream *stream, size_t bytes);
