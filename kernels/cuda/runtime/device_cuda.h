// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/device.h"

struct cuda_marks;
/* Follows these marks in hang reports if it followed `before` (NULL: none) so far. */
void cuda_follow(struct device *device, const struct cuda_marks *before, struct cuda_marks *now);

/* True if messages of a CPU transport are in flight on the stream. */
bool cuda_has_works(const struct stream *stream);

extern const struct device_ops device_cuda;
