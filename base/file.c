// SPDX-License-Identifier: Apache-2.0
/* Whole files: read at once, or written atomically. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads to the end and closes. */
static enum status read_all(int fd, const char *path, size_t limit, struct text *out)
{
    char chunk[1 << 16];
    ssize_t got;
    while ((got = read(fd, chunk, sizeof chunk)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            enum status status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
            close(fd);
            return status;
        }
        text_add_bytes(out, chunk, (size_t)got);
        if (out->length > limit) { // the file has grown, or does not report its size, as in /proc
            close(fd);
            return fail(IO_ERROR, "%s: is larger than the limit of %zu bytes", path, limit);
        }
    }
    close(fd);
    text_add_bytes(out, "", 0); // an empty file is an empty string, not NULL
    return OK;
}

enum status file_read(const char *path, struct text *out)
{
    return file_read_small(path, SIZE_MAX, out);
}

enum status file_read_small(const char *path, size_t limit, struct text *out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // else open() of a pipe blocks until there is a
                                                            // writer
    if (fd < 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0) {
        enum status status = fail(IO_ERROR, "%s: %s", path, strerror(errno));
        close(fd);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return fail(IO_ERROR, "%s: is a %s; use a regular file", path,
                    S_ISDIR(info.st_mode)    ? "folder"
                    : S_ISFIFO(info.st_mode) ? "pipe"
                                             : "device");
    }
    if ((uint64_t)info.st_size > limit) {
        close(fd);
        return fail(IO_ERROR, "%s: has %lld bytes; the limit is %zu", path, (long long)info.st_size, limit);
    }
    return read_all(fd, path, limit, out);
}

const char *file_path_problem(const char *path)
{
    struct stat info;
    struct text folder = {0};
    const char *slash = strrchr(path, '/'), *fault = NULL;
    text_add_bytes(&folder, slash != NULL ? path : "./", slash != NULL ? (size_t)(slash - path) + 1 : 2);
    bool there = lstat(path, &info) == 0;
    if (there && S_ISLNK(info.st_mode))
        fault = "is a symbolic link; use the name of the file itself";
    else if (there && !S_ISREG(info.st_mode))
        fault = "not a file; use the name of a new file";
    else if (*path == 0 || (slash != NULL && slash[1] == 0) || access(folder.chars, F_OK) != 0)
        fault = "there is no such folder";
    else if (access(folder.chars, W_OK | X_OK) != 0)
        fault = strerror(errno);
    text_free(&folder);
    return fault;
}

enum status file_write_atomic(const char *path, const void *bytes, size_t length)
{
    const char *fault = file_path_problem(path);
    if (fault != NULL)
        return fail(IO_ERROR, "%s: %s", path, fault);
    struct file_temporary file;
    file_temporary_sweep(path);
    TRY(file_temporary_create(path, &file));
    enum status status =
        file_temporary_write(&file, bytes, length, 0) ? OK : fail(IO_ERROR, "%s: %s", path, strerror(errno));
    if (status == OK)
        status = file_temporary_commit(&file, path);
    file_temporary_discard(&file);
    return status;
}

enum file_lock file_lock(int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return FILE_LOCKED;
    return errno == EWOULDBLOCK ? FILE_IN_USE : FILE_WITHOUT_LOCKS;
}
