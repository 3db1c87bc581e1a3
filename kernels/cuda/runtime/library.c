// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/library.h"

#include <dlfcn.h>
#include <link.h>
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
static bool is_missing(const char *file, const char *message)
{
    size_t length = strlen(file);
    return strncmp(message, file, length) == 0 && message[length] == ':';
}

/* The first library that opens, or the first error of a file that exists. */
static enum status open_any(const char *const files[], const char *folder, void **out)
{
    char message[MESSAGE_CHARS], other[MESSAGE_CHARS], path[PATH_CHARS];
    for (int i = 0; files[i] != NULL; i++) {
        *out = open_one(files[i], message);
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (*out == NULL)
            *out = open_one(path, other);
        if (*out != NULL)
            return OK;
        if (!is_missing(files[i], message))
            return fail(NOT_SUPPORTED, "%s", message);
    }
    return fail(NOT_SUPPORTED, "no %s%s%s on LD_LIBRARY_PATH, in the system's folders or in %s", files[0],
                files[1] != NULL ? " or " : "", files[1] != NULL ? files[1] : "", folder);
}

static const char *path_of(void *module)
{
    struct link_map *map = NULL;
    return dlinfo(module, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "?";
}

enum status library_open(const char *const files[], const char *folder,
                         const struct library_function *functions, size_t count, void **module)
{
    void *found = NULL;
    TRY(open_any(files, folder, &found));
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(found, functions[i].name);
        if (address == NULL) {
            enum status status = fail(NOT_SUPPORTED, "%s has no %s", path_of(found), functions[i].name);
            dlclose(found);
            return status;
        }
        memcpy(functions[i].to, &address, sizeof address);
    }
    *module = found;
    return OK;
}

enum status library_check_version(void *module, const char *what, size_t version, size_t oldest)
{
    if (version >= oldest)
        return OK;
    return fail(NOT_SUPPORTED, "%s is %s %zu.%zu.%zu", path_of(module), what, version / 10000,
                version / 100 % 100, version % 100);
}
