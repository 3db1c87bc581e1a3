// SPDX-License-Identifier: Apache-2.0
/* What a message about a full disk adds: how many bytes are needed, and how many are free. */
#pragma once

#include "base/text.h"

/* Appends "; about NEEDED needed, FREE free in FOLDER" and what to do if a file system has fewer free bytes;
 * else nothing, since the failure has another reason. elsewhere: "set KEY to" or "use -o and", which a
 * directory on another disk follows. If the folder does not exist, of the one that contains it. */
bool disk_space_text(const char *folder, int64_t needed, const char *elsewhere, struct text *out);
