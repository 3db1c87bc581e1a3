// SPDX-License-Identifier: Apache-2.0
/* Summary of a run's metrics.jsonl. */
#pragma once

#include "base/text.h"

struct run_summary {
    int64_t steps;
    /* Medians without the first step, which is slower, unless it is the only one. */
    double step_s, tokens_per_s, tflops_per_rank, bubble_fraction;
    double predicted_step_s;   // 0: the run had no profile
    double loss;               // of the last step; NAN: none
    int64_t memory_peak_bytes; // maximum over ranks
};

/* Reads the summary of the run in `run_dir`. An incomplete last line is ignored. IO_ERROR; BAD_DATA names the
 * line that is not a metrics line. */
MUST_USE enum status run_summary_read(const char *run_dir, struct run_summary *out);
