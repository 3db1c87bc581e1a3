// SPDX-License-Identifier: Apache-2.0
/* Which algorithm multiplies which matrices, kept in a file from run to run.
 *
 * An algorithm is chosen by timing, which comes out differently each time, and another algorithm is other
 * bits. So what is in the file is never changed: who finds no entry makes one, and of two that make the same
 * at once, the first is everybody's. Ranks that share the file agree, threads and processes, and a later run
 * has the bits of this one as long as the file is there.
 *
 *     cuboid matmul algorithms 1
 *     KEY|eight words in hexadecimal|checksum of what stands before
 *
 * A key says all that the choice depends on: GPU, version of the library, shapes, types. A line that is not
 * whole is left out; a file that does not begin like this is somebody else's, and is refused. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

struct text;

enum { ALGORITHM_WORDS = 8, ALGORITHM_KEY_CHARS = 400 };

struct algorithm {
    uint64_t word[ALGORITHM_WORDS]; // the library's, and opaque
};

struct algorithms;

/* path: "auto" is cuboid/matmul-algorithms in $XDG_CACHE_HOME or ~/.cache, whose folders are made where they
 * are missing; those of another path are not. IO_ERROR where nothing can be written there, BAD_DATA where
 * another file is in the way; both name the recipe's key. */
MUST_USE enum status algorithms_open(const char *path, struct algorithms **out);
void algorithms_close(struct algorithms *algorithms); // takes NULL

/* What algorithms_open() would say of this path, as far as can be seen without making a folder or a file. */
MUST_USE enum status algorithms_check(const char *path);

/* Adds how many of the file's are in use, and how many were made for it; then the key of each. */
void algorithms_say(const struct algorithms *algorithms, struct text *out);

/* What is kept for `key`, looked up in the file again where this run does not know it. key: no '|', no
 * control characters. */
MUST_USE enum status algorithms_find(struct algorithms *algorithms, const char *key, struct algorithm *out,
                                     bool *found);
/* Keeps *algorithm for `key`; where another rank was quicker, *algorithm becomes what that has kept. */
MUST_USE enum status algorithms_keep(struct algorithms *algorithms, const char *key,
                                     struct algorithm *algorithm);
