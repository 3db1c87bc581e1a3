// SPDX-License-Identifier: Apache-2.0
/* Shared libraries that are loaded on demand, not linked: cuBLASLt, cuDNN, NCCL.
 *
 *     dlopen("libnccl.so.2")     LD_LIBRARY_PATH, the system's folders
 *     FOLDER/libnccl.so.2        of the CUDA toolkit of this build
 *
 * Several names are tried in order: cuBLASLt's has CUDA's major version. The functions, enumerators and
 * structs in use are the same in cuBLASLt 12 and 13. That of the toolkit's version is first: a later one may
 * require a newer driver.
 *
 * Caution: "not found" differs from a library that exists but cannot be loaded, because it is truncated or
 * built for another machine; and only the path identifies which of several was loaded. */
#pragma once

#include "base/status.h"

#include <cuda_runtime_api.h>

#if CUDART_VERSION >= 13000
#define CUBLASLT_FILES                                 \
    {                                                  \
        "libcublasLt.so.13", "libcublasLt.so.12", NULL \
    }
#else
#define CUBLASLT_FILES                                 \
    {                                                  \
        "libcublasLt.so.12", "libcublasLt.so.13", NULL \
    }
#endif
#define CUDNN_FILES           \
    {                         \
        "libcudnn.so.9", NULL \
    } // of CUDA 12 and 13
#define NCCL_FILES           \
    {                        \
        "libnccl.so.2", NULL \
    }

struct library_function {
    const char *name;
    void *to; // pointer to a function pointer
};

/* Loads a library, which is never unloaded, and fills every `to`. NOT_SUPPORTED reports the paths searched
 * and the result; the caller adds its requirement and the key. */
MUST_USE enum status library_open(const char *const files[], const char *folder,
                                  const struct library_function *functions, size_t count, void **module);

/* NOT_SUPPORTED: "/usr/lib/libnccl.so.2 is NCCL 2.18.3". Versions: major, minor and patch in decimal. */
MUST_USE enum status library_check_version(void *module, const char *what, size_t version, size_t oldest);
