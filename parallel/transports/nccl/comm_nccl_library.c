// SPDX-License-Identifier: Apache-2.0
/* NCCL is loaded when an nccl world is opened, not linked: other programs start without it. */
#include "kernels/cuda/runtime/library.h"
#include "parallel/transports/nccl/comm_nccl.h"

#include <stdio.h>

enum { OLDEST = NCCL_VERSION(2, 20, 0) }; // ncclCommRegister is of 2.19; no older version is compiled against

static enum status open_checked(struct nccl_library *nccl)
{
    static const char *const files[] = NCCL_FILES;
    const struct library_function functions[] = {
#define ROW(name) {#name, &nccl->name},
        NCCL_FUNCTIONS(ROW)
#undef ROW
    };
    int version = 0;
    TRY(library_open(files, NCCL_LIBRARY_DIR, functions, sizeof functions / sizeof *functions,
                     &nccl->module));
    if (nccl->ncclGetVersion(&version) != ncclSuccess)
        version = 0;
    return library_check_version(nccl->module, "NCCL", (size_t)version, OLDEST);
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
        "cluster.transport nccl: %s; NCCL 2.20 or newer is required: add its directory to LD_LIBRARY_PATH; "
        "a single rank does not need it",
        fail_text());
}
