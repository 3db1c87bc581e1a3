// SPDX-License-Identifier: Apache-2.0
/* Shared libraries that are loaded on demand, not linked: cuBLASLt, cuDNN, NCCL.
 *
 *     dlopen("libnccl.so.2")     LD_LIBRARY_PATH, the system's folders
 *     FOLDER/libnccl.so.2        of the CUDA toolkit of this build
 *
 * Caution: "not found" differs from a library that exists but cannot be loaded, because it is truncated or
 * built for another machine; and only the path identifies which of several was loaded. */
#pragma once

#include "base/status.h"

struct library_function {
    const char *name;
    void *to; // pointer to a function pointer
};

/* Loads a library, which is never unloaded, and fills every `to`. NOT_SUPPORTED reports the paths searched
 * and the result; the caller adds its requirement and the key. */
MUST_USE enum status library_open(const char *file, const char *folder,
                                  const struct library_function *functions, size_t count, void **module);

/* NOT_SUPPORTED: "/usr/lib/libnccl.so.2 is NCCL 2.18.3". Versions: major, minor and patch in decimal. */
MUST_USE enum status library_check_version(void *module, const char *file, const char *what, size_t version,
                                           size_t oldest);
