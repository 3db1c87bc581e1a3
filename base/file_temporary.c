// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include "base/progress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Between the file name and the 16 hex digits of the token. */
static const char infix[] = ".cuboid-tmp-";
enum { TOKEN_DIGITS = 16, MAX_TRIES = 100 };

enum status random_token(uint64_t *out)
{
    ssize_t got;
    while ((got = getrandom(out, sizeof *out, 0)) < 0 && errno == EINTR)
        ;
    return got == sizeof *out ? OK : fail(IO_ERROR, "getrandom: %s", strerror(got < 0 ? errno : EIO));
}

/* Locks a new file. Returns false if a concurrent sweep removed it before it was locked; the caller then
 * creates another one. */
static bool lock_new(int fd)
{
    struct stat info;
    (void)file_lock(fd); // without locks the file system is not swept either
    return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

enum status file_temporary_create(const char *path, struct file_temporary *out)
{
    *out = (struct file_temporary){.fd = -1};
    for (int i = 0; i < MAX_TRIES; i++) {
        uint64_t token;
        TRY(random_token(&token));
        struct text name = {0};
        text_add(&name, "%s%s%016" PRIx64, path, infix, token);
        int fd = open(name.chars, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        int why = errno;
        if (fd >= 0 && lock_new(fd)) {
            *out = (struct file_temporary){.path = name, .fd = fd};
            return OK;
        }
        text_free(&name);
        if (fd >= 0)
            close(fd);
        else if (why != EEXIST)
            return fail(IO_ERROR, "%s: %s", path, strerror(why));
    }
    return fail(IO_ERROR, "%s: no temporary name next to it is free", path);
}

/* ---- writing ---- */

/* Sets or clears O_DIRECT; not at all where the file system refuses it. */
static void set_direct(struct file_temporary *file, bool direct)
{
    if (direct == file->is_direct)
        return;
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0 && fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0)
        file->is_direct = direct;
    else
        file->refuses_direct = true;
}

static bool is_aligned(const void *bytes, size_t length, int64_t offset)
{
    return ((uintptr_t)bytes | length | (uint64_t)offset) % FILE_DIRECT_BYTES == 0;
}

bool file_temporary_write(struct file_temporary *file, const void *bytes, size_t length, int64_t offset)
{
    const char *at = bytes;
    while (length > 0) {
        set_direct(file, !file->refuses_direct && is_aligned(at, length, offset));
        const ssize_t put = pwrite(file->fd, at, length, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        // Other multiples are needed here, or the disk cannot reach this memory.
        if (put < 0 && (errno == EINVAL || errno == EFAULT) && file->is_direct) {
            file->refuses_direct = true;
            continue;
        }
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return false;
        at += put;
        length -= (size_t)put;
        offset += put;
    }
    return true;
}

/* ---- its final name ---- */

/* Writes a large file back in parts, so that a rank that waits for a slow disk makes progress. Failures are
 * left to fsync(). */
static void write_back(int fd)
{
    const int64_t part = INT64_C(64) << 20;
    struct stat info;
    if (fstat(fd, &info) != 0)
        return;
    for (int64_t at = 0; at + part < info.st_size; at += part) {
        // The next parts begin before this one is complete.
        sync_file_range(fd, at, 8 * part, SYNC_FILE_RANGE_WRITE);
        if (sync_file_range(fd, at, part, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER) != 0)
            return;
        progress_continue();
    }
}

enum status file_temporary_commit(struct file_temporary *file, const char *path)
{
    write_back(file->fd);
    // Locked until renamed. A full disk may only be reported by fsync.
    if (fsync(file->fd) != 0 || rename(file->path.chars, path) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    text_free(&file->path);
    int fd = file->fd;
    file->fd = -1;
    if (close(fd) != 0)
        return fail(IO_ERROR, "%s: %s", path, strerror(errno));
    return folder_sync_parent(path);
}

void file_temporary_discard(struct file_temporary *file)
{
    if (file->path.length > 0)
        unlink(file->path.chars);
    if (file->fd >= 0)
        close(file->fd);
    text_free(&file->path);
    *file = (struct file_temporary){.fd = -1};
}

size_t file_temporary_base_length(const char *name)
{
    const size_t whole = strlen(name), ending = sizeof infix - 1 + TOKEN_DIGITS;
    if (whole <= ending)
        return whole;
    const char *at = name + whole - ending, *token = at + sizeof infix - 1;
    bool temporary =
        strncmp(at, infix, sizeof infix - 1) == 0 && strspn(token, "0123456789abcdef") == TOKEN_DIGITS;
    return temporary ? whole - ending : whole;
}

/* Returns true for "manifest.json.cuboid-tmp-3f09c2d4a1b85e67" and base "manifest.json". */
static bool is_temporary_of(const char *name, const char *base)
{
    size_t length = file_temporary_base_length(name);
    return name[length] != 0 && strlen(base) == length && strncmp(name, base, length) == 0;
}

static void remove_unlocked(int folder, const char *name)
{
    struct stat info;
    int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && file_lock(fd) == FILE_LOCKED)
        unlinkat(folder, name, 0);
    close(fd);
}

void file_temporary_sweep(const char *path)
{
    struct text folder = {0};
    const char *slash = strrchr(path, '/');
    text_add_bytes(&folder, slash != NULL ? path : ".", slash != NULL ? (size_t)(slash - path) + 1 : 1);
    DIR *entries = opendir(folder.chars);
    struct dirent *found;
    while (entries != NULL && (found = readdir(entries)) != NULL)
        if (is_temporary_of(found->d_name, slash != NULL ? slash + 1 : path))
            remove_unlocked(dirfd(entries), found->d_name);
    if (entries != NULL)
        closedir(entries);
    text_free(&folder);
}
