// SPDX-License-Identifier: Apache-2.0
/* Files under a temporary name, and folders: what appears under a final name is complete and on the disk, and
 * what is removed is never reached through a symbolic link.
 *
 *     file_temporary_create("a/manifest.json")     a/manifest.json.cuboid-tmp-3f09c2d4a1b85e67
 *     ... write to .fd ...
 *     file_temporary_commit                        fsync, rename, fsync of the folder
 *
 * The name is unpredictable and opened with O_EXCL and O_NOFOLLOW, so that nobody who can write in the folder
 * can place a file or a link there first. While it is open the file is locked (flock): a temporary file of
 * this name that is not locked belongs to a process that was killed, and file_temporary_sweep() removes it.
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
/* Closes the file and removes it unless it was committed. Takes what was created, once or several times. */
void file_temporary_discard(struct file_temporary *file);
/* Removes the temporary files of `path` that processes left behind when they were killed. Where the file
 * system knows no locks, none is removed. */
void file_temporary_sweep(const char *path);

/* A random number from the system, for names that nobody else can choose. */
MUST_USE enum status random_token(uint64_t *out);

/* fsync of a folder, which makes the names in it durable. A file system that has no such call is taken as it
 * is; any other failure is an IO_ERROR. */
MUST_USE enum status folder_sync(const char *path);
MUST_USE enum status folder_sync_parent(const char *path);

/* Removes the files in the folder `path` whose names `is_ours` accepts, then the folder. A symbolic link at
 * `path` is removed itself, with a line on standard error, and what it points to stays as it is; so does a
 * file that is not ours, and with it the folder: IO_ERROR names it. OK when nothing is there. */
MUST_USE enum status folder_remove(const char *path, bool (*is_ours)(const char *name));
