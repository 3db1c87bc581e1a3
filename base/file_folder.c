// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include "base/progress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- creation ---- */

enum status folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? OK : fail(IO_ERROR, "%s: %s", path, strerror(errno)); // write-only folders
    bool good = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
    int why = errno;
    close(fd);
    return good ? OK : fail(IO_ERROR, "%s: %s", path, strerror(why));
}

enum status folder_sync_parent(const char *path)
{
    struct text parent = {0};
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    text_add_bytes(&parent, length > 0 ? path : ".", length > 0 ? length : 1);
    enum status status = folder_sync(parent.chars);
    text_free(&parent);
    return status;
}

static enum status make_one_level(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0)
        return folder_sync_parent(path);
    return errno == EEXIST ? OK : fail(IO_ERROR, "%s: %s", path, strerror(errno));
}

static enum status make_levels(const char *path, mode_t mode)
{
    struct text part = {0};
    enum status status = OK;
    for (const char *c = path; status == OK; c++) {
        if ((*c == '/' || *c == 0) && c != path) {
            part.length = 0;
            text_add_bytes(&part, path, (size_t)(c - path));
            status = make_one_level(part.chars, mode);
        }
        if (*c == 0)
            break;
    }
    text_free(&part);
    struct stat info;
    if (status == OK && stat(path, &info) != 0)
        status = fail(IO_ERROR, "%s: %s", path,
                      errno == ENOENT ? "a symbolic link to a folder that does not exist" : strerror(errno));
    else if (status == OK && !S_ISDIR(info.st_mode))
        status = fail(IO_ERROR, "%s: not a folder", path);
    return status;
}

enum status folder_make(const char *path)
{
    return make_levels(path, 0777);
}

enum status folder_make_private(const char *path)
{
    return make_levels(path, 0700);
}

/* ---- removal ---- */

static enum status remove_link(const char *path)
{
    char target[256];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return fail(IO_ERROR, "%s: not a folder", path);
    target[length] = 0;
    if (unlink(path) != 0)
        return fail(IO_ERROR, "%s: the symbolic link cannot be removed: %s", path, strerror(errno));
    print_line(stderr,
               "warning: %s was a symbolic link to %s; the link is removed, its target is not touched", path,
               target);
    return OK;
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

enum status folder_remove(const char *path, bool (*is_ours)(const char *name))
{
    struct text stranger = {0};
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return OK;
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return remove_link(path);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        enum status status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    struct dirent *found;
    while ((found = readdir(folder)) != NULL) {
        progress_continue(); // with a file of each rank, it may take long
        if (!is_dot(found->d_name) &&
            (!is_ours(found->d_name) || unlinkat(dirfd(folder), found->d_name, 0) != 0) &&
            stranger.length == 0)
            text_add_printable(&stranger, found->d_name, strlen(found->d_name));
    }
    closedir(folder);
    enum status status =
        rmdir(path) == 0 ? OK : fail(IO_ERROR, "%s: cannot be removed: %s", path, strerror(errno));
    if (status != OK && stranger.length > 0)
        status = fail(IO_ERROR, "%s: not removed: it also contains %s", path, stranger.chars);
    text_free(&stranger);
    return status;
}
