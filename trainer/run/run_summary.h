// SPDX-License-Identifier: Apache-2.0
/* What a run measured: metrics.jsonl in a few numbers. */
#pragma once

#include "base/text.h"

struct run_summary {
    int64_t steps;
    /* Medians, without the first step if there are more: it is slower. */
    double step_s, tokens_per_s, tflops_per_rank, bubble_fraction;
    double predicted_step_s;   // 0: the run had no profile
    double loss;               // of the last step; NAN: none
    int64_t memory_peak_bytes; // of the fullest rank
};

/* Of the run folder `run_dir`. A last line that is not complete is ignored. IO_ERROR; BAD_DATA names the line
 * that is not one of metrics.jsonl. */
MUST_USE enum status run_summary_read(const char *run_dir, struct run_summary *out);
