// SPDX-License-Identifier: Apache-2.0
/* A driver without a GPU, as libcuda.so.1, for the real cuDNN: it loads any kernel that cuDNN has compiled,
 * and runs none. A machine without a GPU can thus test whether cuDNN has an engine for a graph
 * (test_attention_cudnn.c). The error codes are those of CUresult; stub libraries return STUB_LIBRARY. */
enum { STUB_LIBRARY = 34, NOT_SUPPORTED = 801 };

int cuInit(unsigned flags)
{
    (void)flags;
    return STUB_LIBRARY;
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
#define UNSUPPORTED(name)     \
    int name(void)            \
    {                         \
        return NOT_SUPPORTED; \
    }
UNSUPPORTED(cuCtxGetCurrent)
UNSUPPORTED(cuCtxGetLimit)
UNSUPPORTED(cuCtxPopCurrent)
UNSUPPORTED(cuCtxPushCurrent)
UNSUPPORTED(cuDeviceGet)
UNSUPPORTED(cuDeviceGetCount)
UNSUPPORTED(cuGetErrorName)
UNSUPPORTED(cuGetErrorString)
UNSUPPORTED(cuKernelGetAttribute)
UNSUPPORTED(cuKernelSetAttribute)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchKernel)
UNSUPPORTED(cuLaunchKernelEx)
UNSUPPORTED(cuLibraryLoadFromFile)
UNSUPPORTED(cuLinkAddData)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkCreate)
UNSUPPORTED(cuLinkDestroy)
UNSUPPORTED(cuOccupancyMaxPotentialClusterSize)
UNSUPPORTED(cuStreamGetCtx)
