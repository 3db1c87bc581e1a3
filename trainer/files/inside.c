// SPDX-License-Identifier: Apache-2.0
#include "trainer/files/inside.h"

#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether `path` is below the first `length` characters of `folder`. */
static bool is_below(const char *path, const char *folder, size_t length)
{
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* Whether `path` is in models--x/blobs, for a folder models--x/snapshots/HASH. */
static bool is_blob(const char *path, const char *folder)
{
    static const char snapshots[] = "/snapshots", blobs[] = "/blobs/";
    const char *slash = strrchr(folder, '/');
    const size_t parent = slash != NULL ? (size_t)(slash - folder) : 0, tail = sizeof snapshots - 1;
    if (parent < tail || memcmp(folder + parent - tail, snapshots, tail) != 0)
        return false;
    const size_t root = parent - tail;
    return strncmp(path, folder, root) == 0 && strncmp(path + root, blobs, sizeof blobs - 1) == 0;
}

/* Compares the path of what was opened with the folder. */
static enum status check_opened(const char *folder, const char *name, int fd)
{
    enum { PATH_CHARS = 4096 };
    char link[48], path[PATH_CHARS];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    char *real = realpath(folder, NULL);
    if (length < 0 || real == NULL) {
        free(real);
        return fail(IO_ERROR, "%s/%s: %s", folder, name, strerror(errno));
    }
    path[length] = 0;
    const size_t whole = strcmp(real, "/") == 0 ? 0 : strlen(real);
    const bool inside = is_below(path, real, whole) || is_blob(path, real);
    free(real);
    return inside ? OK
                  : fail(BAD_CHECKPOINT,
                         "%s/%s: is a link to %s, outside of the folder; replace the link by a copy, if this "
                         "file belongs to the model",
                         folder, name, path);
}

/* *fd: -1 if there is no such file. */
static enum status open_inside(const char *folder, const char *name, int *fd, struct stat *info)
{
    struct text path = {0};
    enum status status = OK;
    text_add(&path, "%s/%s", folder, name);
    *fd = open(path.chars, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // opening a pipe must not block
    if (*fd < 0 && (errno != ENOENT || lstat(path.chars, info) == 0))
        status = fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    if (*fd >= 0)
        status = fstat(*fd, info) == 0 ? check_opened(folder, name, *fd)
                                       : fail(IO_ERROR, "%s: %s", path.chars, strerror(errno));
    if (*fd >= 0 && status == OK && !S_ISREG(info->st_mode))
        status = fail(IO_ERROR, "%s: is a %s; use a regular file", path.chars,
                      S_ISDIR(info->st_mode) ? "folder" : "device or a pipe");
    text_free(&path);
    if (status != OK && *fd >= 0)
        close(*fd);
    return status;
}

enum status inside_check(const char *folder, const char *name)
{
    int fd;
    struct stat info;
    TRY(open_inside(folder, name, &fd, &info));
    if (fd >= 0)
        close(fd);
    return OK;
}

static enum status read_to_end(const char *folder, const char *name, int fd, size_t limit, struct text *out)
{
    char chunk[1 << 16];
    ssize_t got;
    text_add_bytes(out, "", 0); // an empty file is an empty string, not NULL
    while ((got = read(fd, chunk, sizeof chunk)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(IO_ERROR, "%s/%s: %s", folder, name, strerror(errno));
        text_add_bytes(out, chunk, (size_t)got);
        if (out->length > limit)
            return fail(IO_ERROR, "%s/%s: is larger than the limit of %zu bytes", folder, name, limit);
    }
    return OK;
}

enum status inside_read(const char *folder, const char *name, size_t limit, struct text *out, mode_t *mode,
                        bool *found)
{
    int fd;
    struct stat info = {0};
    TRY(open_inside(folder, name, &fd, &info));
    *found = fd >= 0;
    if (mode != NULL)
        *mode = info.st_mode & 0777;
    if (!*found)
        return OK;
    enum status status = read_to_end(folder, name, fd, limit, out);
    close(fd);
    return status;
}

static enum status write_to(struct file_temporary *file, const char *path, const struct text *bytes,
                            mode_t mode)
{
    struct stat info;
    const bool written = fstat(file->fd, &info) == 0 && fchmod(file->fd, info.st_mode & mode & 0777) == 0 &&
                         file_temporary_write(file, text_chars(bytes), bytes->length, 0);
    return written ? file_temporary_commit(file, path) : fail(IO_ERROR, "%s: %s", path, strerror(errno));
}

enum status inside_write(const char *folder, const char *name, const struct text *bytes, mode_t mode)
{
    AUTO(text) path = {0};
    struct file_temporary file;
    text_add(&path, "%s/%s", folder, name);
    enum status status = file_temporary_create(path.chars, &file);
    if (status == OK) {
        status = write_to(&file, path.chars, bytes, mode);
        file_temporary_discard(&file);
    }
    return status;
}

bool inside_exists(const char *folder, const char *name)
{
    AUTO(text) path = {0};
    text_add(&path, "%s/%s", folder, name);
    return access(path.chars, F_OK) == 0;
}
