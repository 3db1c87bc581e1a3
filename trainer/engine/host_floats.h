// SPDX-License-Identifier: Apache-2.0
/* Numbers between a dense tensor on the device, of any working type, and fp32 in host memory. */
#pragma once

#include "kernels/device.h"
#include "kernels/tensor.h"

/* Both wait for the stream. */
MUST_USE enum status floats_from_device(struct stream *stream, struct tensor from, float *to);
/* Rounded to the nearest that the tensor can hold. */
MUST_USE enum status floats_to_device(struct stream *stream, struct tensor to, const float *from);
