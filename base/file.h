// SPDX-License-Identifier: Apache-2.0
/* Files under a temporary name, and folders: what appears under a final name is complete and on the disk, and
 * what is removed is never reached through a symbolic link.
 *
 *     file_temporary_create("a/manifest.json")     a/manifest.json.cuboid-tmp-3f09c2d4a1b85e67
 *     ... write to .fd ...
 *     file_temporary_commit                        fsync, rename, fsync of the folder
 *
 * The name is unpredictable and opened with O_EXCL and O_NOFOLLOW, so another user with write access to the
 * folder cannot create a file or a link of that name first. The file is locked (flock) while it is open: an
 * unlocked temporary file was left by a killed process, and file_temporary_sweep() removes it.
 */
#pragma once

#include "base/text.h"

struct file_temporary {
    struct text path; // the temporary name; empty once it has been given the final one, or was removed
    int fd;           // -1: none
};

/* A new, empty file next to `path`. IO_ERROR. */
MUST_USE enum status file_temporary_create(const char *path, struct file_temporary *out);
/* Makes the content durable, then the name. On failure the file is still there, under its temporary name. */
MUST_USE enum status file_temporary_commit(struct file_temporary *file, const char *path);
/* Closes the file and removes it unless it was committed. May be called more than once. */
void file_temporary_discard(struct file_temporary *file);
/* Removes the temporary files of `path` that killed processes have left. On a file system without locks
 * none is removed. */
void file_temporary_sweep(const char *path);

/* The length of the final name in a temporary name, "manifest.json" of
 * "manifest.json.cuboid-tmp-3f09c2d4a1b85e67"; that of the whole name if it is not temporary. */
size_t file_temporary_base_length(const char *name);

/* A random number from getrandom(), for unpredictable names. */
MUST_USE enum status random_token(uint64_t *out);

/* fsync of a folder, which makes the names in it durable. OK on a file system that does not support it; any
 * other failure is an IO_ERROR. */
MUST_USE enum status folder_sync(const char *path);
MUST_USE enum status folder_sync_parent(const char *path);

/* Removes the files in the folder `path` whose names `is_ours` accepts, then the folder. If
 * `path` is a symbolic link, the link is removed, with a line on standard error, and its target is not
 * touched. Any other file is kept, and so is the folder: IO_ERROR names it. OK when `path` does not exist. */
MUST_USE enum status folder_remove(const char *path, bool (*is_ours)(const char *name));
