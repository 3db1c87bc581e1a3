// SPDX-License-Identifier: Apache-2.0
/* cuDNN is opened when somebody asks for its attention, and not linked: with the parts that it opens by
 * itself it has half a gigabyte. Once open it stays. */
#include "kernels/cuda/attention_cudnn.h"

#include <dlfcn.h>
#include <string.h>

enum status cudnn_library_open(struct cudnn_library *out)
{
    const char *const names[] = {"libcudnn.so.9", CUDA_LIBRARY_DIR "/libcudnn.so.9"};
    struct cudnn_library cudnn = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && cudnn.module == NULL; i++)
        cudnn.module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (cudnn.module == NULL)
        return fail(NOT_SUPPORTED,
                    "%s; it wants cuDNN " CUDNN_OLDEST_TEXT " or newer: put its folder on LD_LIBRARY_PATH",
                    dlerror());
    const struct {
        const char *name;
        void *to;
    } functions[] = {
#define ROW(name) {#name, &cudnn.name},
        CUDNN_FUNCTIONS(ROW)
#undef ROW
    };
    enum status status = OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && status == OK; i++) {
        void *address = dlsym(cudnn.module, functions[i].name);
        if (address == NULL)
            status = fail(NOT_SUPPORTED, "%s", dlerror());
        memcpy(functions[i].to, &address, sizeof address);
    }
    if (status == OK)
        status = cudnn_check_version(&cudnn);
    if (status == OK)
        *out = cudnn;
    else
        cudnn_library_close(&cudnn);
    return status;
}

void cudnn_library_close(struct cudnn_library *library)
{
    if (library->module != NULL)
        dlclose(library->module);
    library->module = NULL;
}
