// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_traits.h"

#include "kernels/cpu/device_cpu.h"
#include "kernels/cuda/runtime/device_cuda.h"
#include "kernels/cuda/runtime/scratch.h"
#include "kernels/dry/device_dry.h"
#include "kernels/strict/device_strict.h"

#include <string.h>

const struct device_traits device_traits_cpu = {
    .name = "cpu",
    .summary = "the processor: BLAS and own kernels, synchronous streams",
    .ops = &device_cpu,
    .computes = true,
    .has_host_memory = true,
    .synchronous = true,
    .attends_to_earlier_keys = true,
    .can_be_planned = true,
};

const struct device_traits device_traits_strict = {
    .name = "strict",
    .summary = "the cpu for debugging: fresh memory is NaN and streams run as late as permitted",
    .ops = &device_strict,
    .computes = true,
    .has_host_memory = true,
    .attends_to_earlier_keys = true,
    .poisons = true,
};

const struct device_traits device_traits_dry = {
    .name = "dry",
    .summary = "computes nothing: allocates as a run does, for planning",
    .ops = &device_dry,
    .has_matmul_options = true, // as the simulated device
    .supports_cudnn = true,
};

const struct device_traits device_traits_cuda = {
    .name = "cuda",
    .summary = "an NVIDIA GPU: cuBLASLt and own kernels, asynchronous streams",
#ifdef HAVE_CUDA
    .ops = &device_cuda,
#endif
    .computes = true,
    .has_host_memory = CUDA_IS_EMULATED,
    .is_gpu = true,
    .has_matmul_options = true,
    .supports_cudnn = true,
    .has_memory_pool = true,
    .supports_graphs = true,
    .can_be_planned = true,
};

static const struct device_traits *const devices[] = {
    &device_traits_cpu,
    &device_traits_strict,
    &device_traits_dry,
    &device_traits_cuda,
};
enum { DEVICES = sizeof devices / sizeof *devices };
_Static_assert((int)DEVICES <= (int)MAX_DEVICES, "raise MAX_DEVICES");

const struct device_traits *device_at(size_t index)
{
    return index < DEVICES ? devices[index] : NULL;
}

static const struct device_traits *find(const char *name)
{
    for (size_t i = 0; i < DEVICES; i++)
        if (strcmp(devices[i]->name, name) == 0)
            return devices[i];
    return NULL;
}

const struct device_traits *device_traits(const char *name)
{
    const struct device_traits *found = find(name);
    return found != NULL ? found : devices[0];
}

bool device_is_built(const char *name)
{
    const struct device_traits *found = find(name);
    return found != NULL && found->ops != NULL;
}
