// SPDX-License-Identifier: Apache-2.0
/* A driver of no GPU, as libcuda.so.1, for the real cuDNN: it loads whatever kernel cuDNN has compiled, and
 * runs none. So a machine without a GPU shows whether cuDNN has an engine for a graph
 * (test_attention_cudnn.c). The numbers are the driver interface's: 34 is what a library that stands for the
 * driver says. */
enum { STANDS_FOR_IT = 34, NO = 801 };

int cuInit(unsigned flags)
{
    (void)flags;
    return STANDS_FOR_IT;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuLibraryLoadData(void **library)
{
    *library = library;
    return 0;
}

int cuLibraryGetKernel(void **kernel)
{
    *kernel = kernel;
    return 0;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return 0;
}

/* cuDNN wants to find these, and a plan takes none. */
#define NEVER(name) \
    int name(void)  \
    {               \
        return NO;  \
    }
NEVER(cuCtxGetCurrent)
NEVER(cuCtxGetLimit)
NEVER(cuCtxPopCurrent)
NEVER(cuCtxPushCurrent)
NEVER(cuDeviceGet)
NEVER(cuDeviceGetCount)
NEVER(cuGetErrorName)
NEVER(cuGetErrorString)
NEVER(cuKernelGetAttribute)
NEVER(cuKernelSetAttribute)
NEVER(cuLaunchCooperativeKernel)
NEVER(cuLaunchKernel)
NEVER(cuLaunchKernelEx)
NEVER(cuLibraryLoadFromFile)
NEVER(cuLinkAddData)
NEVER(cuLinkComplete)
NEVER(cuLinkCreate)
NEVER(cuLinkDestroy)
NEVER(cuOccupancyMaxPotentialClusterSize)
NEVER(cuStreamGetCtx)
