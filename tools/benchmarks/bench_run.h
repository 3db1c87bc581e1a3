// SPDX-License-Identifier: Apache-2.0
/* The run of a benchmark of checkpoints: a small model on ranks that are threads, in the current folder. */
#pragma once

#include "trainer/engine/rank.h"

enum { BENCH_ROUNDS_MAX = 100, BENCH_KEYS_MAX = 32 };

struct bench_run {
    struct run run;
    struct recipe *recipe;
};

/* Creates the run, and the folder of its checkpoints, `saves`. keys: of the recipe, which change the model or
 * give the layout. */
MUST_USE enum status bench_run_create(const char *const *keys, size_t count, struct bench_run *out);
void bench_run_destroy(struct bench_run *bench);

/* Sorts the list. */
double bench_median(double *list, int count);

/* Reads `-n ROUNDS`, if it is at *next, and steps over it. 0: not a number from 1 to BENCH_ROUNDS_MAX. */
int bench_rounds(int argc, char **argv, int *next, int preset);
