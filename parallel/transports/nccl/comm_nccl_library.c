// SPDX-License-Identifier: Apache-2.0
/* NCCL is loaded when an nccl world is opened, not linked: other programs start without it. */
#include "kernels/cuda/runtime/library.h"
#include "parallel/transports/nccl/comm_nccl.h"

#include <stdio.h>

enum { OLDEST = NCCL_VERSION(2, 26, 0) }; // NCCL_LAUNCH_ORDER_IMPLICIT

static enum status open_checked(struct nccl_library *nccl)
{
    static const char file[] = "libnccl.so.2";
    const struct library_function functions[] = {
#define ROW(name) {#name, &nccl->name},
        NCCL_FUNCTIONS(ROW)
#undef ROW
    };
    int version = 0;
    TRY(library_open(file, NCCL_LIBRARY_DIR, functions, sizeof functions / sizeof *functions, &nccl->module));
    if (nccl->ncclGetVersion(&version) != ncclSuccess)
        version = 0;
    return library_check_version(nccl->module, file, "NCCL", (size_t)version, OLDEST);
}

enum status nccl_library_open(struct nccl_library *out)
{
    struct nccl_library nccl = {0};
    if (open_checked(&nccl) == OK) {
        *out = nccl;
        return OK;
    }
    return fail(
        NOT_SUPPORTED,
        "cluster.transport nccl: %s; NCCL 2.26 or newer is required: add its directory to LD_LIBRARY_PATH; "
        "a single rank does not need it",
        fail_text());
}
