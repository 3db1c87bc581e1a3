// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include "base/machine.h"
#include "base/progress.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
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

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { STAT_BLOCK_BYTES = 512 };

void file_temporary_expect(struct file_temporary *file, int64_t bytes)
{
    struct statfs info;
    const int64_t last = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (last > 0 && fstatfs(file->fd, &info) == 0 && info.f_type == TMPFS_MAGIC &&
        ftruncate(file->fd, bytes) == 0)
        file->huge_last = last;
}

/* Has the first page made by a fault, the only way to a huge one on a tmpfs with huge=advise; if it is small,
 * has it replaced by a huge one, which Linux 6.1 does whatever the tmpfs was mounted with. Unlike a store,
 * neither ends in a signal if the tmpfs is full. */
static bool make_huge(int fd, char *page)
{
    struct stat before, after;
    if (fstat(fd, &before) != 0 || madvise(page, HUGE_PAGE_BYTES, MADV_HUGEPAGE) != 0 ||
        madvise(page, 1, MADV_POPULATE_WRITE) != 0 || fstat(fd, &after) != 0)
        return false;
    return after.st_blocks - before.st_blocks >= HUGE_PAGE_BYTES / STAT_BLOCK_BYTES ||
           huge_pages_collapse(page, HUGE_PAGE_BYTES);
}

/* Makes a huge page of a hole: in a mapping at a multiple of its size. */
static bool add_huge_page(int fd, int64_t offset)
{
    char *reserved = mmap(NULL, 2 * (size_t)HUGE_PAGE_BYTES, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return false;
    char *page = reserved + (HUGE_PAGE_BYTES - (uintptr_t)reserved % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (mmap(page, HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
        MAP_FAILED)
        return false; // the addresses may be in use for something else now
    const bool good = make_huge(fd, page);
    munmap(reserved, 2 * (size_t)HUGE_PAGE_BYTES);
    return good;
}

void file_temporary_pass_cache(struct file_temporary *file)
{
    file->past_cache = true;
}

/* Sets or clears O_DIRECT; not at all where the file system refuses it. */
static void set_direct(struct file_temporary *file, bool direct)
{
    if (direct == file->is_direct)
        return;
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0 && fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0)
        file->is_direct = direct;
    else
        file->past_cache = false;
}

static bool is_aligned(const void *bytes, size_t length, int64_t offset)
{
    return ((uintptr_t)bytes | length | (uint64_t)offset) % FILE_DIRECT_BYTES == 0;
}

bool file_temporary_write(struct file_temporary *file, const void *bytes, size_t length, int64_t offset)
{
    const char *at = bytes;
    for (; file->huge_at < file->huge_last && file->huge_at < offset + (int64_t)length;
         file->huge_at += HUGE_PAGE_BYTES)
        if (!add_huge_page(file->fd, file->huge_at))
            file->huge_last = 0; // the other pages will not be huge either
    while (length > 0) {
        set_direct(file, file->past_cache && is_aligned(at, length, offset));
        const ssize_t put = pwrite(file->fd, at, length, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        // Other multiples are needed here, or the disk cannot reach this memory.
        if (put < 0 && (errno == EINVAL || errno == EFAULT) && file->is_direct) {
            file->past_cache = false;
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
