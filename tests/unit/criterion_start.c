// SPDX-License-Identifier: Apache-2.0
/* Criterion starts a process for each test and initializes libgit2 in it, which parses every CA certificate
 * of the system: a third of the time of a short test under AddressSanitizer. It uses libgit2 only to show how
 * two texts differ; so that is when the library is initialized here. A program's functions precede those of
 * the libraries that it loads.
 *
 * Nor is libgit2 loaded before: it needs thirteen other libraries, of TLS and SSH, and takes a third of the
 * time to start a program. An empty library of its name (empty_library.c) is loaded in its place. */
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

extern const int empty_library;
extern const int *const keeps_the_empty_library;
const int *const keeps_the_empty_library = &empty_library;

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

/* The library, next to Criterion's; NULL if there is none. */
static void *open_git2(void)
{
    Dl_info criterion;
    char path[PATH_MAX];
    if (dladdr(dlsym(RTLD_DEFAULT, "criterion_run_all_tests"), &criterion) == 0)
        return NULL;
    const char *slash = strrchr(criterion.dli_fname, '/');
    const int folder = slash == NULL ? 0 : (int)(slash + 1 - criterion.dli_fname);
    snprintf(path, sizeof path, "%.*s%s", folder, criterion.dli_fname, GIT2_NAME);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
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
    void *git2 = open_git2();
    if (git2 == NULL)
        return -1;
    int (*init)(void) = (int (*)(void))dlsym(git2, "git_libgit2_init");
    diff_function diff = (diff_function)dlsym(git2, "git_diff_buffers");
    if (init == NULL || diff == NULL || init() < 0)
        return -1;
    return diff(old, old_bytes, old_path, new, new_bytes, new_path, options, file, binary, hunk, line,
                payload);
}
