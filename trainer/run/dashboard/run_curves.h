// SPDX-License-Identifier: Apache-2.0
/* The metrics of a run for a page that draws them. */
#pragma once

#include "base/text.h"

/* Appends a JSON object: for each field a list of numbers, of every k-th line of metrics.jsonl, which are at
 * most `most`, of all lines that have a validation loss, and of the last ("time": seconds since 1970);
 * "every": k; "steps": the number of lines; "peak_bytes": the most memory of any of them; "memory_bytes": of
 * the last line, by part. An incomplete last line is ignored. IO_ERROR; BAD_DATA names the line that is not
 * one of metrics.jsonl. */
MUST_USE enum status run_curves_json(const char *run_dir, int64_t most, struct text *out);
