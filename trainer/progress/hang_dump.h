// SPDX-License-Identifier: Apache-2.0
/* hang-STEP.json: the snapshot of a hang (hang.h), with the last messages of each rank. `cuboid hang FILE`
 * reads it back, and finds the same culprit.
 *
 *     {"format": 1, "report": "rank 5 ...", "limit_s": 40, "at_ns": ...,
 *      "ranks": [{"rank": 5, "pp": 1, ..., "action": "1W2", "still_s": 41, "process": "stopped",
 *                 "groups": [{"name": "tp", "id": "...", "calls": 17, "first": 4, "stride": 1, "size": 2}],
 *                 "messages": [{"group": 0, "call": "all_reduce", "number": 17, "dtype": "f32",
 *                               "bytes": 16384, "action": "1F2", "queued_ns": ..., "done_ns": 0}]}]}
 *
 * A time of 0: not yet. Times of a machine have one origin; those of two machines are not comparable. */
#pragma once

#include "trainer/progress/hang.h"

/* RUN_DIR/hang-STEP.json, of the culprit's step. */
void hang_dump_name(const char *run_dir, const struct hang *hang, const struct hang_finding *finding,
                    struct text *out);
void hang_dump_text(const struct hang *hang, const char *report, struct text *out);
/* Writes the file, or prints a warning if that fails. Returns after two seconds even if the disk hangs,
 * because the process has to exit. */
void hang_dump_in_time(const struct hang *hang, const char *report, const char *path);

/* BAD_DATA names what is wrong. report: the line as it was printed. */
MUST_USE enum status hang_dump_read(const char *path, struct hang *out, struct text *report);
