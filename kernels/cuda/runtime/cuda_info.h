// SPDX-License-Identifier: Apache-2.0
/* device_info.h for GPUs. */
#pragma once

#include "kernels/device_info.h"

MUST_USE enum status cuda_device_count(int *out);
MUST_USE enum status cuda_describe(int index, struct text *out);
MUST_USE enum status cuda_query_info(int index, struct device_info *out);
void cuda_describe_libraries(struct text *out);
