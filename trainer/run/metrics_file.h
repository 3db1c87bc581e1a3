// SPDX-License-Identifier: Apache-2.0
/* metrics.jsonl on the disk: a line for each step, in order, none lost and none torn.
 *
 * A line that cannot be written stays in memory, and is written with the next one. When a checkpoint is made,
 * every line up to its step is made durable first: with fsync, or, on a full disk, in the folder of the
 * checkpoints, as metrics-unwritten.jsonl, which the next start merges. So a run that resumes from a
 * checkpoint has the metrics of all of its steps.
 *
 *   resumed     lines after the checkpoint are dropped: those steps are repeated
 *   restarted   a run without a complete checkpoint restarts at step 1, and the earlier file is kept as
 *               metrics-1.jsonl, metrics-2.jsonl ... */
#pragma once

#include "base/text.h"

struct metrics_file;

struct metrics_file_config {
    const char *run_dir;
    const char *save;   // the folder of checkpoints; NULL: none
    int64_t first_step; // that this process makes
    bool continues;     // the folder's own run, from a checkpoint
};
/* Reports on standard output what it keeps, and on standard error lines that are damaged or missing. */
MUST_USE enum status metrics_file_open(const struct metrics_file_config *config, struct metrics_file **out);
void metrics_file_close(struct metrics_file *file); // takes NULL

/* IO_ERROR: the line is kept for later. Once a second it checks that the path still names the open file. */
MUST_USE enum status metrics_file_append(struct metrics_file *file, const struct text *line);
/* Makes all lines durable. IO_ERROR. */
MUST_USE enum status metrics_file_sync(struct metrics_file *file);
/* Whether the file was found removed or renamed: the run's folder may belong to another run now. */
bool metrics_file_is_lost(const struct metrics_file *file);
const char *metrics_file_path(const struct metrics_file *file);
