// SPDX-License-Identifier: Apache-2.0
/* A persistent cache of matmul algorithm choices, in a file.
 *
 * Algorithms are chosen by timing, which is not reproducible, and different algorithms give different bits.
 * Entries are therefore never changed: a rank without an entry adds one, and of concurrent additions for one
 * key the first wins for all. Ranks that share the file, threads or processes, agree, and later runs are
 * bit-identical as long as the file exists.
 *
 *     cuboid matmul algorithms 1
 *     KEY|eight words in hexadecimal|checksum of the preceding text
 *
 * A key contains all inputs of the choice: GPU, library version, shapes, types. Incomplete lines are skipped;
 * a file with another first line is not ours and is rejected. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

struct text;

enum { ALGORITHM_WORDS = 8, ALGORITHM_KEY_CHARS = 400 };

struct algorithm {
    uint64_t word[ALGORITHM_WORDS]; // the library's, opaque
};

struct algorithms;

/* path: "auto" is cuboid/matmul-algorithms in $XDG_CACHE_HOME or ~/.cache, whose folders are created if
 * missing; folders of another path are not. IO_ERROR if it is not writable, BAD_DATA if another file has this
 * name; both name the recipe's key. */
MUST_USE enum status algorithms_open(const char *path, struct algorithms **out);
void algorithms_close(struct algorithms *algorithms); // accepts NULL

/* Returns the error that algorithms_open() would return for this path, as far as can be checked without
 * creating anything. */
MUST_USE enum status algorithms_check(const char *path);

/* Appends the number of entries used and added; then the key of each. */
void algorithms_report(const struct algorithms *algorithms, struct text *out);

/* Looks up `key`, rereading the file on a miss. key: no '|', no control characters. */
MUST_USE enum status algorithms_find(struct algorithms *algorithms, const char *key, struct algorithm *out,
                                     bool *found);
/* Stores *algorithm for `key`; if another rank was faster, sets *algorithm to the stored one. */
MUST_USE enum status algorithms_keep(struct algorithms *algorithms, const char *key,
                                     struct algorithm *algorithm);
