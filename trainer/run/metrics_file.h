// SPDX-License-Identifier: Apache-2.0
/* metrics.jsonl on disk: one line per step, in order, without gaps or partial lines.
 *
 * A line that cannot be written stays in memory and is written with the next one. Before a checkpoint is
 * completed, every line up to its step is made durable: with fsync, or if the disk is full, in the checkpoint
 * folder as metrics-unwritten.jsonl, which the next start merges. A run that resumes from a checkpoint
 * therefore has the metrics of all of its steps.
 *
 *   resumed     lines after the checkpoint are dropped: those steps are repeated
 *   restarted   a run without a complete checkpoint restarts at step 1, and the earlier file is kept as
 *               metrics-1.jsonl, metrics-2.jsonl ... */
#pragma once

#include "base/text.h"

struct metrics_file;

struct metrics_file_config {
    const char *run_dir;
    const char *save;   // checkpoint folder; NULL: none
    int64_t first_step; // first step of this process
    bool continues;     // resumes the run of this folder from a checkpoint
};
/* Reports kept files on standard output, and damaged or missing lines on standard error. */
MUST_USE enum status metrics_file_open(const struct metrics_file_config *config, struct metrics_file **out);
void metrics_file_close(struct metrics_file *file); // accepts NULL

/* Appends a line. On IO_ERROR the line is kept for later. Checks once a second that the path still names the
 * open file. */
MUST_USE enum status metrics_file_append(struct metrics_file *file, const struct text *line);
/* True if the line of the step before first_step was kept and has no field of this name. */
bool metrics_file_lacks(const struct metrics_file *file, const char *name);
/* Adds fields, such as `, "a": 1`, to the last line, before another one is appended. IO_ERROR. */
MUST_USE enum status metrics_file_amend(struct metrics_file *file, const struct text *fields);
/* Makes all lines durable. IO_ERROR. */
MUST_USE enum status metrics_file_sync(struct metrics_file *file);
/* True if the file was found removed or renamed: another run may now own the run directory. */
bool metrics_file_is_lost(const struct metrics_file *file);
const char *metrics_file_path(const struct metrics_file *file);
