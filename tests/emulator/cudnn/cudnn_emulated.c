// SPDX-License-Identifier: Apache-2.0
/* Library loading of cuDNN, linked to the emulated one. */
#include "kernels/cuda/attention/attention_cudnn.h"

enum status cudnn_library_open(struct cudnn_library *out)
{
    if (emulator_fails("cudnn"))
        return fail(NOT_SUPPORTED,
                    "libcudnn.so.9: no such file; it requires cuDNN " CUDNN_OLDEST_TEXT " or newer: put its "
                    "folder on LD_LIBRARY_PATH");
    *out = (struct cudnn_library){
#define ROW(name) .name = name,
        CUDNN_FUNCTIONS(ROW)
#undef ROW
    };
    return OK;
}

void cudnn_library_close(struct cudnn_library *library)
{
    (void)library;
}
