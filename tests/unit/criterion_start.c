// SPDX-License-Identifier: Apache-2.0
/* Criterion starts a process for each test and initializes libgit2 in it, which parses every CA certificate
 * of the system: a third of the time of a short test under AddressSanitizer. It uses libgit2 only to show how
 * two texts differ; so that is when the library is initialized here. A program's functions precede those of
 * the libraries that it loads. */
#include <dlfcn.h>
#include <stddef.h>

int git_libgit2_init(void);
int git_libgit2_init(void)
{
    return 1;
}

int git_libgit2_shutdown(void);
int git_libgit2_shutdown(void)
{
    return 0;
}

typedef int (*diff_function)(const void *, size_t, const char *, const void *, size_t, const char *,
                             const void *, void *, void *, void *, void *, void *);
int git_diff_buffers(const void *old, size_t old_bytes, const char *old_path, const void *new,
                     size_t new_bytes, const char *new_path, const void *options, void *file, void *binary,
                     void *hunk, void *line, void *payload);
int git_diff_buffers(const void *old, size_t old_bytes, const char *old_path, const void *new,
                     size_t new_bytes, const char *new_path, const void *options, void *file, void *binary,
                     void *hunk, void *line, void *payload)
{
    int (*init)(void) = (int (*)(void))dlsym(RTLD_NEXT, "git_libgit2_init");
    diff_function diff = (diff_function)dlsym(RTLD_NEXT, "git_diff_buffers");
    if (init == NULL || diff == NULL || init() < 0)
        return -1;
    return diff(old, old_bytes, old_path, new, new_bytes, new_path, options, file, binary, hunk, line,
                payload);
}
