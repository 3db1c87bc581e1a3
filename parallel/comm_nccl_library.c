// SPDX-License-Identifier: Apache-2.0
/* NCCL is opened when a world of it is, and not linked: a program that never does starts without it. */
#include "parallel/comm_nccl.h"

#include <dlfcn.h>
#include <string.h>

enum { OLDEST = NCCL_VERSION(2, 26, 0) }; // NCCL_LAUNCH_ORDER_IMPLICIT

enum status nccl_library_open(struct nccl_library *out)
{
    const char *const names[] = {"libnccl.so.2", NCCL_LIBRARY_DIR "/libnccl.so.2"};
    struct nccl_library nccl = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && nccl.module == NULL; i++)
        nccl.module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (nccl.module == NULL)
        return fail(NOT_SUPPORTED,
                    "cluster.transport nccl: %s; it wants NCCL 2.26 or newer: put its folder on "
                    "LD_LIBRARY_PATH; one rank takes none",
                    dlerror());
    const struct {
        const char *name;
        void *to;
    } functions[] = {
#define ROW(name) {#name, &nccl.name},
        NCCL_FUNCTIONS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(nccl.module, functions[i].name);
        if (address == NULL)
            return fail(NOT_SUPPORTED, "cluster.transport nccl: %s", dlerror());
        memcpy(functions[i].to, &address, sizeof address);
    }
    int version = 0;
    TRY(nccl_check(&nccl, NULL, nccl.ncclGetVersion(&version), "ncclGetVersion", ""));
    if (version < OLDEST)
        return fail(NOT_SUPPORTED,
                    "cluster.transport nccl: %s is NCCL %d.%d.%d; it wants 2.26 or newer (LD_LIBRARY_PATH)",
                    names[0], version / 10000, version / 100 % 100, version % 100);
    *out = nccl;
    return OK;
}
