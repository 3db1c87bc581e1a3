// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_info.h"

#include "kernels/cuda/runtime/library.h"
#include "kernels/cuda/runtime/message.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if CUDA_IS_EMULATED
#define CUDA_LIBRARY_DIR "."
#endif

enum status cuda_device_count(int *out)
{
    return cuda_gpu_count(out);
}

enum status cuda_describe(int index, struct text *out)
{
    struct cuda_gpu gpu;
    size_t left = 0, all = 0;
    char free_now[NUMBER_CHARS], total[NUMBER_CHARS];
    TRY(cuda_gpu_choose(index, &gpu));
    TRY(cuda_check(NULL, cudaMemGetInfo(&left, &all), "cudaMemGetInfo"));
    text_add(out, "%s, compute capability %d.%d, %s (%s free), %s", gpu.name, gpu.major, gpu.minor,
             bytes_text((int64_t)all, total), bytes_text((int64_t)left, free_now), gpu.bus_id);
    return OK;
}

enum status cuda_query_info(int index, struct device_info *out)
{
    struct cuda_gpu gpu;
    size_t left = 0, all = 0;
    int cores = 0;
    TRY(cuda_gpu_choose(index, &gpu));
    TRY(cuda_check(NULL, cudaMemGetInfo(&left, &all), "cudaMemGetInfo"));
    TRY(cuda_check(NULL, cudaDeviceGetAttribute(&cores, cudaDevAttrMultiProcessorCount, index),
                   "cudaDeviceGetAttribute"));
    *out = (struct device_info){
        .cores = cores, .memory_bytes = (int64_t)all, .reserved_bytes = (int64_t)(all - left)};
    text_printable(gpu.name, out->name, sizeof out->name);
    return OK;
}

/* For a library that returns its version in a size_t: major, minor and patch in decimal. */
static void add_library(struct text *out, const char *what, const char *const files[], const char *function,
                        size_t major)
{
    size_t (*version_of)(void) = NULL;
    char here[512];
    void *module = NULL;
    for (int i = 0; module == NULL && files[i] != NULL; i++) {
        snprintf(here, sizeof here, "%s/%s", CUDA_LIBRARY_DIR, files[i]);
        module = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);
        if (module == NULL)
            module = dlopen(here, RTLD_LAZY | RTLD_LOCAL);
    }
    void *address = module != NULL ? dlsym(module, function) : NULL;
    memcpy(&version_of, &address, sizeof version_of);
    if (version_of != NULL) {
        size_t version = version_of();
        text_add(out, ", %s %zu.%zu.%zu", what, version / major, version % major / 100, version % 100);
    } else {
        text_add(out, ", %s not found (%s, LD_LIBRARY_PATH)", what, files[0]);
    }
    if (module != NULL)
        dlclose(module);
}

void cuda_describe_libraries(struct text *out)
{
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        driver = runtime = 0;
    if (driver > 0)
        text_add(out, "the driver supports CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    else
        text_add(out, "no NVIDIA driver found");
    text_add(out, ", this build has %s%d.%d", driver > 0 ? "" : "CUDA ", runtime / 1000, runtime % 1000 / 10);
    add_library(out, "cuBLASLt", (const char *const[])CUBLASLT_FILES, "cublasLtGetVersion", 10000);
    add_library(out, "cuDNN", (const char *const[])CUDNN_FILES, "cudnnGetVersion", 10000);
}
