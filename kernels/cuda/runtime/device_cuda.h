// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/device.h"

extern const struct device_ops device_cuda;
