// SPDX-License-Identifier: Apache-2.0
/* Files of a folder that another user may have made: a model, a checkpoint. A link in it could name any
 * file that the user can read, which a copy would then disclose. Opened are regular files only, in the
 * folder, or in the cache of Hugging Face's hub, whose folders consist of links:
 *
 *     models--x/snapshots/HASH/config.json -> ../../blobs/SUM
 *
 * What was opened decides (/proc/self/fd), not the path, which may change meanwhile. */
#pragma once

#include "base/text.h"

#include <sys/types.h>

/* Reads FOLDER/NAME of at most `limit` bytes. *found: whether it exists; also OK if not. *mode: its
 * permissions; may be NULL. BAD_CHECKPOINT for a link to elsewhere, IO_ERROR. */
MUST_USE enum status inside_read(const char *folder, const char *name, size_t limit, struct text *out,
                                 mode_t *mode, bool *found);

/* The same check for a file that another function opens; OK if it does not exist. */
MUST_USE enum status inside_check(const char *folder, const char *name);

/* Writes a file atomically, with the permissions of `mode` that the process gives new files. */
MUST_USE enum status inside_write(const char *folder, const char *name, const struct text *bytes,
                                  mode_t mode);
/* Whether the folder has a file or a folder of this name; not of a link without a target. */
bool inside_exists(const char *folder, const char *name);
