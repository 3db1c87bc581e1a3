// SPDX-License-Identifier: Apache-2.0
/* Schedule files in the notation of PyTorch's pipelining: a line per rank, a cell per action,
 * `<stage><KIND><microbatch>` with F, I, W and B. Empty cells are idle and have no meaning; two actions that
 * run concurrently share a cell. DualPipeV's last rank, and its first:
 *
 *     0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2, ...
 *     ,1F0,2F0,1F1,2F1,2I0,...
 *
 * Sizes follow from the contents: p is the number of lines, stages and m are one more than the largest index,
 * v is stages / p, and a stage belongs to the line that runs it. If two lines share a stage, the first
 * microbatches on one and the rest on the other, the schedule is two-way: then all stages are shared, and the
 * two lines mirror each other, the first and the last, the second and the last but one.
 *
 * A file may contain its transfers (2RECV_F0, 0SEND_B1), all or none. If it has none they are added. */
#pragma once

#include "schedules/schedule.h"

/* BAD_SCHEDULE for an invalid schedule, with the location and the reason: "zb.csv, line 3 (rank 2), cell 7:
 * 2I0 runs before 2F0". Accepts arbitrary bytes up to 1 GiB. IO_ERROR, also for a directory, a device or a
 * pipe. */
MUST_USE enum status schedule_read_csv(const char *path, struct schedule **out);
/* Same for text in memory; `name` identifies it in errors. */
MUST_USE enum status schedule_parse_csv(const char *name, const char *bytes, size_t length,
                                        struct schedule **out);

/* Appends the table, without transfers. The column of a cell is its start time if every action takes one unit
 * and every message none, so lines align as in the papers' figures. If this needs more than some ten million
 * empty cells, as in a long pipeline with few microbatches, they are omitted. */
MUST_USE enum status schedule_write_csv(const struct schedule *schedule, struct text *out);
