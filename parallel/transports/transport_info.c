// SPDX-License-Identifier: Apache-2.0
#include "parallel/transports/transport_info.h"

#include "parallel/transports/transports.h"

#include <string.h>

void transport_describe_library(const char *name, struct text *out)
{
#ifdef HAVE_NCCL
    if (strcmp(name, transport_nccl.name) == 0)
        nccl_describe_library(out);
#endif
    (void)name;
    (void)out;
}
