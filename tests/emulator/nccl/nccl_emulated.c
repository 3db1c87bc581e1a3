// SPDX-License-Identifier: Apache-2.0
/* Library loading of NCCL, linked to the emulated one. */
#include "parallel/transports/nccl/comm_nccl.h"

enum status nccl_library_open(struct nccl_library *out)
{
    *out = (struct nccl_library){
#define ROW(name) .name = name,
        NCCL_FUNCTIONS(ROW)
#undef ROW
    };
    return OK;
}
