// SPDX-License-Identifier: Apache-2.0
/* NVTX is header-only: without a profiler a range costs one pointer test, and no library is loaded. */
#include "kernels/cuda/runtime/cuda.h"

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

void cuda_range(const char *name)
{
    if (name != NULL)
        nvtxRangePushA(name);
    else
        nvtxRangePop();
}
#else
void cuda_range(const char *name)
{
    (void)name;
}
#endif
