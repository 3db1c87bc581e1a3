// SPDX-License-Identifier: Apache-2.0
/* A schedule as a table in a file, in the notation of PyTorch's pipelining: a line per rank, a cell per
 * action, `<stage><KIND><microbatch>` with F, I, W and B. An empty cell is an idle one and says nothing;
 * two actions that run together share a cell. DualPipeV's last rank, and its first:
 *
 *     0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2, ...
 *     ,1F0,2F0,1F1,2F1,2I0,...
 *
 * The file says everything: p is its number of lines, stages and m are what it counts up to, v is stages / p,
 * and a stage sits on the line that runs it. Where two lines share a stage, the first microbatches on one and
 * the rest on the other, the schedule is two-way: then so are all its stages, and the two lines are mirror
 * images of each other, the first and the last, the second and the last but one.
 *
 * A file may have its transfers too (2RECV_F0, 0SEND_B1), all or none. With none they are added. */
#pragma once

#include "schedules/schedule.h"

/* BAD_SCHEDULE for a file that is no sound schedule, with the place of what is wrong and the reason:
 * "zb.csv, line 3 (rank 2), cell 7: 2I0 runs before 2F0". Any bytes may be in it, up to 1 GiB. IO_ERROR, also
 * for a folder, a device or a pipe. */
MUST_USE enum status schedule_read_csv(const char *path, struct schedule **out);
/* The same of text in memory; `name` is what it is called in errors. */
MUST_USE enum status schedule_parse_csv(const char *name, const char *bytes, size_t length,
                                        struct schedule **out);

/* Appends the table, without transfers. A cell's column is its start where every action takes one unit of
 * time and every message none, so lines stand above each other as in the papers' figures; but where that
 * takes more than some ten million empty cells, as in a long pipe with few microbatches, these are left out.
 */
MUST_USE enum status schedule_write_csv(const struct schedule *schedule, struct text *out);
