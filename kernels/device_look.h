// SPDX-License-Identifier: Apache-2.0
/* What a machine has of the devices of this build, in words, for doctor: nothing is opened for good. */
#pragma once

#include "base/text.h"

/* How many equal ones there are of the device of this name: GPUs, or 1 of what is of the host. NOT_SUPPORTED
 * as device_open() would say it. */
MUST_USE enum status device_look_count(const char *name, int *out);
/* Of one of them: "NVIDIA H200, compute capability 9.0, 139.8 GiB, 0000:1b:00.0". */
MUST_USE enum status device_look(const char *name, int index, struct text *out);
/* The libraries that it takes, as they are found here: "driver CUDA 13.0, runtime 13.0, cuBLASLt 13.0.2". */
void device_look_libraries(const char *name, struct text *out);
