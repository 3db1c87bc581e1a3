// SPDX-License-Identifier: Apache-2.0
/* cuBLASLt is loaded when the first device opens, not linked: every start of every program, including those
 * for the CPU, would map its half gigabyte. It is never unloaded: loading it again for the next device takes
 * 0.15 s. */
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/runtime/library.h"

#include <dlfcn.h>
#include <stdio.h>

enum { OLDEST = 120400 }; // every function in use is older; no older version is compiled against

static enum status open_checked(struct cuda_library *lt)
{
    static const char *const files[] = CUBLASLT_FILES;
    const struct library_function functions[] = {
#define ROW(name) {#name, &lt->name},
        CUBLASLT_FUNCTIONS(ROW)
#undef ROW
    };
    TRY(library_open(files, CUDA_LIBRARY_DIR, functions, sizeof functions / sizeof *functions, &lt->module));
    return library_check_version(lt->module, "cuBLASLt", lt->cublasLtGetVersion(), OLDEST);
}

enum status cublaslt_library_open(struct cuda_library *lt)
{
    if (open_checked(lt) == OK)
        return OK;
    return fail(NOT_SUPPORTED,
                "cluster.device cuda: %s; it requires cuBLASLt 12.4 or newer, from the CUDA toolkit: put "
                "its folder on LD_LIBRARY_PATH, or use cluster.device=cpu",
                fail_text());
}

void cublaslt_library_close(struct cuda_library *lt)
{
    if (lt->module != NULL)
        dlclose(lt->module);
    lt->module = NULL;
}
