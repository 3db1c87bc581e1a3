// SPDX-License-Identifier: Apache-2.0
/* Files as the memory of a host, for the devices whose memory is the host's. */
#pragma once

#include "kernels/device.h"

/* In $TMPDIR, or /tmp. NO_MEMORY or IO_ERROR say which folder has no room. */
MUST_USE enum status cpu_host_alloc(struct device *device, size_t bytes, void **out);
void cpu_host_free(struct device *device, void *data, size_t bytes);
/* Nobody looks at these bytes for a while: they need not be in memory. They stay what they are. */
void cpu_host_rest(void *data, size_t bytes);
