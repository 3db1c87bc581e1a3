// SPDX-License-Identifier: Apache-2.0
/* A shared library that is opened when somebody wants it, and not linked: cuBLASLt, cuDNN, NCCL.
 *
 *     dlopen("libnccl.so.2")     LD_LIBRARY_PATH, the system's folders
 *     FOLDER/libnccl.so.2        of the CUDA toolkit that this was built with
 *
 * The trap: a library that is found and cannot be loaded, torn or another machine's, is a failure of its own,
 * and is not "not found"; and which of several was found, only its folder tells. */
#pragma once

#include "base/status.h"

struct library_function {
    const char *name;
    void *to; // a pointer to a function
};

/* The library stays, also when nobody needs it any more. Fills every `to`. NOT_SUPPORTED says what was looked
 * for and what was found; the caller adds what it wants and the key. */
MUST_USE enum status library_open(const char *file, const char *folder,
                                  const struct library_function *functions, size_t count, void **module);

/* NOT_SUPPORTED: "/usr/lib/libnccl.so.2 is NCCL 2.18.3". Versions: major, minor and patch in decimal. */
MUST_USE enum status library_check_version(void *module, const char *file, const char *what, size_t version,
                                           size_t oldest);
