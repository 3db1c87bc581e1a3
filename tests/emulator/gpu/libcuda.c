// SPDX-License-Identifier: Apache-2.0
/* A driver without a GPU, as libcuda.so.1, for the real cuDNN: it loads any kernel that cuDNN has compiled,
 * and runs none. A machine without a GPU can thus test whether cuDNN has an engine for a graph
 * (test_attention_cudnn.c). The numbers are from the driver API: 34 is returned by stub libraries. */
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

/* Symbols that cuDNN resolves but a plan does not call. */
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
