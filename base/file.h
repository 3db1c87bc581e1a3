// SPDX-License-Identifier: Apache-2.0
/* Temporary files and directories: a file under its final name is complete and on disk, and removal never
 * follows a symbolic link.
 *
 *     file_temporary_create("a/manifest.json")     a/manifest.json.cuboid-tmp-3f09c2d4a1b85e67
 *     ... write to .fd ...
 *     file_temporary_commit                        fsync, rename, fsync of the directory
 *
 * The name is unpredictable and opened with O_EXCL and O_NOFOLLOW, so another user with write access to the
 * directory cannot create a file or a link of that name first. The file is locked (flock) while it is open:
 * an unlocked temporary file was left by a killed process, and file_temporary_sweep() removes it. */
#pragma once

#include "base/text.h"

struct file_temporary {
    struct text path;               // the temporary name; empty after commit or removal
    int fd;                         // -1: none
    bool is_direct, refuses_direct; // O_DIRECT is set; the file system does not support it
};

/* Creates an empty file next to `path`. IO_ERROR. */
MUST_USE enum status file_temporary_create(const char *path, struct file_temporary *out);
/* Uses O_DIRECT, which bypasses the page cache, if address, length and offset are multiples of
 * FILE_DIRECT_BYTES and the file system supports it. Returns false with errno. */
enum { FILE_DIRECT_BYTES = 4096 };
bool file_temporary_write(struct file_temporary *file, const void *bytes, size_t length, int64_t offset);
/* Makes the content durable, then the name. On failure the file remains under its temporary name. */
MUST_USE enum status file_temporary_commit(struct file_temporary *file, const char *path);
/* Closes the file and removes it unless it was committed. May be called more than once. */
void file_temporary_discard(struct file_temporary *file);
/* Removes temporary files of `path` left by killed processes; none on a file system without locks. */
void file_temporary_sweep(const char *path);

/* Returns the length of the final name in a temporary name, "manifest.json" of
 * "manifest.json.cuboid-tmp-3f09c2d4a1b85e67"; of the whole name if it is not temporary. */
size_t file_temporary_base_length(const char *name);

/* Locks a file until it is closed, if no other process has locked it (flock). FILE_WITHOUT_LOCKS: its file
 * system has no locks, such as Lustre mounted without flock, for the reason in errno. */
enum file_lock { FILE_LOCKED, FILE_IN_USE, FILE_WITHOUT_LOCKS };
enum file_lock file_lock(int fd);

/* A random number from getrandom(), for unpredictable names. */
MUST_USE enum status random_token(uint64_t *out);

/* fsync of a directory, which makes the names in it durable. OK on a file system that does not support it;
 * any other failure is an IO_ERROR. */
MUST_USE enum status folder_sync(const char *path);
MUST_USE enum status folder_sync_parent(const char *path);

/* Removes the files in directory `path` whose names `is_ours` accepts, then the directory. If `path` is a
 * symbolic link, the link is removed with a warning on standard error, and its target is not touched. Other
 * files and then also the directory are kept: IO_ERROR names the file. OK if `path` does not exist. */
MUST_USE enum status folder_remove(const char *path, bool (*is_ours)(const char *name));
