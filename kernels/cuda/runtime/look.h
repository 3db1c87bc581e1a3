// SPDX-License-Identifier: Apache-2.0
/* device_look.h for GPUs. */
#pragma once

#include "kernels/device_look.h"

MUST_USE enum status cuda_look_count(int *out);
MUST_USE enum status cuda_look(int index, struct text *out);
MUST_USE enum status cuda_look_facts(int index, struct device_facts *out);
void cuda_look_libraries(struct text *out);
