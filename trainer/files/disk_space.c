// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/disk_space.h"

#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

/* Of the first folder of the path that exists. */
static bool find_free(struct text *path, int64_t *bytes)
{
    struct statvfs info;
    while (statvfs(path->chars, &info) != 0) {
        char *slash = strrchr(path->chars, '/');
        if (errno != ENOENT || slash == path->chars || strcmp(path->chars, ".") == 0)
            return false;
        snprintf(slash != NULL ? slash : path->chars, 2, "%s", slash != NULL ? "" : ".");
    }
    *bytes = (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    return true;
}

bool disk_space_text(const char *folder, int64_t needed, const char *elsewhere, struct text *out)
{
    AUTO(text) existing = {0};
    char wanted[NUMBER_CHARS], available[NUMBER_CHARS];
    int64_t bytes = 0;
    text_add(&existing, "%s", folder);
    const int64_t files = needed + needed / 256 + (1 << 16); // with headers, and the file system's own blocks
    const bool is_short = needed > 0 && find_free(&existing, &bytes) && bytes < files;
    if (is_short)
        text_add(out,
                 "; about %s needed, %s free in %s; remove files there, or %s a directory on another disk",
                 bytes_text(files, wanted), bytes_text(bytes, available), existing.chars, elsewhere);
    return is_short;
}
