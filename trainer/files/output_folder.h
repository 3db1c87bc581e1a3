// SPDX-License-Identifier: Apache-2.0
/* A folder that appears under its name only when it is complete. From begin to free, SIGINT and SIGTERM are
 * held (trainer/files/stop_signals.h): check them while large files are written. */
#pragma once

#include "base/text.h"
#include "trainer/files/stop_signals.h"

struct output_folder {
    const char *path;    // not owned
    struct text partial; // "PATH.partial", where files are written
    bool holds_signals;
    struct stop_signals held;
};

/* BAD_USAGE for a path that is empty, ends with a slash or exists. */
MUST_USE enum status output_folder_check(const char *path);
/* Checks PATH, and creates PATH.partial and its parents. BAD_USAGE if it exists, too. */
MUST_USE enum status output_folder_begin(const char *path, struct output_folder *out);
/* Makes the files durable, and renames the folder. INTERRUPTED after a signal. */
MUST_USE enum status output_folder_finish(struct output_folder *output);
/* Removes what is not finished, and releases the signals. Accepts {0}. */
void output_folder_free(struct output_folder *output);

/* After free: adds to the message of an IO_ERROR that the disk has fewer than `needed` bytes, if so. Returns
 * `status`. */
enum status output_folder_explain(enum status status, const char *path, int64_t needed);

/* Writes a small file into the folder. */
MUST_USE enum status output_folder_write(const struct output_folder *output, const char *name,
                                         const struct text *text);
