// SPDX-License-Identifier: Apache-2.0
/* Copies elements between a dense device tensor of any working dtype and fp32 in host memory. */
#pragma once

#include "kernels/device.h"
#include "kernels/tensor.h"

/* Both functions synchronize the stream. */
MUST_USE enum status floats_from_device(struct stream *stream, struct tensor from, float *to);
/* Rounds to the nearest value of the tensor's dtype. */
MUST_USE enum status floats_to_device(struct stream *stream, struct tensor to, const float *from);
