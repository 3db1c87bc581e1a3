// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { PATH_CHARS = 4096, MESSAGE_CHARS = 600 };

static void *open_one(const char *path, char message[MESSAGE_CHARS])
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module == NULL)
        snprintf(message, MESSAGE_CHARS, "%s", dlerror());
    return module;
}

/* glibc's message begins with the requested name if no such file was found, and otherwise with the path, or
 * the name of a dependency, that is at fault. */
static enum status fail_missing(const char *file, const char *folder, const char *message)
{
    size_t length = strlen(file);
    if (strncmp(message, file, length) == 0 && message[length] == ':')
        return fail(NOT_SUPPORTED, "no %s on LD_LIBRARY_PATH, in the system's folders or in %s", file,
                    folder);
    return fail(NOT_SUPPORTED, "%s", message);
}

static const char *folder_of(void *module, char out[PATH_CHARS])
{
    if (dlinfo(module, RTLD_DI_ORIGIN, out) != 0)
        snprintf(out, PATH_CHARS, "?");
    return out;
}

enum status library_open(const char *file, const char *folder, const struct library_function *functions,
                         size_t count, void **module)
{
    char message[MESSAGE_CHARS], other[MESSAGE_CHARS], path[PATH_CHARS];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    void *found = open_one(file, message);
    if (found == NULL)
        found = open_one(path, other);
    if (found == NULL)
        return fail_missing(file, folder, message);
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(found, functions[i].name);
        if (address == NULL) {
            enum status status =
                fail(NOT_SUPPORTED, "%s/%s has no %s", folder_of(found, path), file, functions[i].name);
            dlclose(found);
            return status;
        }
        memcpy(functions[i].to, &address, sizeof address);
    }
    *module = found;
    return OK;
}

enum status library_check_version(void *module, const char *file, const char *what, size_t version,
                                  size_t oldest)
{
    char path[PATH_CHARS];
    if (version >= oldest)
        return OK;
    return fail(NOT_SUPPORTED, "%s/%s is %s %zu.%zu.%zu", folder_of(module, path), file, what,
                version / 10000, version / 100 % 100, version % 100);
}
