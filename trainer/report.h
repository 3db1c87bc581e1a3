// SPDX-License-Identifier: Apache-2.0
/* What a person wants to see before and after: which rank holds which layers, and what memory is for. */
#pragma once

#include "trainer/worker.h"

#include <stdio.h>

/* Model, layout, and the layer -> rank table. */
void report_layout(const struct run *run, FILE *to);
/* What this rank has allocated, by part. */
void report_memory(const struct worker *worker, FILE *to);
/* The process's peak resident size beside what its ranks have allocated at most, together. */
void report_resident(int ranks, int64_t allocated_bytes, FILE *to);
