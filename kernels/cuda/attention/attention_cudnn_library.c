// SPDX-License-Identifier: Apache-2.0
/* cuDNN is loaded when its attention is requested, not linked: including the sublibraries that it loads
 * itself it has half a gigabyte. It is never unloaded. */
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/runtime/library.h"

#include <dlfcn.h>
#include <stdio.h>

static enum status open_checked(struct cudnn_library *cudnn)
{
    static const char *const files[] = CUDNN_FILES;
    const struct library_function functions[] = {
#define ROW(name) {#name, &cudnn->name},
        CUDNN_FUNCTIONS(ROW)
#undef ROW
    };
    TRY(library_open(files, CUDA_LIBRARY_DIR, functions, sizeof functions / sizeof *functions,
                     &cudnn->module));
    return library_check_version(cudnn->module, "cuDNN", cudnn->cudnnGetVersion(), CUDNN_OLDEST);
}

enum status cudnn_library_open(struct cudnn_library *out)
{
    struct cudnn_library cudnn = {0};
    if (open_checked(&cudnn) == OK) {
        *out = cudnn;
        return OK;
    }
    cudnn_library_close(&cudnn);
    return fail(NOT_SUPPORTED,
                "%s; it requires cuDNN " CUDNN_OLDEST_TEXT " or newer: put its folder on LD_LIBRARY_PATH",
                fail_text());
}

void cudnn_library_close(struct cudnn_library *library)
{
    if (library->module != NULL)
        dlclose(library->module);
    library->module = NULL;
}
